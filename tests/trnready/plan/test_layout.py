"""The arithmetic of plans, over generated layouts: nothing smaller than its share, nothing that grows with
more cores, nothing chosen that does not divide."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.plan.blueprint import Blueprint
from trnready.plan.layout import CacheLayer, Divisor, Layout, Piece, Split
from trnready.plan.planner import Subject, decide
from trnready.plan.trainium import LARGER_SIZES, MOST_CORES, NoSuchSize, check_size, machine

SIZES = (1, 2, 4, 8, 16)
GIB = 2**30


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    shape = tuple(draw(st.lists(st.integers(1, 5000), min_size=1, max_size=3)))
    split = None
    if draw(st.booleans()):
        dim = draw(st.integers(0, len(shape) - 1))
        packed = draw(st.sampled_from([each for each in (1, 2) if shape[dim] % each == 0]))
        split = Split(dim, packed)
    return Piece("piece", shape, draw(st.sampled_from([1, 2, 4])), split)


layouts = st.builds(
    Layout,
    st.sampled_from(["tp", "ep", None]),
    st.lists(pieces(), min_size=1, max_size=12).map(tuple),
    st.lists(
        st.builds(
            Divisor, st.sampled_from(["heads", "KV heads", "experts"]), st.integers(1, 64), st.just("m")
        ),
        max_size=3,
    ).map(tuple),
)


def _blueprint(split: Layout | None, plain: Layout | None = None, **changes: object) -> Blueprint:
    facts: dict = {
        "model_class": "Tiny",
        "model_type": "tiny",
        "dtype": "bfloat16",
        "parameters": 1,
        "tied": (),
        "plain": plain or Layout(None, split.pieces if split else ()),
        "split": split,
        "distributed": {"tp_size": None} if split else None,
        "cache": (CacheLayer("StaticLayer", 1000, True),),
        "hidden_size": 64,
        "widest": 256,
        "vocabulary": 1000,
        "buffers": frozenset(),
    }
    return Blueprint(**facts | changes)


def _layout_of(gib: float, kind: str | None = "tp", heads: int = 64) -> Layout:
    piece = Piece("weight", (int(gib * GIB) // 2,), 2, Split(0) if kind else None)
    return Layout(kind, (piece,), (Divisor("KV heads", heads, "k_proj"),) if kind else ())


@given(layouts)
def test_a_core_never_holds_less_than_its_share(layout: Layout):
    whole = layout.whole_bytes
    assert whole == sum(math.prod(each.shape) * each.element_bytes for each in layout.pieces)
    for cores in (*SIZES, *LARGER_SIZES):
        assert layout.bytes_on(cores) >= -(-whole // cores)
        assert layout.bytes_on(cores) >= layout.replicated_bytes


@given(layouts)
def test_more_cores_never_need_more_bytes_on_each(layout: Layout):
    needed = [layout.bytes_on(cores) for cores in (*SIZES, *LARGER_SIZES)]
    assert needed == sorted(needed, reverse=True)


@given(layouts, st.integers(1, 2**26), st.sampled_from(SIZES))
def test_the_choice_is_the_fewest_legal_cores_that_hold_the_weights(layout: Layout, room: int, most: int):
    where = machine(None, most)
    where = type(where)(where.sizes, room, None)
    split = layout if layout.kind else None
    plan = decide(_blueprint(split, layout), Subject("acme/tiny"), where)
    fitting = [
        cores
        for cores in where.sizes
        if layout.bytes_on(cores) <= room and (cores == 1 or (layout.kind and not layout.obstacles(cores)))
    ]
    assert plan.cores == (fitting[0] if fitting else None)
    assert plan.next_cores == tuple(fitting[1:])
    assert (plan.cores is None) == (plan.reason is not None) == (plan.because is not None)
    assert plan.reason in (None, "too_large", "no_parallel_plan")
    for size in plan.sizes:
        assert size.usable == (not size.why_not)
        if size.cores > 1 and size.legal:
            assert all(divisor.count % size.cores == 0 for divisor in layout.divisors)
    assert json.loads(json.dumps(plan.to_json()))["cores"] == plan.cores


def test_the_longest_slice_counts():
    odd = Piece("lm_head.weight", (99, 10), 2, Split(0))
    assert [odd.bytes_on(cores) for cores in SIZES] == [1980, 1000, 500, 260, 140]


def test_packed_matrices_are_cut_one_by_one():
    fused = Piece("gate_up", (4, 12, 8), 2, Split(1, packed=2))
    assert [fused.bytes_on(cores) for cores in (1, 2, 4)] == [768, 384, 4 * 4 * 8 * 2]


def test_up_to_four_cores_a_plan_names_the_small_machine():
    where = machine(None, MOST_CORES)
    named = {gib: decide(_blueprint(_layout_of(gib)), Subject("m"), where) for gib in (10, 40, 90, 150, 300)}
    assert {gib: (plan.cores, plan.instance) for gib, plan in named.items()} == {
        10: (1, "trn2.3xlarge"),
        40: (2, "trn2.3xlarge"),
        90: (4, "trn2.3xlarge"),
        150: (8, "trn2.48xlarge"),
        300: (16, "trn2.48xlarge"),
    }
    assert named[10].parallelism is None
    assert named[10].distributed is None
    assert named[150].parallelism == "tp=8"
    assert named[150].distributed == {"tp_size": 8}
    assert named[40].next_cores == (4, 8, 16)


def test_a_smaller_machine_has_fewer_and_smaller_cores():
    plan = decide(_blueprint(_layout_of(20)), Subject("m"), machine("trn1.2xlarge", MOST_CORES))
    assert (plan.cores, plan.instance) == (2, "trn1.2xlarge")
    assert [each.cores for each in plan.sizes] == [1, 2]
    plan = decide(_blueprint(_layout_of(60)), Subject("m"), machine("trn1.32xlarge", MOST_CORES))
    assert plan.cores == 8, "Trainium1 has no groups of 4"


def test_too_large_says_how_many_would_do():
    plan = decide(_blueprint(_layout_of(500)), Subject("m"), machine(None, MOST_CORES))
    assert (plan.reason, plan.cores_needed) == ("too_large", 32)
    assert plan.because == (
        "Its weights need 500.0 GiB, of which each of 16 cores of 24.0 GiB, the most that a test uses, would "
        "hold 31.2 GiB. By their bytes alone 32 cores would hold them."
    )
    plan = decide(_blueprint(_layout_of(500, heads=4)), Subject("m"), machine(None, 4))
    assert plan.because == (
        "Its weights need 500.0 GiB, of which each of 4 cores of 24.0 GiB, the most allowed here, would hold "
        "125.0 GiB. By their bytes alone 32 cores would hold them, but its 4 KV heads (k_proj) do "
        "not divide by 32."
    )


def test_more_cores_than_a_test_uses_are_refused_with_the_reason():
    for asked in (17, 32, 64):
        with pytest.raises(NoSuchSize) as told:
            machine(None, asked)
        assert str(told.value) == (
            f"a test uses at most 16 cores, four Trainium2 chips, so that nothing is planned for {asked}: "
            "--max-cores takes 1 to 16."
        )
    with pytest.raises(NoSuchSize, match="4 cores are more than --max-cores or --instance leaves: 1, 2"):
        check_size(4, machine(None, 2))
    with pytest.raises(NoSuchSize) as told:
        check_size(32, machine(None, MOST_CORES))
    assert str(told.value) == (
        "a test uses at most 16 cores, four Trainium2 chips, so that nothing is planned for 32; "
        "it may have 1, 2, 4, 8, 16."
    )


def test_what_every_core_must_hold_whole_can_be_too_much():
    whole = Piece("embedding", (30 * GIB,), 1)
    part = Piece("weight", (100 * GIB,), 1, Split(0))
    plan = decide(_blueprint(Layout("tp", (whole, part))), Subject("m"), machine(None, MOST_CORES))
    assert (plan.reason, plan.cores_needed) == ("too_large", None)
    assert "30.0 GiB are whole on every core" in str(plan.because)


def test_more_than_a_core_without_a_plan():
    plan = decide(_blueprint(None, _layout_of(30, None), cache=()), Subject("m"), machine(None, MOST_CORES))
    assert plan.reason == "no_parallel_plan"
    assert "more than one core's 24.0 GiB" in str(plan.because)


def test_heads_that_do_not_divide_are_named():
    plan = decide(_blueprint(_layout_of(100, heads=4)), Subject("m"), machine(None, MOST_CORES))
    assert plan.cores is None
    assert plan.reason == "no_parallel_plan"
    assert plan.because == (
        "8 cores would hold its weights, but its 4 KV heads (k_proj) do not divide by 8, "
        "and no other count will do."
    )
    assert plan.sizes[1].why_not == ("its weights need 50.0 GiB on each core, which has 24.0 GiB",)


def test_what_may_not_fit_beside_the_weights_is_said_and_does_not_decide():
    full = _layout_of(23.999)
    plan = decide(
        _blueprint(full, cache=(CacheLayer("StaticLayer", GIB, True),)), Subject("m"), machine(None, 16)
    )
    assert plan.cores == 1
    assert not plan.sizes[0].holds_all
    assert plan.sizes[1].holds_all
    assert plan.sizes[1].cache_bytes == GIB // 2
