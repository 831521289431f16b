"""The whole path, as a user runs it: the command in a process of its own, from a checkpoint to a row."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

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
    cache = results.with_name(f"{results.name}-neff")
    fast = {"NEURON_COMPILER_OPT_LEVEL": "-O0", "TORCH_NEURONX_NEFF_CACHE_DIR": str(cache), "COLUMNS": "200"}
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
    assert (row.result, row.stage, row.error, row.warnings) == ("PASS", "verify", None, [])
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
    assert (row.graphs, row.recompiles, row.graph_breaks, row.fallback_ops) == (1, 0, 0, [])
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
        "load",
        "compile",
        "run",
        "reference on the CPU, bfloat16",
        "reference on the CPU, float32",
        "verify",
        "done",
    ]


def test_float32_is_judged_without_a_second_reference(tiny_qwen3, tmp_path):
    checked = _check(tiny_qwen3, tmp_path / "results", "--dtype", "float32", "--prompt", "Bread is")
    assert checked.status == 0, checked.shown + checked.said
    assert (checked.row.dtype, checked.row.prompt) == ("float32", "Bread is")
    assert not (checked.folder / "cpu-bfloat16").exists()


FAULTS = [("nan_logits", "non_finite"), ("skip_layer:1", "mismatch")]


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_a_broken_device_fails(tiny_qwen3, tmp_path, fault, reason):
    checked = _check(tiny_qwen3, tmp_path / "results", SOFTNEURON_FAULTS=fault)
    assert checked.status == 1
    assert (checked.row.result, checked.row.reason, checked.row.stage) == ("FAIL", reason, "verify")
    assert checked.row.error is not None
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
    assert checked.row.warnings == ["degenerate_text"]
    assert [line.split("] ")[1] for line in checked.said.splitlines()].count("load") == 3
    assert checked.row.run_py is not None
    assert "apply_chat_template" in checked.row.run_py


def test_a_device_that_is_too_small_is_out_of_memory(tiny_qwen3, tmp_path):
    checked = _check(tiny_qwen3, tmp_path / "results", SOFTNEURON_HBM_PER_CORE="64KiB")
    assert checked.status == 1
    assert (checked.row.reason, checked.row.stage) == ("out_of_memory", "load")
    assert checked.row.hint is not None
    assert checked.row.log_tail is not None
    assert "OutOfMemoryError" in checked.row.log_tail
    assert "Traceback" not in checked.shown


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
    assert (row.graphs, row.neff_hits, len(row.neff_modules or [])) == (1, 0, 1)
    assert row.compile_s is not None
    assert row.compile_warm_s is None


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
        "    if self.name.startswith('logits'):\n"
        "        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
        "    return write(self, data)\n"
        "pathlib.Path.write_bytes = full\n"
    )
    checked = _check(tiny_qwen3, tmp_path / "results", PYTHONPATH=str(folder))
    assert checked.status == 2
    assert "is full, so the run could not be recorded" in checked.said
    assert dataset.read(checked.results) == []
