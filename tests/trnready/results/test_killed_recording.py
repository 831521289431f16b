"""Recording is killed at random moments: no acknowledged row may be lost, and no half row may be found."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from trnready.results import dataset, journal
from trnready.results.verify import verify

KILLS = 20

# Children are forked before Arrow has started a thread; the one who looks at the dataset is another process.
PROGRAM = """
import dataclasses, json, os, random, signal, sys, time
from pathlib import Path
from trnready.results import dataset, journal

results, told = Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
first = journal.load(Path(sys.argv[3]))
chance = random.Random(0)

def record_for_ever(life):
    for number in range(1_000_000):
        # Every third run replaces an older one, which goes to the history.
        model = f"m/{life}-{number}" if (number + 1) % 3 else "m/again"
        row = dataclasses.replace(first, model_id=model, run_id=f"{life:03}-{number:06}")
        journal.write(results, row)
        os.write(told, f"{row.run_id} {model}\\n".encode())
        dataset.compact(results)

def acknowledged():
    return Path(sys.argv[2]).read_bytes().count(b"\\n")

for life in range(int(sys.argv[4])):
    start = acknowledged()
    child = os.fork()
    if child == 0:
        record_for_ever(life)
    # Every other life records three rows first, however slow the machine is.
    while life % 2 == 0 and acknowledged() < start + 3:
        time.sleep(0.005)
    time.sleep(chance.uniform(0.0, 0.4))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(life, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def killed(tmp_path: Path, make_row) -> Iterator[Iterator[int]]:
    """Gives a number after each kill; the next life begins when the next is asked for."""
    entry = journal.write(tmp_path / "first", make_row())
    places = [str(tmp_path / "results"), str(tmp_path / "told"), str(entry), str(KILLS)]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *places],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"},
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None

        def lives() -> Iterator[int]:
            for line in program.stdout:
                yield int(line)
                print(file=program.stdin, flush=True)

        yield lives()
        program.kill()


def test_killed_at_random_while_recording_no_row_is_lost_or_half(tmp_path: Path, make_row, killed) -> None:
    results, told = tmp_path / "results", tmp_path / "told"
    (results / "journal").mkdir(parents=True)
    sample = make_row()
    for _ in killed:
        rows = {row.run_id: row for row in dataset.read(results)}
        acknowledged = dict(line.split() for line in told.read_text().splitlines()) if told.exists() else {}
        for run_id, row in rows.items():
            whole = dataclasses.replace(sample, run_id=run_id, model_id=row.model_id)
            assert row == whole, f"a half row: {row}"
        # Of a model that was tested again, the newest run is shown.
        again = max((each for each, model in acknowledged.items() if model == "m/again"), default=None)
        lost = {each for each, model in acknowledged.items() if model != "m/again"} - set(rows)
        assert not lost
        assert again is None or any(each >= again and rows[each].model_id == "m/again" for each in rows)
        if dataset.data_files(results):
            assert not pd.read_parquet(results / "data")["run_id"].duplicated().any()
    assert any(model == "m/again" for model in acknowledged.values())
    assert len(acknowledged) >= 3 * KILLS / 2
    dataset.compact(results)
    assert verify(results).problems == ()
    history = [row for path in dataset.parquet_files(results / "history") for row in dataset.read_file(path)]
    kept = {row.run_id for row in (*dataset.read(results), *history)}
    assert set(acknowledged) <= kept
