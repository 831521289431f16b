"""The rank processes that tests of this folder share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def _load(name: str) -> Any:
    """A module of this folder, which is no package."""
    qualified = f"softneuron_distributed_tests_{name}"
    if qualified not in sys.modules:
        spec = importlib.util.spec_from_file_location(qualified, Path(__file__).parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[qualified] = module
        spec.loader.exec_module(module)
    return sys.modules[qualified]


_load("ranks")


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Any]:
    """Two ranks on cores 0 and 1."""
    ranks = _load("ranks").Ranks(2)
    yield ranks
    ranks.stop()


@pytest.fixture(scope="session")
def three_ranks() -> Iterator[Any]:
    """Three ranks, which Trainium itself would refuse."""
    ranks = _load("ranks").Ranks(3)
    yield ranks
    ranks.stop()
