"""The rule for embeddings and latents: what passes, and that nothing passes of which a part is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.run.report import ARRAYS, ArrayReport, Graph
from trnready.verdict.arrays import ArrayReference, decide, likeness, without_reference

GRAPH = Graph(name="model", nodes=10, compile_s=1.5, cache_hit=False, neff_module="MODULE_1")
SHAPES = {"embeddings": (8, 64), "latents": (8, 64), "image": (1, 192)}
SIZE = {"embeddings": 1.0, "latents": 1.0, "image": 0.2}
OUTPUTS = ("embeddings", "latents")


def _random(name: str, seed: int, size: float = 1.0) -> np.ndarray:
    values = np.random.default_rng([seed, len(name)]).normal(0, size * SIZE[name], SHAPES[name])
    return values.astype(np.float32)


SAME = {name: _random(name, 0) for name in SHAPES} | {"image": _random("image", 0) + np.float32(0.5)}


def _report(arrays: dict[str, np.ndarray], **changes: Any) -> ArrayReport:
    facts: dict[str, Any] = {
        "device": "neuron",
        "dtypes": ("bfloat16",),
        "cores": 1,
        "text": "",
        "load_s": 1.0,
        "first_call_s": 2.0,
        "later_call_s": 1.0,
        "parameter_devices": ("neuron:0",),
        "parameter_bytes": 1000,
        "graphs_first_call": (GRAPH,),
        "graphs": (GRAPH,),
        "graph_breaks": 0,
        "fallback_ops": (),
        "instance": "trn2.3xlarge",
        "peak_bytes": (2000, 0, 0, 0),
        "versions": {},
        "arrays": arrays,
        "repeats": True,
    }
    return ArrayReport(**facts | changes)


def _case(output: str, distance: float, **device: Any) -> tuple[ArrayReport, ArrayReference]:
    """A device whose numbers are `distance` times the noise away from the CPU's."""
    names = ARRAYS[output]  # type: ignore[index]
    same = {name: SAME[name] for name in names}
    ours = {name: same[name] + _random(name, 2, 0.01 * distance) for name in names}
    other = {name: same[name] + _random(name, 1, 0.01) for name in names}
    cpu = {"parameter_devices": ("cpu",), "graphs": None, "graphs_first_call": None}
    reference = ArrayReference(_report(same, **cpu), _report(other, **cpu, dtypes=("float32",)))
    return _report(ours, **device), reference


def _decide(
    output: Any, device: ArrayReport, reference: ArrayReference | None, kind: Any = "software"
) -> Any:
    return decide(device, reference, output, kind, graphs=1)


@pytest.mark.parametrize("output", OUTPUTS)
@given(distance=st.floats(0, 20))
def test_every_row_must_be_within_three_times_the_noise(output, distance):
    device, reference = _case(output, distance)
    verdict = _decide(output, device, reference)
    assert verdict.comparison is not None
    if distance < 2:
        assert verdict.result == "PASS"
    if distance > 4:
        assert (verdict.result, verdict.reason) == ("FAIL", "mismatch")
    assert len(verdict.comparison.ratios) == 8


def test_one_wrong_sentence_of_eight_fails():
    device, reference = _case("embeddings", 0.0)
    wrong = device.arrays["embeddings"].copy()
    wrong[5] += np.float32(0.1)
    verdict = _decide("embeddings", replace(device, arrays={"embeddings": wrong}), reference)
    assert verdict.reason == "mismatch"
    assert "sentence 5" in verdict.error


def test_right_latents_with_a_wrong_image_fail():
    device, reference = _case("latents", 0.0)
    arrays = device.arrays | {"image": device.arrays["image"][:, ::-1].copy()}
    verdict = _decide("latents", replace(device, arrays=arrays), reference)
    assert verdict.reason == "mismatch"
    assert "image" in verdict.error


def test_the_cosine_orders_the_sentences():
    embeddings = np.array([[2, 0], [1, 1], [0, 3], [-1, 0]], np.float32)
    assert likeness(embeddings) == pytest.approx([2**-0.5, 0, -1])


def test_another_order_within_noise_is_told_apart():
    device, reference = _case("embeddings", 0.0)
    assert _decide("embeddings", device, reference).reason == "match"
    near = SAME["embeddings"].copy()
    near[1] = near[2] + np.float32(1e-3)
    far = near.copy()
    far[1], far[2] = near[2], near[1]
    other = replace(reference.other, arrays={"embeddings": near + _random("embeddings", 1, 0.01)})
    same = replace(reference.same, arrays={"embeddings": near})
    verdict = _decide("embeddings", replace(device, arrays={"embeddings": far}), ArrayReference(same, other))
    assert verdict.reason in ("match", "match_within_noise")
    order = [np.argsort(likeness(each)).tolist() for each in (near, far)]
    assert (verdict.reason == "match") == (order[0] == order[1])


def test_another_pixel_within_noise_is_told_apart():
    device, reference = _case("latents", 0.0)
    assert _decide("latents", device, reference).reason == "match"
    device, reference = _case("latents", 0.9)
    assert _decide("latents", device, reference).reason == "match_within_noise"


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_number_may_be_nan_or_infinite(output, bad):
    device, reference = _case(output, 0.0)
    for name in ARRAYS[output]:
        wrong = device.arrays[name].copy()
        wrong[0, 3] = bad
        broken = replace(device, arrays=device.arrays | {name: wrong})
        for given_reference in (reference, None):
            assert _decide(output, broken, given_reference).reason == "non_finite"


@pytest.mark.parametrize("output", OUTPUTS)
def test_uncompiled_on_software_cores_the_bits_must_be_equal(output):
    eager = {"graphs": (), "graphs_first_call": ()}
    device, reference = _case(output, 0.0, **eager)
    verdict = _decide(output, device, reference)
    assert (verdict.reason, verdict.warnings) == ("match", ("not_compiled",))
    device, reference = _case(output, 0.01, **eager)
    assert _decide(output, device, reference).reason == "mismatch"
    assert _decide(output, device, reference, "hardware").result == "PASS"


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_graph_that_was_only_interpreted_is_not_compiled(output):
    device, reference = _case(output, 0.9, fallback_ops=("graph:model",))
    verdict = _decide(output, device, reference)
    assert (verdict.result, verdict.warnings) == ("PASS", ("not_compiled", "fallback_ops"))


def test_a_second_graph_is_one_too_many():
    device, reference = _case("embeddings", 0.0, graphs=(GRAPH, GRAPH), graphs_first_call=(GRAPH, GRAPH))
    assert _decide("embeddings", device, reference).reason == "recompiles"
    assert decide(device, reference, "embeddings", "software", graphs=2).result == "PASS"


@pytest.mark.parametrize(("share", "result"), [(0.9e-4, "PASS"), (1.2e-4, "FAIL")])
def test_float32_on_software_cores_may_be_off_by_a_ten_thousandth(share, result):
    device, reference = _case("embeddings", 0.0, dtypes=("float32",))
    size = np.sqrt(np.mean(np.square(SAME["embeddings"]), axis=-1, keepdims=True))
    device = replace(device, arrays={"embeddings": (SAME["embeddings"] + share * size).astype(np.float32)})
    alone = ArrayReference(replace(reference.same, dtypes=("float32",)), None)
    assert _decide("embeddings", device, alone).result == result
    assert _decide("embeddings", device, alone, "hardware").reason == "reference_failed"


DAMAGED_DEVICES = {
    "nothing": {"arrays": {"embeddings": np.zeros((0, 64), np.float32)}},
    "all zero": {"arrays": {"embeddings": np.zeros((8, 64), np.float32)}},
    "one sentence": {"arrays": {"embeddings": SAME["embeddings"][:1]}},
    "no second call": {"later_call_s": None},
    "no count of graphs": {"graphs": None, "graphs_first_call": None},
    "graphs that vanish": {"graphs_first_call": (GRAPH, GRAPH)},
    "no count of fallbacks": {"fallback_ops": None},
    "no memory counter": {"peak_bytes": None},
}


@pytest.mark.parametrize("change", DAMAGED_DEVICES.values(), ids=DAMAGED_DEVICES.keys())
def test_a_report_that_is_not_whole_never_passes(change):
    device, reference = _case("embeddings", 0.0)
    device = replace(device, **change)
    verdict = _decide("embeddings", device, reference)
    assert (verdict.result, verdict.reason) == ("FAIL", "error")
    assert without_reference(device, "embeddings", "software") == verdict


@pytest.mark.parametrize(
    "change", [{"parameter_devices": ("cpu",)}, {"parameter_devices": ()}, {"peak_bytes": (999, 0)}]
)
def test_a_model_that_is_not_on_the_device_fails(change):
    device, reference = _case("latents", 0.0)
    assert _decide("latents", replace(device, **change), reference).reason == "runs_on_cpu"


def test_two_calls_that_differ_are_a_mismatch():
    device, reference = _case("latents", 0.0)
    assert _decide("latents", replace(device, repeats=False), reference).reason == "mismatch"


DAMAGED_REFERENCES = {
    "nan": {"arrays": {"embeddings": np.full((8, 64), np.nan, np.float32)}},
    "another shape": {"arrays": {"embeddings": SAME["embeddings"][:, :-1]}},
    "another dtype": {"dtypes": ("float16",)},
    "on the device": {"parameter_devices": ("neuron:0",)},
}


@pytest.mark.parametrize("change", DAMAGED_REFERENCES.values(), ids=DAMAGED_REFERENCES.keys())
@pytest.mark.parametrize("which", ["same", "other"])
def test_a_reference_that_cannot_be_compared_is_no_verdict(change, which):
    device, reference = _case("embeddings", 0.0)
    if which == "other" and "dtypes" in change:
        change = {"dtypes": reference.same.dtypes}
    damaged = replace(reference, **{which: replace(getattr(reference, which), **change)})
    for case in (damaged, None, replace(reference, other=None)):
        assert _decide("embeddings", device, case).reason == "reference_failed"
