"""Functional collectives and DTensor inside compiled graphs; see `compiled_cases.py`."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    "name", ["all_reduce", "average", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
)
def test_interpreted_graph(two_ranks: Any, name: str) -> None:
    two_ranks.run("forward", module="compiled_cases", name=name, level="-O0")


def test_generated_code(two_ranks: Any) -> None:
    two_ranks.run("forward", module="compiled_cases", name="everything", level="-O1")


def test_group_that_takes_neuron_tensors_alone(two_ranks: Any) -> None:
    two_ranks.run("group_without_host_tensors", module="compiled_cases")


def test_backward_through_dtensor(two_ranks: Any) -> None:
    two_ranks.run("backward", module="compiled_cases", level="-O0")
