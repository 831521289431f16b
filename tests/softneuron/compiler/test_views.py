"""Small programs of views, writes and aliases: compiled on neuron, they do what eager does on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch._dynamo.exc import BackendCompilerFailed

from softneuron.compiler.placement import PlacementRefused

MEMORY = 24
LAYOUTS = (
    # size, stride, elements from the first to the last one
    ((6,), (1,), 6),
    ((4,), (2,), 7),
    ((2, 3), (3, 1), 6),
    ((3, 2), (1, 3), 6),
    ((2, 3), (6, 2), 11),
    ((3, 2), (0, 1), 2),
    ((0, 3), (3, 1), 0),
    ((), (), 1),
)
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)

Step = tuple[str, int, int]


@dataclass(frozen=True)
class Program:
    """Inputs as (which memory, offsets of the first and of the second call, layout), steps, outputs."""

    dtype: torch.dtype
    conjugate: bool
    inputs: tuple[tuple[int, tuple[int, int], int], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


def make_inputs(program: Program, call: int, device: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Two blocks of memory and the program's inputs, views of them, on `device`."""
    blocks = []
    for block in range(2):
        values = torch.arange(MEMORY) * 3 + block * 7 + call
        if program.dtype == torch.bool:
            values = values % 4 < 2
        elif program.dtype == torch.complex64:
            values = torch.complex(values.float(), values.float().flip(0))
        blocks.append(values.to(program.dtype).to(device))
    views = []
    for block, offsets, layout in program.inputs:
        size, stride, _ = LAYOUTS[layout]
        view = blocks[block].as_strided(size, stride, offsets[call])
        views.append(view.conj() if program.conjugate else view)
    return blocks, views


def apply(step: Step, values: list[torch.Tensor]) -> None:
    """Do one step: it adds a value to `values`, or writes to one."""
    name, chosen, number = step
    x = values[chosen % len(values)]
    y = values[number % len(values)]
    match name:
        case "slice":
            values.append(x[number % 2 :: 1 + number % 3] if x.dim() else x)
        case "transpose":
            values.append(x.transpose(0, -1) if x.dim() else x)
        case "select":
            values.append(x[-1] if x.dim() and x.shape[0] else x)
        case "expand":
            values.append(x.unsqueeze(0).expand(2, *x.shape))
        case "flatten":
            values.append(x.reshape(-1))
        case "diagonal":
            values.append(x.diagonal() if x.dim() == 2 else x)
        case "strided":
            values.append(x.as_strided((2,), (1 + number % 3,), number % 9))
        case "strided_here":
            values.append(x.as_strided((2,), (1 + number % 2,)))
        case "conj":
            values.append(x.conj())
        case "clone":
            values.append(x.clone())
        case "out_of_place":
            values.append(x.logical_not() if x.dtype == torch.bool else x * 2 + 1)
        case "sum":
            values.append(x + y if x.shape == y.shape else x.sum().to(x.dtype))
        case "add_":
            x.logical_not_() if x.dtype == torch.bool else x.add_(number)
        case "mul_":
            x.logical_and_(y) if x.dtype == torch.bool else x.mul_(2)
        case "copy_":
            if 0 not in x.stride():
                # Of its own memory: which elements eager has written when it reads them is not defined.
                x.copy_(y.clone() if x.shape == y.shape else torch.ones_like(x))
        case "set_item":
            x[..., :1] = 5
        case _:
            raise AssertionError(name)


READS = (
    "slice", "transpose", "select", "expand", "flatten", "diagonal", "strided", "strided_here", "conj",
    "clone", "out_of_place", "sum",
)  # fmt: skip
WRITES = ("add_", "mul_", "copy_", "set_item")


def as_function(program: Program) -> Callable[..., tuple[torch.Tensor, ...]]:
    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for step in program.steps:
            apply(step, values)
        return tuple(values[output % len(values)] for output in program.outputs)

    return run


def seen(blocks: list[torch.Tensor], others: list[torch.Tensor]) -> list[object]:
    """All that a caller can tell: values, shapes, the memory around, and which tensors lie in which block."""
    tensors = [*blocks, *others]
    storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    return [
        *(tensor.resolve_conj().cpu().tolist() for tensor in tensors),
        *(tuple(tensor.shape) for tensor in tensors),
        *(storages.index(storage) if storage in storages[: len(blocks)] else None for storage in storages),
    ]


def outcome(program: Program, level: str) -> str:
    """Compares compiled with eager at both calls: `compiled`, `refused`, or `no program` that eager runs."""
    torch._dynamo.reset()
    run = as_function(program)
    compiled = torch.compile(as_function(program), backend="neuron", options={"opt_level": level})
    for call in range(2):
        blocks, views = make_inputs(program, call, "cpu")
        try:
            expected = seen(blocks, [*views, *run(*views)])
        except (RuntimeError, IndexError):
            return "no program"
        blocks, views = make_inputs(program, call, "neuron")
        try:
            outputs = compiled(*views)
        except BackendCompilerFailed as error:
            if not isinstance(error.inner_exception, PlacementRefused):
                raise
            return "refused"
        assert seen(blocks, [*views, *outputs]) == expected
    return "compiled"


@st.composite
def programs(draw: st.DrawFn) -> Program:
    dtype = draw(st.sampled_from(DTYPES))
    inputs = []
    for _ in range(draw(st.sampled_from((1, 2, 2, 3)))):
        layout = draw(st.integers(0, len(LAYOUTS) - 1))
        offsets = st.integers(0, MEMORY - LAYOUTS[layout][2] - 1)
        block = draw(st.sampled_from((0, 0, 0, 1)))
        inputs.append((block, (draw(offsets), draw(offsets)), layout))
    if draw(st.booleans()):
        inputs.append(inputs[0])
    names = st.sampled_from(READS) | st.sampled_from(WRITES)
    steps = st.tuples(names, st.integers(0, 7), st.integers(0, 9))
    return Program(
        dtype=dtype,
        conjugate=dtype == torch.complex64 and draw(st.booleans()),
        inputs=tuple(inputs),
        steps=tuple(draw(st.lists(steps, min_size=1, max_size=5))),
        outputs=tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))),
    )


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
@given(program=programs())
def test_a_program_of_views_does_what_eager_does(program: Program):
    event(outcome(program, "-O0"))


GENERATED = [
    # Three inputs of one memory, two of which overlap, changed through views, outputs out of order.
    Program(
        dtype=torch.float32,
        conjugate=False,
        inputs=((0, (5, 5), 0), (0, (8, 8), 1), (0, (17, 17), 2)),
        steps=(("slice", 0, 1), ("add_", 3, 4), ("transpose", 2, 0), ("set_item", 4, 0), ("mul_", 1, 0)),
        outputs=(4, 0, 3, 4),
    ),
    # as_strided before the start of an input and past its end, on two places, with a whole number.
    Program(
        dtype=torch.int64,
        conjugate=False,
        inputs=((0, (5, 9), 0), (1, (4, 2), 4)),
        steps=(
            ("strided", 0, 1),
            ("strided", 1, 8),
            ("sum", 2, 3),
            ("diagonal", 1, 0),
            ("out_of_place", 5, 0),
        ),
        outputs=(5, 4, 2, 6),
    ),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch._prims_common.check:FutureWarning")
@pytest.mark.parametrize("program", GENERATED, ids=["overlap", "strided"])
def test_generated_code_does_what_eager_does(program: Program, neff_cache):
    assert outcome(program, "-O1") == "compiled"
