"""What the tests of trnready share: a factory of rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Protocol

import pytest

from trnready.results.row import Row

TESTED_AT = datetime(2026, 10, 5, 12, 30, tzinfo=UTC)


class MakeRow(Protocol):
    def __call__(self, **changes: Any) -> Row: ...


def _make_row(**changes: Any) -> Row:
    """A passing run of a small model on software cores, with the given columns changed."""
    columns: dict[str, Any] = {
        "model_id": "acme/tiny-1b",
        "task": "text-generation",
        "library": "transformers",
        "library_version": "5.24.0",
        "neuronx_cc": "soft-0.1.0",
        "neuron_cores": 1,
        "result": "PASS",
        "reason": "match",
        "stage": "verify",
        "dtype": "bfloat16",
        "device_kind": "software",
        "instance": "trn2.3xlarge",
        "wall_time_s": 41.5,
        "peak_memory_bytes": 300 * 2**20,
        "tested_at": TESTED_AT,
        "run_id": "run-1",
    }
    return Row(**columns | changes)


@pytest.fixture(scope="session")
def make_row() -> MakeRow:
    return _make_row
