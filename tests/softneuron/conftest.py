"""What the tests of softneuron share: fresh processes, and a NEFF cache of their own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest


class RunPython(Protocol):
    def __call__(self, program: str, **environment: str) -> str: ...


def _run_python(program: str, **environment: str) -> str:
    """Standard output of `program` in a fresh interpreter outside the source tree; fails when it fails."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="session")
def run_python() -> RunPython:
    return _run_python


@pytest.fixture
def neff_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty NEFF cache that this process uses during the test."""
    cache = tmp_path / "neff_cache"
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(cache))
    return cache


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """No compiled code of earlier tests, and counters at zero."""
    import torch
    import torch_neuronx

    torch._dynamo.reset()
    torch_neuronx.reset_dynamo_metrics()
    yield
    torch._dynamo.reset()


@pytest.fixture
def no_garbage() -> None:
    """Tensors that earlier tests left in cycles are freed now, not while the test measures memory."""
    gc.collect()
