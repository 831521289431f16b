"""PyTorch's own parallelism on neuron against one CPU process; see `parallel_cases.py`."""

from __future__ import annotations

from typing import Any

import pytest


def test_data_parallel(two_ranks: Any) -> None:
    two_ranks.run("data_parallel", module="parallel_cases")


def test_data_parallel_with_communication_hook(two_ranks: Any) -> None:
    two_ranks.run("data_parallel_with_hook", module="parallel_cases")


@pytest.mark.parametrize(("precision", "offload"), [("full", False), ("bf16", False), ("full", True)])
def test_fully_sharded(two_ranks: Any, precision: str, offload: bool) -> None:
    two_ranks.run("fully_sharded", module="parallel_cases", precision=precision, offload=offload)


@pytest.mark.parametrize("sequence", [False, True])
def test_tensor_parallel(two_ranks: Any, sequence: bool) -> None:
    two_ranks.run("tensor_parallel", module="parallel_cases", sequence=sequence)


def test_distributed_tensor(three_ranks: Any) -> None:
    three_ranks.run("distributed_tensor", module="parallel_cases")


def test_checkpoint(two_ranks: Any) -> None:
    two_ranks.run("checkpoint", module="parallel_cases")


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_pipeline(three_ranks: Any, schedule: str) -> None:
    three_ranks.run("pipeline", module="parallel_cases", schedule=schedule)


def test_split(three_ranks: Any) -> None:
    three_ranks.run("split", module="parallel_cases")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", ["two_ranks", "three_ranks"])
def test_context_parallel(request: pytest.FixtureRequest, ranks: str, causal: bool) -> None:
    request.getfixturevalue(ranks).run("context_parallel", module="parallel_cases", causal=causal)


def test_context_parallel_of_another_layout(two_ranks: Any) -> None:
    two_ranks.run("context_parallel_by_heads", module="parallel_cases")
