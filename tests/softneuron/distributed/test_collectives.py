"""Every collective, dtype and memory layout on neuron tensors against Gloo on the CPU; see `cases.py`."""

from __future__ import annotations

from typing import Any

import pytest

FLOATS = ("float32", "float64", "float16", "bfloat16")
WHOLE = ("int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
SMALL_FLOATS = ("float8_e4m3fn", "float8_e5m2")
MOVABLE = (*FLOATS, *WHOLE, "bool", *COMPLEX, *SMALL_FLOATS)
LAYOUTS = ("transposed", "strided", "offset")
REDUCTIONS = (
    *((dtype, op) for dtype in (*FLOATS, "float8_e5m2") for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX")),
    *(
        (dtype, op)
        for dtype in WHOLE
        for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
    ),
    *(("bool", op) for op in ("SUM", "PRODUCT", "BAND", "BOR", "BXOR")),
    *((dtype, op) for dtype in COMPLEX for op in ("SUM", "AVG")),
)
MOVES = (
    "broadcast",
    "all_gather",
    "all_gather_single",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all_single",
    "send_and_receive",
)
REDUCERS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single")


@pytest.mark.parametrize("collective", REDUCERS)
@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_reductions(two_ranks: Any, collective: str, dtype: str, op: str) -> None:
    two_ranks.run(collective, dtype=dtype, op=op)


@pytest.mark.parametrize("collective", REDUCERS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bool", "complex64", "int16"])
def test_reductions_of_other_layouts(two_ranks: Any, collective: str, dtype: str, layout: str) -> None:
    two_ranks.run(collective, dtype=dtype, op="SUM", layout=layout)


@pytest.mark.parametrize("collective", REDUCERS)
@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX"])
def test_reductions_of_three_ranks(three_ranks: Any, collective: str, op: str) -> None:
    three_ranks.run(collective, dtype="float32", op=op)


@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_is_gloos(three_ranks: Any, dtype: str, op: str) -> None:
    three_ranks.run("all_reduce_like_gloo", dtype=dtype, op=op)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scaled_sum(two_ranks: Any, dtype: str) -> None:
    two_ranks.run("all_reduce_scaled", dtype=dtype)


@pytest.mark.parametrize("collective", MOVES)
@pytest.mark.parametrize("dtype", MOVABLE)
def test_moves(two_ranks: Any, collective: str, dtype: str) -> None:
    two_ranks.run(collective, dtype=dtype)


@pytest.mark.parametrize("collective", MOVES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_moves_of_other_layouts(two_ranks: Any, collective: str, layout: str) -> None:
    two_ranks.run(collective, dtype="bfloat16", layout=layout)


@pytest.mark.parametrize("collective", MOVES)
def test_moves_of_three_ranks(three_ranks: Any, collective: str) -> None:
    three_ranks.run(collective, dtype="float32")


@pytest.mark.parametrize("dtype", ["float32", "bool", "int16"])
@pytest.mark.parametrize(
    "collective", ["all_gather_uneven", "reduce_scatter_uneven", "all_to_all_single_uneven"]
)
def test_uneven_parts(three_ranks: Any, collective: str, dtype: str) -> None:
    three_ranks.run(collective, dtype=dtype)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_coalesced(two_ranks: Any, kind: str) -> None:
    two_ranks.run("coalesced", kind=kind)


@pytest.mark.parametrize(
    "case",
    [
        "receive_from_anyone",
        "batched_point_to_point",
        "futures",
        "objects",
        "zero_sized",
        "scalar",
        "cpu_tensors",
        "sub_groups",
        "mesh",
        "wrong_calls",
        "functional",
    ],
)
def test_case(three_ranks: Any, case: str) -> None:
    three_ranks.run(case)


def test_scratch_of_gloos_threads_is_charged(two_ranks: Any) -> None:
    two_ranks.run("scratch_is_charged_to_the_ranks_core")
