"""A sample of the fault table, and that the table is whole; all of it is `make faults`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.alarms import MODELS
from faults.running import Result, not_as_expected, run
from faults.table import MISMATCH, RIGHT, RIGHT_INTERPRETED, WRONG, Case, cases, unbroken

pytestmark = pytest.mark.usefixtures("neuron")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


def several(folder: Path, model: str, *faults: str) -> dict[str, list[object]]:
    got = run(Case("", "several", (model, *faults), ()), folder)
    assert got.remark, got.outcome
    told: dict[str, list[object]] = json.loads(got.remark)
    assert all(fired for _, fired, *_ in told.values()), told
    return told


def test_faults_of_one_core_are_noticed(folder):
    # nan_logits and skip_layer go through the whole of `trnready check` in its own tests.
    expected = {
        "": RIGHT_INTERPRETED,
        "wrong_kv_row": MISMATCH,
        "attention_scale": MISMATCH,
        "low_precision_weights:6": MISMATCH,
        "ignore_storage_offset": WRONG,
        "silent_cpu:operator": tuple(f"{each} (not_compiled, fallback_ops)" for each in RIGHT),
        "silent_cpu:model": ("FAIL runs_on_cpu",),
        "recompile_each_step": ("FAIL recompiles",),
        "counters_off": ("FAIL error",),
    }
    told = several(folder, "qwen3", *expected)
    assert [name for name, (outcome, *_) in told.items() if outcome not in expected[name]] == [], told


def test_faults_of_experts_are_noticed(folder):
    told = several(folder, "qwen2_moe", "", "wrong_expert", "wrong_router")
    assert [outcome for outcome, *_ in told.values()][1:] == ["FAIL mismatch"] * 2
    assert told[""][0] in RIGHT_INTERPRETED


def test_a_fault_that_never_fires_is_told_loudly_and_is_not_as_expected():
    program = "import torch; torch.ones(2, device='neuron').add(1).cpu()"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=os.environ | {"SOFTNEURON_FAULTS": "wrong_expert,hang"},
        capture_output=True,
        text=True,
    )
    assert ran.stderr.strip() == (
        "softneuron: WARNING: SOFTNEURON_FAULTS asked for wrong_expert, hang, which NEVER FIRED: "
        "this program never came to the place where the fault is."
    )
    case = Case("wrong_expert", "generate", ("qwen3",), ("PASS match",))
    assert not_as_expected([Result(case, "PASS match", None, "", fired=False)])
    assert not not_as_expected([Result(case, "PASS match", None, "", fired=True)])


def test_the_table_and_the_docs_hold_every_fault_mode():
    listed = subprocess.run(
        [sys.executable, "-c", "from softneuron.diagnostics.faults import FAULTS; print(*FAULTS)"],
        capture_output=True,
        text=True,
        check=True,
    )
    modes = set(listed.stdout.split())
    assert {case.name for case in cases()} == modes
    assert not any(case.fault for case in unbroken())
    docs = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
    assert [mode for mode in sorted(modes) if f"| `{mode}" not in docs] == []


def test_the_docs_count_the_models_of_the_false_alarms():
    root = Path(__file__).resolve().parents[2]
    count = len(MODELS)
    assert len(set(MODELS)) == count
    for name in ("Makefile", "docs/faults.md"):
        assert f"the unbroken device over {count} models, 3 prompts, 2 dtypes" in (root / name).read_text()
    sentence = (
        f"{6 * count} of the\nright ones are SmolLM2 and {count - 1} random models × 3 prompts × 2 dtypes"
    )
    assert sentence in (root / "docs" / "results.md").read_text()
