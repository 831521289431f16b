"""Twins split over two cores, each with a process of its own: they give one core's answers, and each core
holds what the plan says. A rank that fails is named, and the next twin gets ranks that work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from trnready.plan import twin, twin_run
from trnready.plan.architectures import Architecture
from trnready.plan.shrink import shrink
from trnready.plan.twin_ranks import Ranks
from trnready.plan.twin_row import TwinRow
from trnready.plan.twin_worker import run_architecture

CAUSAL = "AutoModelForCausalLM"
ENDS_ALONE = "Transformers' plan for it splits no more than the embedding and the head"


@pytest.fixture(scope="module")
def ranks(neuron: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with pytest.MonkeyPatch.context() as patch, Ranks(2) as two:
        patch.setenv("NEURON_COMPILER_OPT_LEVEL", "-O0")
        patch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path_factory.mktemp("neff")))
        yield two


@pytest.mark.slow
def test_what_ranks_raise_is_the_outcome_and_the_next_twin_runs(ranks: Ranks):
    made = twin.of_model_type("llama", CAUSAL)
    parallel = twin.parallel(made)
    outside = twin.Parallel(parallel.layouts, {"tp_size": 3})
    outcome = twin_run.run(made, device_run=twin_run.on_cores(ranks, outside))
    assert (outcome.result, outcome.stage) == ("FAIL", "load")
    assert outcome.error is not None
    assert "world_size" in outcome.error

    row = run_architecture(Architecture("llama", "text-generation", CAUSAL), 2, ranks)
    assert (row.result, row.cores, row.parallel, row.counts) == ("PASS", 2, "tp", True)
    assert row.dtypes == ["bfloat16"]
    assert row.held_bytes == [row.planned_bytes] * 2


@pytest.mark.slow
def test_a_mixture_of_experts_is_split_in_float32(ranks: Ranks):
    row = run_architecture(Architecture("qwen3_moe", "text-generation", CAUSAL), 2, ranks)
    assert (row.result, row.dtypes, row.counts) == ("PASS", ["float32"], True)
    assert row.held_bytes == [row.planned_bytes] * 2


@pytest.mark.slow
def test_the_cpu_tells_a_wrong_split_from_a_wrong_device():
    # Gemma 3n keeps the largest of a token's MLP activations, by their mean and spread; a share has others.
    wrong = twin.of_model_type("gemma3n_text", CAUSAL, 2)
    right = twin.of_model_type("llama", CAUSAL, 2)
    parallel = twin.parallel(right)
    with Ranks(2, "cpu") as ranks:
        found = [
            twin_run.control(right, "bfloat16", ranks, parallel).score,
            twin_run.control(wrong, "float32", ranks, twin.parallel(wrong)).score,
        ]
        broken = twin_run.control(right, "bfloat16", ranks, twin.Parallel(parallel.layouts, {"tp_size": 3}))
    assert None not in found
    assert found[0] < 3
    assert found[1] > 1000
    assert broken.score is None
    assert "world_size" in str(broken.error)


@pytest.mark.parametrize(
    ("model_type", "auto_class", "why"),
    [
        ("gpt2", CAUSAL, "Transformers has no plan to split it"),
        ("lfm2", CAUSAL, ENDS_ALONE),
        ("pp_formulanet", "AutoModelForImageTextToText", ENDS_ALONE),
    ],
)
def test_what_cannot_be_split_is_not_run(model_type: str, auto_class: str, why: str):
    with Ranks(2) as idle:
        row = run_architecture(Architecture(model_type, "text-generation", auto_class), 2, idle)
        assert (row.result, row.reason, row.stage) == ("SKIPPED", "no_parallel_plan", "plan")
        assert row.error == why


def test_a_row_says_whose_fault_a_failed_split_is():
    row = TwinRow("doge", "text-generation", "FAIL", "error", "compile")
    assert row.control is None
    too = replace(row, cpu_split_error="AssertionError: ").control
    assert too is not None
    assert "ends in an error too (AssertionError): not the device's fault" in too
    assert "is as wrong (score 8.34)" in str(replace(row, cpu_split_score=8.338).control)
    # Not a number, as the file holds it.
    kept = TwinRow.from_line(replace(row, cpu_split_score=float("nan")).to_line())
    assert "is as wrong (score nan)" in str(kept.control)
    assert "the device is at fault" in str(replace(row, cpu_split_score=2.9).control)


def test_a_twin_keeps_heads_and_experts_for_the_planned_cores():
    config = {"num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 4096, "num_experts": 128}
    counts = ("num_attention_heads", "num_key_value_heads", "num_experts")
    assert [shrink(config)[0][name] for name in counts] == [8, 2, 4]
    assert [shrink(config, 8)[0][name] for name in counts] == [32, 8, 8]
    # Sixteen cores cannot share 8 heads, and neither can they share the twin's.
    assert [shrink(config, 16)[0][name] for name in counts] == [8, 2, 16]
