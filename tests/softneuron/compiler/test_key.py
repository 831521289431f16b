"""Keys of compiled graphs: equal for what compiles alike, different for what changes the machine code."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from softneuron.compiler.key import Toolchain, graph_key, toolchain
from softneuron.compiler.lower import lower

TOOLS = Toolchain("soft-1", "2.13.0", "x86_64-0")


def key_of(function, *inputs, tools=TOOLS):
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    gm.graph.output_node().args = ([gm.graph.output_node().args[0]],)
    fakes = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    return graph_key(lower(gm, fakes), tools)


def scaled(x):
    return torch.relu(x) * 2.0


def test_the_names_that_tracing_gives_do_not_matter():
    def same_with_other_names(argument):
        intermediate = torch.relu(argument)
        return intermediate * 2.0

    x = torch.ones(3, 4, device="neuron")
    assert key_of(scaled, x) == key_of(same_with_other_names, x)


def test_the_core_does_not_matter():
    assert key_of(scaled, torch.ones(3, device="neuron:0")) == key_of(
        scaled, torch.ones(3, device="neuron:2")
    )


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(4, 3, device="neuron"),
        torch.ones(4, 3, device="neuron").t(),
        torch.ones(3, 4, device="neuron", dtype=torch.bfloat16),
    ],
    ids=["shape", "strides", "dtype"],
)
def test_shape_strides_and_dtype_matter(other):
    assert key_of(scaled, torch.ones(3, 4, device="neuron")) != key_of(scaled, other)


def test_constants_and_operators_matter():
    x = torch.ones(3, device="neuron")
    keys = {
        key_of(scaled, x),
        key_of(lambda x: torch.relu(x) * 2, x),
        key_of(lambda x: torch.relu(x) * 2.5, x),
        key_of(lambda x: torch.tanh(x) * 2.0, x),
    }
    assert len(keys) == 4


@pytest.mark.parametrize("part", ["compiler", "torch", "cpu"])
def test_each_part_of_the_toolchain_matters(part):
    x = torch.ones(3, device="neuron")
    assert key_of(scaled, x) != key_of(scaled, x, tools=replace(TOOLS, **{part: "other"}))


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3), st.lists(st.integers(1, 4), min_size=1, max_size=3)
)
def test_keys_are_equal_exactly_when_shapes_are(first, second):
    same = key_of(scaled, torch.ones(first, device="neuron")) == key_of(
        scaled, torch.ones(second, device="neuron")
    )
    assert same == (first == second)


def test_this_toolchain_never_claims_a_version_of_aws():
    assert toolchain().compiler.startswith("soft-")
