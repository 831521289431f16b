"""The judge: sound English passes, what broken devices write does not, and what was measured is kept."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.hub import packaged
from trnready.run.report import Graph, Report
from trnready.verdict import judged, rule
from trnready.verdict.calibration import texts
from trnready.verdict.compare import greedy
from trnready.verdict.judge import Judgement, NoJudge, fault_of, judge_text, repetition

SOUND = "The train was late again, so I read the whole newspaper and spoke with the man who sat beside me."
MEASURED = Judgement("a-judge", 20, 50.0, 0.1, "en", 0.99, None)


def test_sound_english_is_sound():
    judgement = judge_text(SOUND)
    assert judgement.sound
    assert (judgement.language, judgement.repetition, judgement.words) == ("en", 0.0, 20)
    assert 5 < judgement.perplexity < 100
    assert judgement.english > 0.9
    row = judgement.to_row()
    assert (row.model, row.language) == ("HuggingFaceTB/SmolLM2-135M-Instruct", "en")
    assert (row.perplexity, row.repetition) == (judgement.perplexity, 0.0)


@pytest.mark.parametrize(
    ("text", "because"),
    [
        (
            "again so was man I beside whole me the late spoke read newspaper train sat The with who the",
            "perplexity",
        ),
        ("the river the river the river the river the river the river the river", "repeats what came before"),
        (
            "Der Zug hatte wieder Verspätung, also las ich die ganze Zeitung und sprach mit ihm.",
            "language is de",
        ),
        ("The train", "it has 2 words"),
        ("", "it has 0 words"),
        ("!" * 200, "it has 0 words"),
    ],
)
def test_what_broken_devices_write_is_not(text, because):
    judgement = judge_text(text)
    assert not judgement.sound
    assert because in str(judgement.because)


@pytest.mark.parametrize(
    "changes",
    [
        {"perplexity": math.nan},
        {"perplexity": math.inf},
        {"repetition": math.nan},
        {"english": math.nan},
        {"english": 0.0, "language": None},
        {"words": 0},
    ],
)
def test_what_is_not_known_is_wrong(changes):
    assert fault_of(MEASURED) is None
    assert fault_of(replace(MEASURED, **changes)) is not None


@given(st.lists(st.sampled_from(["a", "B", "c", "."]), max_size=30))
def test_repetition_is_a_share_that_saying_it_twice_raises(words):
    assert 0 <= repetition(words) < 1
    if len(words) >= 3:
        assert repetition(words + words) >= repetition(words)
        assert repetition(words + words) > 0


def test_calibration_has_six_kinds_of_broken_texts_and_shares_nothing_with_the_tuning():
    calibration, tuning = texts("calibration"), texts("tuning")
    kinds = [each.kind for each in calibration]
    assert (kinds.count("sound"), len(kinds)) == (100, 200)
    assert len(set(kinds)) - 1 >= 6
    passages = {each.text for each in calibration if each.kind in ("sound", "another language")}
    assert not passages & {each.text for each in tuning}
    assert calibration == texts("calibration")


def test_without_its_model_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(packaged, "PACKAGE", "no_such_package")
    with pytest.raises(NoJudge, match="is not on this machine; `trnready fetch smollm2` gets it"):
        judge_text(SOUND)
    verdict, judgement = judged.decide(_report(SOUND), "software")
    assert (verdict.result, verdict.reason, judgement) == ("SKIPPED", "reference_failed", None)
    assert "`trnready fetch smollm2`" in str(verdict.error)


GRAPH = Graph(name="decode", nodes=10, compile_s=1.5, cache_hit=False, neff_module="MODULE_1")


def _report(text: str, **changes: Any) -> Report:
    logits = np.random.default_rng(0).normal(0, 4, (32, 50)).astype(np.float32)
    tokens = greedy(logits, (3,))
    facts: dict[str, Any] = {
        "device": "neuron",
        "dtypes": ("bfloat16",),
        "cores": 1,
        "input_tokens": (5, 6),
        "tokens": tokens,
        "first_call_tokens": tokens,
        "end_tokens": (3,),
        "text": text,
        "logits": logits,
        "load_s": 1.0,
        "first_call_s": 2.0,
        "later_call_s": 1.0,
        "step_s": tuple(0.1 * step for step in range(32)),
        "parameter_devices": ("neuron:0",),
        "parameter_bytes": 1000,
        "graphs_first_call": (GRAPH,),
        "graphs": (GRAPH,),
        "graph_breaks": 0,
        "fallback_ops": (),
        "instance": "trn2.3xlarge",
        "peak_bytes": (2000, 1800, 0, 0),
        "versions": {"torch_neuronx": "soft-0.1.0"},
    }
    return Report(**facts | changes)


def test_a_sharded_run_is_judged_by_its_text():
    verdict, judgement = judged.decide(_report(SOUND), "software")
    assert (verdict.result, verdict.reason) == ("PASS", "judged")
    assert judgement is not None
    verdict, judgement = judged.decide(_report("river the the the was was was of of it"), "software")
    assert (verdict.result, verdict.reason) == ("FAIL", "garbled_text")
    assert judgement is not None
    assert "perplexity is" in str(verdict.error)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"first_call_tokens": (1,) * 32}, "mismatch"),
        ({"graphs": (GRAPH, GRAPH)}, "recompiles"),
        ({"parameter_devices": ("cpu",)}, "runs_on_cpu"),
        ({"graphs": None}, "error"),
        ({"cores": 2, "parameter_bytes_per_core": (1000, 0)}, "shard_error"),
        ({"logits": np.full((32, 50), np.nan, np.float32)}, "non_finite"),
    ],
)
def test_a_sound_text_does_not_make_up_for_anything_else(changes, reason):
    verdict, judgement = judged.decide(_report(SOUND, **changes), "software")
    assert (verdict.result, verdict.reason, judgement) == ("FAIL", reason, None)
    if reason == "recompiles":
        assert verdict.error == (
            "The first call compiled 1 graphs (a fixed shape needs at most 2), "
            "a second one of the same shape 1 more."
        )
        assert verdict.hint == rule.STATIC
