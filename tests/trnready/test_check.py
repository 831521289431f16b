"""The whole path, as a user runs it: the command in a process of its own, from a checkpoint to a row."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from trnready.results import dataset, journal
from trnready.results.row import SCHEMA_VERSION, Row

pytestmark = pytest.mark.usefixtures("neuron")


CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}:"


@dataclass(frozen=True)
class Checked:
    """What one call of the command came to."""

    status: int
    shown: str
    said: str
    results: Path

    @property
    def row(self) -> Row:
        (row,) = dataset.read(self.results)
        return row

    @property
    def folder(self) -> Path:
        (folder,) = (self.results / "runs").iterdir()
        return folder


def _command(model: Path | str, results: Path, *options: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "trnready",
        "check",
        str(model),
        "--results",
        str(results),
        *options,
    ]


def _environment(results: Path, **settings: str) -> dict[str, str]:
    # -O0 runs graphs without generating code, which takes no time; the cache is the test's own.
    fast = {
        "NEURON_COMPILER_OPT_LEVEL": "-O0",
        "TORCH_NEURONX_NEFF_CACHE_DIR": str(results.with_name(f"{results.name}-neff")),
        "TRNREADY_REFERENCES": str(results.with_name(f"{results.name}-references")),
        "COLUMNS": "200",
    }
    return os.environ | fast | settings


def _check(model: Path | str, results: Path, *options: str, **settings: str) -> Checked:
    ran = subprocess.run(
        _command(model, results, *options),
        env=_environment(results, **settings),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    return Checked(ran.returncode, ran.stdout, ran.stderr, results)


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory, tiny_qwen3: Path) -> Checked:
    return _check(tiny_qwen3, tmp_path_factory.mktemp("passed") / "results")


def test_a_right_model_passes(passed, tiny_qwen3):
    assert passed.status == 0, passed.shown + passed.said
    row = passed.row
    assert (row.result, row.stage, row.error, row.warnings) == (
        "PASS",
        "verify",
        None,
        ["not_compiled"],
    )
    assert row.reason in ("match", "match_within_noise")
    assert (row.model_id, row.task, row.model_type) == ("acme/tiny-qwen3", "text-generation", "qwen3")
    assert row.revision is not None
    assert row.revision.startswith("local-")
    assert (row.dtype, row.neuron_cores, row.checkpoint_kind) == ("bfloat16", 1, "real")
    assert (row.device_kind, row.instance) == ("software", "trn2.3xlarge")
    assert row.neuronx_cc.startswith("soft-")
    assert str(tiny_qwen3.parent) not in row.model_id


def test_the_evidence_is_kept(passed):
    row = passed.row
    assert row.tokens_device is not None
    assert row.tokens_reference is not None
    assert row.score_steps is not None
    assert (len(row.tokens_device), len(row.tokens_reference), len(row.score_steps)) == (32, 32, 32)
    assert row.score is not None
    assert 0 <= row.score <= 3
    assert row.noise is not None
    assert row.noise > 0
    assert (row.first_divergence is None) == (row.reason == "match")
    assert row.text
    assert row.prompt == "The capital of France is"


def test_the_device_is_shown_to_have_done_the_work(passed):
    row = passed.row
    # At -O0 the graph is interpreted; SmolLM2, below, has a compiled one.
    assert (row.graphs, row.recompiles, row.graph_breaks, row.fallback_ops) == (0, 0, 0, [])
    assert row.peak_memory_bytes is not None
    assert row.bytes_per_core == [row.peak_memory_bytes]
    facts = json.loads((passed.folder / "device/report.json").read_text())
    assert row.peak_memory_bytes >= facts["parameter_bytes"]
    assert row.tokens_per_s is not None
    assert row.wall_time_s is not None
    assert row.load_s is not None
    assert row.wall_time_s > row.load_s > 0


def test_the_script_in_the_row_is_the_one_that_ran(passed, tiny_qwen3):
    source = (passed.folder / "run.py").read_text()
    assert passed.row.run_py == source
    assert f'MODEL = "{tiny_qwen3}"' in source
    assert sorted(path.suffix for path in passed.folder.iterdir() if path.is_file()) == [
        ".log",
        ".log",
        ".log",
        ".py",
    ]
    assert not list(passed.folder.rglob("*.safetensors"))


def test_the_dataset_reads_as_the_article_writes_it(passed):
    df = pd.read_parquet(passed.results / "data")
    columns = ["neuronx_cc", "library", "library_version", "neuron_cores", "result"]
    found = df[df.model_id == "acme/tiny-qwen3"][columns]
    assert found.values.tolist() == [
        [passed.row.neuronx_cc, "transformers", passed.row.library_version, 1, "PASS"]
    ]


def test_the_table_says_what_was_found(passed):
    row = passed.row
    for expected in (
        f"PASS {row.reason}",
        "software NeuronCores, not Trainium",
        f"{row.wall_time_s:.1f} s",
        str(passed.folder / "run.py"),
        str(passed.folder / "run.log"),
    ):
        assert expected in passed.shown
    assert [line.split("] ")[1] for line in passed.said.splitlines()] == [
        "resolve",
        "plan",
        "load",
        "compile (the first call, tracing included)",
        "run (the second call)",
        "reference on the CPU, bfloat16",
        "reference on the CPU, float32",
        "verify",
        "done",
    ]


TIMES = {
    "wall_time_s",
    "load_s",
    "compile_s",
    "first_token_s",
    "tokens_per_s",
    "tested_at",
    "run_id",
    "log_tail",
}


def test_once_more_gives_the_same_row_but_for_times_and_asks_the_cpu_no_more(passed, tiny_qwen3, tmp_path):
    results = tmp_path / "results"
    kept = str(passed.results.with_name("results-references"))
    again = _check(tiny_qwen3, results, TRNREADY_REFERENCES=kept)
    first, second = passed.row.to_json(), again.row.to_json()
    assert {name for name in first if first[name] != second[name]} <= TIMES
    assert sorted(path.name for path in again.folder.glob("*.log")) == ["run.log"]


def _record(results: Path, row: Row, **changes: Any) -> None:
    """Record an older run of the same model in the same way."""
    older = {"tested_at": row.tested_at - timedelta(days=1), "run_id": "older"}
    journal.write(results, replace(row, **older | changes))


def test_a_changed_result_is_run_twice_and_a_long_generation_is_judged_too(passed, tiny_qwen3, tmp_path):
    results = tmp_path / "results"
    _record(results, passed.row, dtype="float32", result="FAIL", reason="mismatch", error="It was wrong.")
    checked = _check(tiny_qwen3, results, "--dtype", "float32", "--long", "40", **UNCOMPILED)
    assert checked.status == 0, checked.shown + checked.said
    row = checked.row
    assert (row.result, row.flaky, row.long_tokens) == ("PASS", False, 40)
    assert row.long_reason in ("match", "match_within_noise")
    stages = [line.split("] ")[1] for line in checked.said.splitlines()]
    assert stages.count("run (the second call)") == 3
    assert stages.count("reference on the CPU, float32") == 2
    assert f"40 tokens: {row.long_reason}" in checked.shown


def test_a_time_limit_below_what_the_last_pass_took_decides_nothing(passed, tiny_qwen3, tmp_path):
    results = tmp_path / "results"
    _record(results, passed.row, wall_time_s=90.0)
    checked = _check(tiny_qwen3, results, "--timeout", "1")
    assert checked.status == 2
    assert "still running after 1 s, but the last PASS took 90 s: nothing was recorded" in checked.said
    assert checked.row.run_id == "older"
    assert list((results / "runs").iterdir()) == []


@pytest.mark.slow
def test_a_sharded_model_larger_than_the_cpu_may_hold_is_read_by_the_judge(tiny_qwen3, tmp_path):
    options = ("--cores", "2", "--reference-memory", "100KB")
    checked = _check(tiny_qwen3, tmp_path / "results", *options, **UNCOMPILED)
    # Random weights write no English.
    assert checked.status == 1, checked.shown + checked.said
    row = checked.row
    assert (row.result, row.reason, row.parallelism) == ("FAIL", "garbled_text", "tp=2")
    assert row.judge is not None
    assert row.judge.perplexity is not None
    assert row.score is None
    assert row.bytes_per_core is not None
    assert len(row.bytes_per_core) == 2
    assert "reference on the CPU" not in checked.said


def test_float32_is_judged_without_a_second_reference(tiny_qwen3, tmp_path):
    checked = _check(tiny_qwen3, tmp_path / "results", "--dtype", "float32", "--prompt", "Bread is")
    assert checked.status == 0, checked.shown + checked.said
    assert (checked.row.dtype, checked.row.prompt) == ("float32", "Bread is")
    assert not (checked.folder / "cpu-bfloat16").exists()


def test_a_row_run_again_is_the_same_but_for_times(passed, tmp_path):
    results = shutil.copytree(passed.results, tmp_path / "results")
    ran = subprocess.run(
        [sys.executable, "-m", "trnready", "repeat", passed.row.run_id, "--results", str(results), "--json"],
        env=_environment(passed.results),
        capture_output=True,
        text=True,
        timeout=900,
    )
    told = json.loads(ran.stdout)
    assert (ran.returncode, told["outcome"], told["circumstances"]) == (0, {}, {}), ran.stdout + ran.stderr
    (again,) = dataset.read(results)
    assert (again.run_id, again.run_py) == (told["after"]["run_id"], passed.row.run_py)
    assert again.run_id != passed.row.run_id


UNCOMPILED = {"TORCHDYNAMO_DISABLE": "1"}
"""Tracing a graph takes as long as all the rest; what is no matter of graphs does without."""

FAULTS = [("nan_logits", "non_finite", UNCOMPILED), ("skip_layer:1", "mismatch", {})]


@pytest.mark.parametrize(("fault", "reason", "settings"), FAULTS)
def test_a_broken_device_fails(tiny_qwen3, tmp_path, fault, reason, settings):
    checked = _check(tiny_qwen3, tmp_path / "results", SOFTNEURON_FAULTS=fault, **settings)
    assert checked.status == 1
    assert (checked.row.result, checked.row.reason, checked.row.stage) == ("FAIL", reason, "verify")
    assert checked.row.error is not None
    assert checked.row.flaky is False
    assert f"FAIL {reason}" in checked.shown


def test_on_the_cpu_nothing_passes(tiny_qwen3, tmp_path):
    checked = _check(tiny_qwen3, tmp_path / "results", "--device", "cpu")
    assert checked.status == 1
    assert (checked.row.result, checked.row.reason) == ("FAIL", "runs_on_cpu")


def test_without_a_device_it_is_said(tiny_qwen3, tmp_path):
    checked = _check(tiny_qwen3, tmp_path / "results", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert checked.status == 2
    assert checked.said.splitlines()[-1].startswith("trnready: there is no neuron device here")
    assert dataset.read(checked.results) == []
    assert not list((checked.results / "runs").iterdir())


@pytest.mark.slow
def test_a_model_that_only_repeats_itself_is_asked_again_and_then_warned_of(tmp_path, save_tiny_qwen3):
    folder = save_tiny_qwen3(tmp_path / "dull", std=0.01, chat_template=CHAT)
    checked = _check(folder, tmp_path / "results")
    assert checked.status == 0, checked.shown + checked.said
    assert checked.row.warnings == ["not_compiled", "degenerate_text"]
    assert [line.split("] ")[1] for line in checked.said.splitlines()].count("load") == 3
    assert checked.row.run_py is not None
    assert "apply_chat_template" in checked.row.run_py


def test_a_device_that_is_too_small_is_out_of_memory(tiny_qwen3, tmp_path):
    checked = _check(tiny_qwen3, tmp_path / "results", "--cores", "1", SOFTNEURON_HBM_PER_CORE="64KiB")
    assert checked.status == 1
    assert (checked.row.reason, checked.row.stage) == ("out_of_memory", "load")
    assert checked.row.hint is not None
    assert checked.row.log_tail is not None
    assert "OutOfMemoryError" in checked.row.log_tail
    assert "Traceback" not in checked.shown


def test_one_that_runs_out_of_memory_is_split_over_the_next_number_of_cores(tiny_qwen3, tmp_path):
    checked = _check(tiny_qwen3, tmp_path / "results", SOFTNEURON_HBM_PER_CORE="180KiB")
    assert checked.status == 0, checked.shown + checked.said
    one, two = sorted(dataset.read(checked.results), key=lambda row: row.neuron_cores or 0)
    assert (one.neuron_cores, one.reason, one.parallelism) == (1, "out_of_memory", None)
    assert (two.neuron_cores, two.result, two.parallelism) == (2, "PASS", "tp=2")
    assert two.bytes_per_core is not None
    assert len(two.bytes_per_core) == 2
    assert all(0 < each <= 180 * 1024 for each in two.bytes_per_core)
    assert (two.graphs, two.recompiles, two.fallback_ops) == (0, 0, [])
    assert two.plan is not None
    assert json.loads(two.plan)["distributed"] == {"tp_size": 2}
    # python3 run.py is all it takes: the script that was recorded starts its ranks itself.
    assert two.run_py is not None
    assert "torch.distributed.run" in two.run_py
    assert 'DISTRIBUTED = {"tp_size": 2}' in two.run_py
    assert one.run_py is not None
    assert "distributed" not in one.run_py


def test_cores_that_cannot_share_a_model_are_refused_before_anything_is_loaded(tiny_qwen3, tmp_path):
    checked = _check(tiny_qwen3, tmp_path / "results", "--cores", "4")
    assert checked.status == 2
    assert (checked.row.result, checked.row.reason, checked.row.stage) == (
        "SKIPPED",
        "no_parallel_plan",
        "plan",
    )
    assert checked.row.error == (
        "4 cores cannot share it: its 2 KV heads (model.layers.*.self_attn.k_proj) do not divide by 4. "
        "Of what Trainium has, it runs on 1, 2."
    )


@pytest.mark.slow
def test_a_mixture_of_experts_is_split_by_its_experts(tmp_path):
    tiny = Path(__file__).parent / "script" / "tiny.py"
    subprocess.run([sys.executable, tiny, tmp_path, "moe"], check=True, capture_output=True)
    # In float32: random weights route near ties, which rounding in bfloat16 may flip on either side.
    split = ("--cores", "2", "--parallelism", "ep", "--dtype", "float32")
    checked = _check(tmp_path / "moe", tmp_path / "results", *split)
    assert checked.status == 0, checked.shown + checked.said
    row = checked.row
    assert (row.result, row.parallelism, row.recompiles, row.fallback_ops) == ("PASS", "ep=2", 0, [])
    assert row.run_py is not None
    assert 'DISTRIBUTED = {"tp_size": 2, "ep_size": 2}' in row.run_py
    assert row.plan is not None
    held = {size["cores"]: size["weight_bytes"] for size in json.loads(row.plan)["sizes"]}
    whole = sum(each.stat().st_size for each in (tmp_path / "moe").glob("*.safetensors")) * 2
    assert held[2] < 0.6 * whole
    assert row.bytes_per_core is not None
    assert all(held[2] <= each < whole for each in row.bytes_per_core)


def test_a_parallelism_that_transformers_has_no_plan_for_is_refused(tiny_qwen3, tmp_path):
    checked = _check(tiny_qwen3, tmp_path / "results", "--cores", "2", "--parallelism", "ep")
    assert checked.status == 2
    row = checked.row
    assert (row.result, row.reason, row.stage) == ("SKIPPED", "no_parallel_plan", "plan")
    assert row.error == "Transformers has no expert-parallel plan for qwen3 models."


@pytest.mark.slow
def test_cores_that_keep_their_own_part_of_a_sum_do_not_pass(tiny_qwen3, tmp_path):
    checked = _check(tiny_qwen3, tmp_path / "results", "--cores", "2", SOFTNEURON_FAULTS="garbled_text")
    assert checked.status == 1, checked.shown + checked.said
    assert (checked.row.result, checked.row.reason) == ("FAIL", "mismatch")
    assert checked.row.parallelism == "tp=2"


def test_a_time_limit_ends_in_a_row(tiny_qwen3, tmp_path):
    checked = _check(tiny_qwen3, tmp_path / "results", "--timeout", "1")
    assert checked.status == 1
    assert (checked.row.reason, checked.row.error) == ("timeout", "Still running after 1 s.")


def test_a_checkpoint_that_the_cpu_cannot_run_either_is_not_held_against_the_device(tiny_qwen3, tmp_path):
    folder = shutil.copytree(tiny_qwen3, tmp_path / "broken")
    (folder / "tokenizer.json").write_text('{"broken": true}')
    checked = _check(folder, tmp_path / "results")
    assert checked.status == 2
    assert (checked.row.result, checked.row.reason) == ("SKIPPED", "reference_failed")
    assert checked.row.error is not None
    assert checked.row.error.startswith("The CPU cannot run it either: ")


def _strange(tiny_qwen3: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(tiny_qwen3, tmp_path / "acme--strange")
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "strange9"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_model_that_transformers_does_not_know_is_skipped_with_a_row(tiny_qwen3, tmp_path):
    checked = _check(_strange(tiny_qwen3, tmp_path), tmp_path / "results")
    assert checked.status == 2
    row = checked.row
    assert (row.result, row.reason, row.stage) == ("SKIPPED", "unsupported_architecture", "resolve")
    assert row.model_id == "acme/strange"
    assert not (tmp_path / "results/runs").exists()


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("tiny", ("--task", "text-to-image", "--long", "512"), "text-to-image generates no tokens"),
        ("tiny", ("--reference-memory", "much"), "'much' is no amount of memory"),
        ("tiny", ("--memory", "0"), "'0' is no memory at all"),
        ("tiny", ("--python", "/no/python"), "/no/python is no interpreter to test with: No such file"),
        ("tiny", ("--python", "/"), "/ is no interpreter to test with: Permission denied"),
        ("tiny", ("--python", "true"), "/true is no interpreter to test with: it does not run Python"),
        ("/no/such/folder", (), "/no/such/folder does not exist."),
        ("/", (), "/ is no checkpoint: it has no config.json."),
        ("tiny", ("--task", "cooking"), "there is no test for the task 'cooking'"),
    ],
)
def test_what_cannot_be_tested_is_one_sentence_and_no_row(tmp_path, model, options, message):
    checked = _check(model, tmp_path / "results", *options)
    assert checked.status == 2
    sentences = [line for line in checked.said.splitlines() if line.startswith("trnready: ")]
    assert len(sentences) == 1
    assert message in sentences[0]
    assert dataset.read(checked.results) == []


def test_results_that_cannot_be_written_are_said_before_anything_runs(tiny_qwen3, tmp_path):
    (tmp_path / "file").write_text("in the way")
    checked = _check(tiny_qwen3, tmp_path / "file/results")
    assert checked.status == 2
    assert checked.said.startswith("trnready: cannot write results to ")
    assert len(checked.said.splitlines()) == 1


def test_results_of_a_newer_trnready_are_left_alone_and_the_row_is_not_lost(tiny_qwen3, tmp_path, make_row):
    results = tmp_path / "results"
    entry = journal.write(results, replace(make_row(), run_id="newer"))
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"schema_version": SCHEMA_VERSION + 1}))
    before = entry.read_bytes()
    checked = _check(_strange(tiny_qwen3, tmp_path), results)
    assert checked.status == 2
    assert "upgrade trnready" in checked.said.splitlines()[-1]
    assert entry.read_bytes() == before
    rows = [json.loads(path.read_text()) for path in journal.entries(results) if path != entry]
    rows += [row.to_json() for path in dataset.data_files(results) for row in dataset.read_file(path)]
    assert [row["reason"] for row in rows] == ["unsupported_architecture"]


def _wait(condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("waited two minutes in vain")


def _processes_in(folder: Path) -> list[int]:
    """The processes whose working folder is below this one: the model under test and its children."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                inside = os.readlink(process / "cwd").startswith(str(folder))
            except OSError:
                continue
            if inside:
                found.append(int(process.name))
    return found


def _start(tiny_qwen3: Path, results: Path) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        _command(tiny_qwen3, results, "--device", "cpu"),
        env=_environment(results),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell that started the tests in the background has told them, and so their children, to ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    _wait(lambda: any(results.glob("runs/*/device/phase")))
    return started


def test_a_model_killed_in_mid_run_is_a_crash(tiny_qwen3, tmp_path):
    started = _start(tiny_qwen3, tmp_path / "results")
    for process in _processes_in(tmp_path / "results"):
        os.kill(process, signal.SIGKILL)
    shown, _ = started.communicate(timeout=120)
    assert started.returncode == 1, shown
    (row,) = dataset.read(tmp_path / "results")
    assert (row.reason, row.error) == ("crash", "Killed from outside by SIGKILL.")
    # The second run was left alone, and ended as every run on the CPU does.
    assert row.flaky is True
    assert row.hint is not None
    assert row.hint.startswith("Of two runs in fresh processes the other ended as FAIL runs_on_cpu.")
    assert "two runs in fresh processes disagree" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_hand_it_leaves_nothing(tiny_qwen3, tmp_path, number):
    started = _start(tiny_qwen3, tmp_path / "results")
    started.send_signal(number)
    shown, _ = started.communicate(timeout=120)
    assert started.returncode == 130, shown
    assert shown.splitlines()[-1].startswith("trnready: stopped; this run was not recorded")
    assert not list((tmp_path / "results/runs").iterdir())
    assert dataset.read(tmp_path / "results") == []
    assert _processes_in(tmp_path) == []


def test_killed_at_once_it_leaves_no_model_running_and_no_row(tiny_qwen3, tmp_path):
    started = _start(tiny_qwen3, tmp_path / "results")
    started.kill()
    started.communicate()
    _wait(lambda: _processes_in(tmp_path) == [])
    assert dataset.read(tmp_path / "results") == []


def test_killed_at_random_the_dataset_can_be_read(tiny_qwen3, tmp_path):
    """Two of the kills that `make stress-kill` makes."""
    spec = importlib.util.spec_from_file_location("kill", Path(__file__).with_name("kill_at_random.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kill"] = module
    spec.loader.exec_module(module)
    found = list(module.kills(tiny_qwen3, tmp_path / "results", 2, 1, 8.0))
    assert [each.wrong for each in found] == [None, None]


@pytest.mark.slow
def test_smollm2_says_paris(tmp_path):
    from trnready.hub.packaged import smollm2

    checked = _check(smollm2(lambda _: None), tmp_path / "results", NEURON_COMPILER_OPT_LEVEL="-O1")
    assert checked.status == 0, checked.shown + checked.said
    row = checked.row
    assert row.model_id == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (row.result, row.warnings) == ("PASS", [])
    assert row.text is not None
    assert " Paris" in row.text
    # Compiled by the first process, found in the cache by the second.
    assert (row.graphs, row.neff_hits, len(row.neff_modules or [])) == (1, 1, 1)
    assert row.compile_s is not None
    assert row.compile_warm_s is not None
    assert row.compile_warm_s < row.compile_s
    assert row.flaky is False


def test_a_device_that_cannot_be_used_is_no_failure_of_the_model(tiny_qwen3, tmp_path):
    checked = _check(tiny_qwen3, tmp_path / "results", NEURON_RT_VISIBLE_CORES="zz")
    assert checked.status == 2
    assert "the neuron device does not work here" in checked.said
    assert "NEURON_RT_VISIBLE_CORES: 'zz' names no cores" in checked.said
    assert dataset.read(checked.results) == []
    assert list((checked.results / "runs").iterdir()) == []


def test_a_disk_that_is_full_in_mid_run_is_no_failure_of_the_model(tiny_qwen3, tmp_path):
    # Writing the logits fails as on a full disk, in the process of run.py.
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import pathlib, errno, os\n"
        "write = pathlib.Path.write_bytes\n"
        "def full(self, data):\n"
        "    if self.name.startswith('outputs'):\n"
        "        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
        "    return write(self, data)\n"
        "pathlib.Path.write_bytes = full\n"
    )
    checked = _check(tiny_qwen3, tmp_path / "results", PYTHONPATH=str(folder))
    assert checked.status == 2
    assert "is full, so the run could not be recorded" in checked.said
    assert dataset.read(checked.results) == []


def _check_with(
    model: Path, results: Path, stage: str, do: Callable[[], object], **settings: str
) -> tuple[int, str]:
    """Test a model, do something each time a stage begins whose name holds `stage`, and give exit status and
    stderr."""
    said = ""
    environment = _environment(results, **settings)
    with subprocess.Popen(
        _command(model, results), env=environment, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        for line in run.stderr:
            said += line
            if stage in line:
                do()
    assert "Traceback" not in said
    return run.returncode, said


def test_a_checkpoint_that_changes_meanwhile_is_not_judged(tiny_qwen3, tmp_path):
    model = shutil.copytree(tiny_qwen3, tmp_path / "model")
    results = tmp_path / "results"
    status, said = _check_with(model, results, "reference on the CPU", (model / "config.json").touch)
    assert status == 2
    assert f"the files of {model} changed while it was being tested: nothing was recorded." in said
    assert dataset.read(results) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "result", "hits"), [("in a fresh process", "PASS", 1), ("once more", "FAIL", 0)]
)
def test_a_neff_cache_that_is_emptied_meanwhile_says_nothing_once(tiny_qwen3, tmp_path, stage, result, hits):
    results = tmp_path / "results"
    cache = Path(_environment(results)["TORCH_NEURONX_NEFF_CACHE_DIR"])
    compiled = {"NEURON_COMPILER_OPT_LEVEL": "-O1"}
    _, said = _check_with(tiny_qwen3, results, stage, lambda: shutil.rmtree(cache), **compiled)
    assert "what that process left in the NEFF cache" in said
    (row,) = dataset.read(results)
    assert (row.result, row.graphs, row.neff_hits) == (result, 1, hits)
    if result == "FAIL":
        assert row.reason == "recompiles"
        assert "Two more processes built the same 1 of 1 graphs again" in str(row.error)


def test_a_report_that_the_cpu_makes_as_well_is_the_checkpoints_fault(tiny_qwen3, tmp_path):
    model = shutil.copytree(tiny_qwen3, tmp_path / "model")
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    generation = {"eos_token_id": list(range(vocabulary))}
    (model / "generation_config.json").write_text(json.dumps(generation))
    checked = _check(model, tmp_path / "results")
    assert (checked.status, checked.row.reason) == (2, "reference_failed")
    assert checked.row.error is not None
    assert checked.row.error.startswith("The CPU's run has the same fault. ")
