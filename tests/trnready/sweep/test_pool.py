"""Worker processes: what they record, what happens to one that dies, and a sweep that goes on where it
was."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trnready.cli import app
from trnready.plan.architectures import TASKS, Architecture, architectures
from trnready.plan.twin_row import BadRecord, TwinRow, append_row, read_rows, write_sorted
from trnready.sweep import pool
from trnready.sweep.pool import Progress, Settings, run_all

LLAMA = Architecture("llama", "text-generation", "AutoModelForCausalLM")
GONE = Architecture("musicgen", "text-generation", "AutoModelForCausalLM")


def _settings(folder: Path, timeout_s: float = 300) -> Settings:
    return Settings(1, "-O0", timeout_s, folder / "sweep.log")


def _row(model_type: str = "llama", result: str = "PASS", reason: str = "match") -> TwinRow:
    return TwinRow(model_type, "text-generation", result, reason, "verify", score=1.25, level="-O0")


def test_a_twin_passes_and_one_that_cannot_be_built_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "neff"))
    rows = list(run_all([GONE, LLAMA], _settings(tmp_path), Progress(), lambda: None))
    llama, musicgen = sorted(rows, key=lambda row: row.model_type)
    assert (musicgen.result, musicgen.reason) == ("SKIPPED", "unsupported_architecture")
    assert "dropout" in str(musicgen.error)
    assert (llama.result, llama.reason, llama.score) == ("PASS", "match", 0.0)
    assert llama.counts
    assert llama.parts == 4
    assert llama.graphs == 1
    assert llama.cut["hidden_size"] == [4096, 64]
    assert llama.versions["torch_neuronx"].startswith("soft-")


def test_a_worker_that_hangs_or_dies_is_replaced(tmp_path, monkeypatch):
    fake = tmp_path / "fake.py"
    fake.write_text(
        "import sys, time, os\n"
        "for line in sys.stdin:\n"
        "    if 'hang' in line: time.sleep(600)\n"
        "    if 'die' in line: os.abort()\n"
        '    print(\'{"model_type": "fine", "task": "t", "result": "PASS", '
        '"reason": "match", "stage": "verify"}\', flush=True)\n'
    )
    monkeypatch.setattr(pool, "COMMAND", (str(fake),))
    work = [Architecture(name, "t", "A") for name in ("hang", "die", "fine")]
    rows = list(run_all(work, _settings(tmp_path, 3), Progress(), lambda: None))
    told = {row.model_type: (row.result, row.reason, row.error) for row in rows}
    assert told["hang"] == ("FAIL", "timeout", "Still running after 3 s.")
    assert told["die"] == ("FAIL", "crash", "The worker was ended by SIGABRT.")
    assert told["fine"][0] == "PASS"


def test_leaving_early_ends_the_workers(tmp_path, monkeypatch):
    fake = tmp_path / "fake.py"
    fake.write_text("import sys, time\nfor line in sys.stdin: time.sleep(600)\n")
    monkeypatch.setattr(pool, "COMMAND", (str(fake),))
    started = []
    original = pool.subprocess.Popen

    def noted(*args, **kwargs):
        started.append(original(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(pool.subprocess, "Popen", noted)

    def stop():
        if started:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_all([LLAMA], _settings(tmp_path), Progress(), stop))
    assert [each.poll() for each in started] == [-9]


def test_a_sweep_that_is_told_to_end_takes_its_workers_along(tmp_path):
    command = [sys.executable, "-m", "trnready", "sweep", "--only", "llama", "--out", str(tmp_path / "rows")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as sweep:
        threads = Path(f"/proc/{sweep.pid}/task")
        workers: set[str] = set()
        while not workers and sweep.poll() is None:
            time.sleep(0.05)
            workers = {pid for each in threads.glob("*/children") for pid in each.read_text().split()}
        sweep.terminate()
        _, told = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert "trnready: stopped; what was done is in " in told
    assert workers
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_rows_come_back_as_they_were_and_the_newest_counts(tmp_path):
    file = tmp_path / "rows.jsonl"
    first = TwinRow(
        "llama", "text-generation", "FAIL", "error", "load", "x\ny", blind=["a"], least_part=float("inf")
    )
    append_row(file, first)
    assert json.loads(file.read_text())["least_part"] == "inf"
    append_row(file, _row())
    append_row(file, _row("gpt2"))
    append_row(file, _row(result="FAIL", reason="mismatch"))
    rows = read_rows(file)
    assert len(rows) == 3, "the level is part of the key"
    assert rows[_row().key].reason == "mismatch"
    write_sorted(file, rows.values())
    assert read_rows(file) == rows
    assert [json.loads(line)["model_type"] for line in file.read_text().splitlines()] == [
        "gpt2",
        "llama",
        "llama",
    ]


def test_a_line_that_was_cut_short_is_dropped_and_written_over(tmp_path):
    file = tmp_path / "rows.jsonl"
    append_row(file, _row())
    with file.open("a") as out:
        out.write('{"model_type": "gp')
    assert len(read_rows(file)) == 1
    append_row(file, _row("gpt2"))
    assert [row.model_type for row in read_rows(file).values()] == ["llama", "gpt2"]


def test_a_file_of_something_else_is_refused(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("hello\n")
    with pytest.raises(BadRecord, match="no row"):
        read_rows(file)


def test_what_is_recorded_is_not_run_again(tmp_path):
    file = tmp_path / "rows.jsonl"
    append_row(file, _row())
    before = file.read_text()
    ran = CliRunner().invoke(app, ["sweep", "--only", "llama", "-O0", "--out", str(file)])
    assert ran.exit_code == 0, ran.output
    assert "1 of 1 pass; 0 of those would have noticed" in ran.output
    assert file.read_text() == before


def test_options_that_name_nothing(tmp_path):
    for options in (
        ["sweep"],
        ["sweep", "--only", "nothing"],
        ["sweep", "--architectures", "--task", "dance"],
    ):
        ran = CliRunner().invoke(app, options)
        assert ran.exit_code != 0
        assert (
            "there is" in str(ran.exception)
            or "say what" in str(ran.exception)
            or "has no" in str(ran.exception)
        )


def test_every_architecture_of_both_tasks_is_there():
    everything = architectures()
    assert len(everything) > 250
    assert {each.task for each in everything} == set(TASKS)
    assert LLAMA in everything
