"""The one rule: what passes, and above all that nothing passes of which a part is missing or wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.run.report import Graph, Report
from trnready.verdict.compare import greedy
from trnready.verdict.rule import (
    Reference,
    Verdict,
    decide,
    is_degenerate,
    noise_dtype,
    recompiles,
    without_reference,
)

STEPS, VOCABULARY = 32, 50
END = (3,)
GRAPH = Graph(name="decode", nodes=10, compile_s=1.5, cache_hit=False, neff_module="MODULE_1")


def _logits(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 4, (STEPS, VOCABULARY)).astype(np.float32)


def _report(logits: np.ndarray, **changes: Any) -> Report:
    tokens = greedy(logits, END)
    facts: dict[str, Any] = {
        "device": "neuron",
        "dtypes": ("bfloat16",),
        "cores": 1,
        "input_tokens": (5, 6),
        "tokens": tokens,
        "first_call_tokens": tokens,
        "end_tokens": END,
        "text": "words",
        "logits": logits,
        "load_s": 1.0,
        "first_call_s": 2.0,
        "later_call_s": 1.0,
        "step_s": tuple(0.1 * step for step in range(STEPS)),
        "parameter_devices": ("neuron:0",),
        "parameter_bytes": 1000,
        "graphs_first_call": (GRAPH,),
        "graphs": (GRAPH,),
        "graph_breaks": 0,
        "fallback_ops": (),
        "instance": "trn2.3xlarge",
        "peak_bytes": (2000, 0, 0, 0),
        "versions": {"torch_neuronx": "soft-0.1.0"},
    }
    return Report(**facts | changes)


def _cpu(logits: np.ndarray, device: Report, **changes: Any) -> Report:
    """What the CPU reports when it is fed the device's tokens."""
    facts: dict[str, Any] = {
        "tokens": device.tokens,
        "parameter_devices": ("cpu",),
        "later_call_s": None,
        "graphs": None,
        "graphs_first_call": None,
    }
    return _report(logits, **facts | changes)


SAME = _logits()
NOISE = np.random.default_rng(1).normal(0, 0.1, SAME.shape).astype(np.float32)
"""Rounding noise of the made-up model, per logit."""


def _case(
    distance: float = 1.0, *, device: dict[str, Any] | None = None, **same: Any
) -> tuple[Report, Reference]:
    """A device whose logits are `distance` times the noise away from the CPU's."""
    shift = np.random.default_rng(2).normal(0, 0.1 * distance, SAME.shape).astype(np.float32)
    ours = _report(SAME + shift, **device or {})
    return ours, Reference(
        _cpu(SAME, ours, **same), _cpu(SAME + NOISE, ours, **{**same, "dtypes": ("float32",)})
    )


def test_within_rounding_noise_passes():
    device, reference = _case(1.0)
    verdict = decide(device, reference, "software")
    assert (verdict.result, verdict.error, verdict.warnings) == ("PASS", None, ())
    assert verdict.comparison is not None
    assert verdict.comparison.score == pytest.approx(1.0, abs=0.3)


def test_equal_logits_match():
    device, reference = _case(0.0)
    assert decide(device, reference, "software").reason == "match"


def test_other_tokens_within_noise_are_told_apart_from_equal_ones():
    logits = SAME.copy()
    first, second = np.argsort(np.where(np.arange(VOCABULARY) == END[0], -np.inf, logits[7]))[::-1][:2]
    logits[7, first], logits[7, second] = logits[7, second], logits[7, first]
    device = _report(logits)
    reference = Reference(_cpu(SAME, device), _cpu(SAME + NOISE, device, dtypes=("float32",)))
    verdict = decide(device, reference, "software")
    assert (verdict.result, verdict.reason) == ("PASS", "match_within_noise")
    assert verdict.comparison is not None
    assert verdict.comparison.first_divergence == 7
    assert verdict.comparison.margin == pytest.approx(float(SAME[7, first] - SAME[7, second]))


@given(st.floats(0, 20))
def test_the_score_alone_decides_at_three(distance):
    device, reference = _case(distance)
    verdict = decide(device, reference, "software")
    assert verdict.comparison is not None
    assert (verdict.result == "PASS") == (verdict.comparison.score <= 3)
    assert verdict.reason == ("mismatch" if verdict.comparison.score > 3 else verdict.reason)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("everywhere", [True, False])
def test_no_logit_of_the_device_may_be_nan_or_infinite(bad, everywhere):
    device, reference = _case(0.0)
    logits = device.logits.copy()
    logits[(slice(None), slice(None)) if everywhere else (31, 49)] = bad
    tokens = (0,) * STEPS if everywhere else device.tokens
    device = replace(device, logits=logits, tokens=tokens, first_call_tokens=tokens)
    assert decide(device, reference, "software").reason == "non_finite"
    assert decide(device, None, "software").reason == "non_finite"


def test_a_checkpoint_that_is_not_finite_on_the_cpu_either_is_said_to_be():
    device, reference = _case(0.0)
    nowhere = np.full_like(SAME, np.nan)
    device = replace(device, logits=nowhere)
    both = replace(reference, same=replace(reference.same, logits=nowhere))
    verdict = decide(device, both, "software")
    assert (verdict.result, verdict.reason) == ("SKIPPED", "reference_failed")
    assert verdict.hint is not None
    assert "checkpoint" in verdict.hint


@pytest.mark.parametrize("first_on_the_cpu", [2, 3, 4])
def test_only_a_cpu_that_is_not_finite_first_clears_the_device(first_on_the_cpu):
    # What a device chose after its first NaN may make the CPU's numbers overflow too.
    device, reference = _case(0.0)
    ours, theirs = SAME.copy(), SAME.copy()
    ours[3:] = np.nan
    theirs[first_on_the_cpu:] = np.inf
    both = replace(reference, same=replace(reference.same, logits=theirs))
    verdict = decide(replace(device, logits=ours), both, "software")
    assert verdict.result == ("SKIPPED" if first_on_the_cpu <= 3 else "FAIL")


def test_numbers_that_hardly_stand_out_from_their_noise_are_no_measure():
    # At this much noise a device that gives zeros scores less than 3.
    device, reference = _case(0.0)
    rng = np.random.default_rng(0)
    loud = SAME + rng.normal(0, SAME.std() / 2, SAME.shape).astype(np.float32)
    other = replace(reference.other, logits=loud)
    verdict = decide(device, Reference(reference.same, other), "software")
    assert (verdict.result, verdict.reason) == ("SKIPPED", "reference_failed")
    assert verdict.error is not None
    assert "rounding noise is 0.5" in verdict.error


@pytest.mark.parametrize(("common", "measured"), [(0.0, True), (300.0, True), (6400.0, False)])
def test_what_logits_have_in_common_does_not_make_room_for_errors_in_float32(common, measured):
    # 1e-4 of a size of 6400 is 0.64, where the logits differ by 4 from each other: a layer hides in that.
    alone = SAME + np.float32(common)
    device = _report(alone, dtypes=("float32",))
    verdict = decide(device, Reference(_cpu(alone, device, dtypes=("float32",)), None), "software")
    assert verdict.reason == ("match" if measured else "reference_failed")
    assert measured or "float32 allows, 1e-04 of their size, is 0.17 of" in str(verdict.error)


def test_without_a_measure_what_shows_by_itself_is_still_red():
    device, reference = _case(0.0)
    flat = np.full_like(SAME, 2.5)
    none = Reference(replace(reference.same, logits=flat), replace(reference.other, logits=flat))
    device = replace(device, logits=flat)
    assert decide(replace(device, graphs=(GRAPH, GRAPH)), none, "software").reason == "recompiles"
    other = (*device.tokens[:-1], device.tokens[-1] + 1)
    assert decide(replace(device, first_call_tokens=other), none, "software").reason == "mismatch"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_equal_logits_are_no_measure(dtype):
    device, reference = _case(0.0)
    flat = np.full_like(SAME, 2.5)
    device = replace(device, logits=flat, dtypes=(dtype,))
    same = replace(reference.same, logits=flat, dtypes=(dtype,))
    other = None if dtype == "float32" else replace(reference.other, logits=flat)
    verdict = decide(device, Reference(same, other), "software")
    assert (verdict.result, verdict.reason) == ("SKIPPED", "reference_failed")
    assert verdict.error is not None
    assert "all the same" in verdict.error


def test_a_graph_at_o0_is_not_compiled():
    graph = Graph("g", 9, 0.1, False, None, interpreted=True)
    device, reference = _case(0.5)
    device = replace(device, graphs=(graph,), graphs_first_call=(graph,))
    verdict = decide(device, reference, "software")
    assert (verdict.result, verdict.warnings) == ("PASS", ("not_compiled",))


def test_an_empty_graph_does_not_excuse_an_eager_run_from_the_cpus_bits():
    empty = Graph("g", 0, 0.1, False, None)
    device, reference = _case(0.5)
    device = replace(device, graphs=(empty,), graphs_first_call=(empty,))
    verdict = decide(device, reference, "software")
    assert (verdict.result, verdict.reason) == ("FAIL", "mismatch")


def test_without_a_reference_nothing_is_known():
    device, _ = _case(0.0)
    verdict = decide(device, None, "software")
    assert (verdict.result, verdict.reason) == ("SKIPPED", "reference_failed")


DAMAGED_DEVICES = {
    "one token short": {"tokens": greedy(SAME, END)[:-1]},
    "no tokens": {"tokens": ()},
    "no logits": {"logits": np.zeros((0, VOCABULARY), np.float32)},
    "one step of logits short": {"logits": SAME[:-1]},
    "one step of logits too many": {"logits": np.vstack([SAME, SAME[:1]])},
    "a token that is not the largest": {"tokens": (int(np.argmin(SAME[0])), *greedy(SAME, END)[1:])},
    "an end token": {"tokens": (END[0], *greedy(SAME, END)[1:])},
    "a token beyond the vocabulary": {"tokens": (VOCABULARY, *greedy(SAME, END)[1:])},
    "no second generation": {"later_call_s": None},
    "a step not timed": {"step_s": (0.1,) * (STEPS - 1)},
    "no prompt": {"input_tokens": ()},
    "graphs that vanish": {"graphs_first_call": (GRAPH, GRAPH)},
    "no count of graphs": {"graphs": None, "graphs_first_call": None},
    "no count of graphs after the first call": {"graphs_first_call": None},
    "no count of fallbacks": {"fallback_ops": None},
    "no memory counter": {"peak_bytes": None},
}


@pytest.mark.parametrize("change", DAMAGED_DEVICES.values(), ids=DAMAGED_DEVICES.keys())
def test_a_report_that_is_not_whole_never_passes(change):
    device, reference = _case(0.0)
    device = replace(device, **change)
    verdict = decide(device, reference, "software")
    assert (verdict.result, verdict.reason) == ("FAIL", "error")
    assert without_reference(device, "software") == verdict


@pytest.mark.parametrize(
    "change",
    [
        {"parameter_devices": ("cpu",)},
        {"parameter_devices": ("cpu", "neuron:0")},
        {"parameter_devices": ("meta", "neuron:0")},
        {"parameter_devices": ()},
        {"peak_bytes": (999, 0, 0, 0)},
        {"peak_bytes": ()},
    ],
)
def test_a_model_that_is_not_on_the_device_fails(change):
    device, reference = _case(0.0, device=change)
    assert decide(device, reference, "software").reason == "runs_on_cpu"
    assert decide(device, reference, "hardware").reason == "runs_on_cpu"


DAMAGED_REFERENCES = {
    "nan": {"logits": np.full_like(SAME, np.nan)},
    "one nan": {"logits": np.where(np.arange(VOCABULARY) == 9, np.inf, SAME)},
    "another shape": {"logits": SAME[:, :-1]},
    "fewer steps": {"logits": SAME[:-1]},
    "other tokens": {"tokens": (1,) * STEPS},
    "another prompt": {"input_tokens": (5, 7)},
    "another dtype": {"dtypes": ("float16",)},
    "other end tokens": {"end_tokens": ()},
    "on the device": {"parameter_devices": ("neuron:0",)},
    "nowhere": {"parameter_devices": ()},
}


@pytest.mark.parametrize("change", DAMAGED_REFERENCES.values(), ids=DAMAGED_REFERENCES.keys())
@pytest.mark.parametrize("which", ["same", "other"])
def test_a_reference_that_cannot_be_compared_is_no_verdict(change, which):
    device, reference = _case(0.0)
    if which == "other" and "dtypes" in change:
        change = {"dtypes": reference.same.dtypes}
    damaged = replace(getattr(reference, which), **change)
    verdict = decide(device, replace(reference, **{which: damaged}), "software")
    assert (verdict.result, verdict.reason) == ("SKIPPED", "reference_failed")


def test_the_run_in_float32_may_be_left_out_for_float32_models_on_software_cores_alone():
    device, reference = _case(0.0)
    assert decide(device, replace(reference, other=None), "software").reason == "reference_failed"
    device, reference = _case(0.0, device={"dtypes": ("float32",)}, dtypes=("float32",))
    assert decide(device, replace(reference, other=None), "software").reason == "match"
    assert decide(device, replace(reference, other=None), "hardware").reason == "reference_failed"


@pytest.mark.parametrize(("share", "result"), [(0.9e-4, "PASS"), (1.1e-4, "FAIL")])
@pytest.mark.parametrize("steps", [STEPS, 1])
def test_float32_on_software_cores_may_be_off_by_a_ten_thousandth_at_any_step(share, result, steps):
    size = np.sqrt(np.mean(np.square(SAME, dtype=np.float64), axis=-1, keepdims=True))
    logits = SAME.astype(np.float64)
    logits[:steps] += share * size[:steps]
    device = _report(logits.astype(np.float32), dtypes=("float32",))
    reference = Reference(_cpu(SAME, device, dtypes=("float32",)), None)
    assert decide(device, reference, "software").result == result


def test_the_noise_is_measured_against_another_precision():
    assert noise_dtype("bfloat16", "software") == "float32"
    assert noise_dtype("float16", "hardware") == "float32"
    assert noise_dtype("float32", "hardware") == "bfloat16"
    assert noise_dtype("float32", "software") is None


def test_uncompiled_on_software_cores_the_bits_must_be_equal():
    eager = {"graphs": (), "graphs_first_call": ()}
    device, reference = _case(0.0, device=eager)
    verdict = decide(device, reference, "software")
    assert (verdict.reason, verdict.warnings) == ("match", ("not_compiled",))
    device, reference = _case(0.01, device=eager)
    assert decide(device, reference, "software").reason == "mismatch"
    assert decide(device, reference, "hardware").result == "PASS"


def test_a_graph_that_was_only_interpreted_is_not_compiled():
    lost = {"fallback_ops": ("graph:decode",)}
    device, reference = _case(0.0, device=lost)
    verdict = decide(device, reference, "software")
    assert (verdict.reason, verdict.warnings) == ("match", ("not_compiled", "fallback_ops"))
    # It was taken apart before it was interpreted, which rounds otherwise than the model's own operators.
    device, reference = _case(1.0, device=lost)
    assert decide(device, reference, "software").result == "PASS"
    device, reference = _case(5.0, device=lost)
    assert decide(device, reference, "software").reason == "mismatch"
    both = (GRAPH, replace(GRAPH, name="prompt"))
    device, reference = _case(1.0, device=lost | {"graphs": both, "graphs_first_call": both})
    assert decide(device, reference, "software").warnings == ("fallback_ops",)


def test_a_longer_generation_is_held_to_its_own_length():
    device, reference = _case(0.0)
    assert decide(device, reference, "software", STEPS + 1).reason == "error"


def test_two_generations_that_differ_are_a_mismatch():
    device, reference = _case(0.0)
    device = replace(device, first_call_tokens=(*device.tokens[:-1], device.tokens[-1] + 1))
    assert decide(device, reference, "software").reason == "mismatch"


@pytest.mark.parametrize(
    ("first", "later", "count"), [(1, 0, 0), (2, 0, 0), (3, 0, 1), (1, 1, 1), (0, 1, 1), (31, 31, 60)]
)
def test_compiling_more_than_one_shape_needs_fails(first, later, count):
    graphs = {"graphs_first_call": (GRAPH,) * first, "graphs": (GRAPH,) * (first + later)}
    device, reference = _case(0.0, device=graphs)
    assert recompiles(device) == count
    verdict = decide(device, reference, "software")
    assert verdict.reason == ("recompiles" if count else "match")
    if count:
        assert verdict.error == (
            f"The first call compiled {first} graphs (a fixed shape needs at most 2), "
            f"a second one of the same shape {later} more."
        )
        assert "`softneuron explain run.py` names it" in str(verdict.hint)


def test_wrong_numbers_count_for_more_than_recompiles():
    device, reference = _case(30.0, device={"graphs": (GRAPH, GRAPH)})
    assert decide(device, reference, "software").reason == "mismatch"


def test_what_was_not_quite_right_is_said():
    device, reference = _case(0.0, device={"fallback_ops": ("aten::sort",), "graph_breaks": 2})
    verdict = decide(device, reference, "software")
    assert (verdict.result, verdict.warnings) == ("PASS", ("fallback_ops", "graph_breaks"))


def test_fewer_than_eight_different_tokens_are_a_mere_repetition():
    device, _ = _case(0.0)
    assert is_degenerate(replace(device, tokens=tuple(step % 7 for step in range(STEPS))))
    assert not is_degenerate(replace(device, tokens=tuple(step % 8 for step in range(STEPS))))


def test_one_broken_step_in_eight_is_forgiven_and_more_are_not():
    def verdict(steps: int) -> str:
        logits = SAME.copy()
        logits[:steps] += 0.1 * 14
        device = _report(logits)
        reference = Reference(_cpu(SAME, device), _cpu(SAME + NOISE, device, dtypes=("float32",)))
        return decide(device, reference, "software").result

    assert [verdict(1), verdict(4), verdict(5), verdict(17), verdict(32)] == ["PASS"] * 2 + ["FAIL"] * 3


@given(st.data())
def test_nothing_passes_with_any_part_taken_away(data):
    """Whatever single fact of a passing case is replaced by nothing, the case no longer passes, but for the
    facts that are only shown."""
    shown_only = {
        "text",
        "device",
        "cores",
        "load_s",
        "first_call_s",
        "instance",
        "versions",
        "graph_breaks",
        "parameters",
        "imported_later",
        "ended_text",
        # Of a run on one core there are none; those on several are tested below.
        "parameter_bytes_per_core",
        "graphs_per_core",
    }
    device, reference = _case(0.0)
    fields = sorted(set(Report.__dataclass_fields__) - shown_only - {"parameter_bytes", "end_tokens"})
    name = data.draw(st.sampled_from(fields))
    empty: Any = np.zeros((0, 0), np.float32) if name == "logits" else ()
    nothing = None if name in {"later_call_s", "graphs", "graphs_first_call", "peak_bytes"} else empty
    if name == "fallback_ops":
        nothing = None
    verdict = decide(replace(device, **{name: nothing}), reference, "software")
    assert verdict.result != "PASS", name


def _on_two_cores(**changes: Any) -> Verdict:
    device, reference = _case(0.0)
    half = device.parameter_bytes // 2
    split: dict[str, Any] = {
        "cores": 2,
        "parameter_bytes": 2 * half,
        "parameter_bytes_per_core": (half, half),
        "peak_bytes": (half + 10, half + 10),
        "graphs_per_core": (len(device.graphs or ()),) * 2,
    }
    return decide(replace(device, **split | changes), reference, "software")


def test_a_model_on_two_cores_passes_when_each_holds_its_share():
    assert _on_two_cores().result == "PASS"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parameter_bytes_per_core": None}, "shard_error"),
        ({"parameter_bytes_per_core": (0, 10)}, "shard_error"),
        ({"peak_bytes": (10**9,)}, "shard_error"),
        ({"peak_bytes": (10**9, 0)}, "shard_error"),
        ({"graphs_per_core": None}, "error"),
        ({"graphs_per_core": (1, 9)}, "recompiles"),
    ],
)
def test_a_model_on_two_cores_fails_when_a_core_does_not_do_its_part(changes, reason):
    verdict = _on_two_cores(**changes)
    assert (verdict.result, verdict.reason) == ("FAIL", reason)


def test_one_token_repeated_on_both_sides_is_a_match_with_a_warning_and_on_one_side_a_mismatch():
    newline = 7
    dull = SAME.copy()
    dull[:, newline] = SAME.max() + 1
    device = _report(dull)
    both = Reference(_cpu(dull, device), _cpu(dull + NOISE, device, dtypes=("float32",)))
    verdict = decide(device, both, "software")
    assert (verdict.result, verdict.reason, verdict.warnings) == ("PASS", "match", ("degenerate_text",))
    one = Reference(_cpu(SAME, device), _cpu(SAME + NOISE, device, dtypes=("float32",)))
    assert decide(device, one, "software").reason == "mismatch"
