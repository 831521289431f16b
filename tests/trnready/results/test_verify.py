"""`verify` finds what is wrong with a results folder, and nothing with a sound one."""

from __future__ import annotations

import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from trnready.cli import app
from trnready.results import dataset, journal
from trnready.results.schema import UnreadableData, to_table
from trnready.results.verify import verify

PAIR = "neuronxcc-soft-0.1.0_transformers-5.24.0.parquet"


@pytest.fixture
def results(tmp_path: Path, make_row) -> Path:
    """Two models, one of them run twice, and a run that is not folded in yet."""
    day = timedelta(days=1)
    for index, model in enumerate(["a/b", "a/b", "c/d"]):
        when = make_row().tested_at + index * day
        journal.write(tmp_path, make_row(model_id=model, run_id=f"r{index}", tested_at=when))
        dataset.compact(tmp_path)
    return tmp_path


def problem(results: Path) -> str:
    (found,) = verify(results).problems
    return found


def test_a_sound_folder_has_no_problems(results, make_row):
    journal.write(results, make_row(model_id="e/f"))
    found = verify(results)
    assert (found.files, found.rows, found.journal, found.problems) == (3, 3, 1, ())


def test_an_empty_folder_is_sound_and_a_missing_one_is_said(tmp_path):
    assert verify(tmp_path).problems == ()
    with pytest.raises(UnreadableData, match="there is no results folder at"):
        verify(tmp_path / "none")


def test_a_damaged_file(results):
    path = results / "history" / PAIR
    path.write_bytes(path.read_bytes()[:-100])
    assert f"{path} is damaged" in problem(results)


def test_a_damaged_journal_entry(results):
    (results / "journal" / "x.json").write_text('{"model_id": ')
    assert "x.json cannot be read as a result: it is damaged." in problem(results)


@pytest.mark.parametrize("name", ["data", "history", "journal"])
def test_a_file_where_a_folder_belongs(tmp_path, name):
    (tmp_path / name).write_text("")
    assert problem(tmp_path).startswith(f"{tmp_path / name} is no folder; move it away.")
    for look in (dataset.read, dataset.compact):
        with pytest.raises(UnreadableData, match=f"{name} is no folder; move it away"):
            look(tmp_path)


def test_a_model_that_is_there_twice(results):
    rows = dataset.read_file(results / "data" / PAIR)
    pq.write_table(to_table([*rows, rows[0]]), results / "data" / PAIR)
    assert len(verify(results).problems) == 2
    assert "holds a/b (r1), and so does another row" in verify(results).problems[0]


def test_a_run_that_is_dated_in_the_future(results, make_row):
    hour = timedelta(hours=1)
    journal.write(results, make_row(model_id="a/soon", tested_at=datetime.now(UTC) + hour / 2, run_id="soon"))
    assert verify(results).problems == ()
    journal.write(results, make_row(model_id="a/late", tested_at=datetime.now(UTC) + 2 * hour, run_id="late"))
    assert "holds a run of a/late (late) of " in problem(results)


def test_rows_under_the_wrong_versions(results):
    shutil.copy(results / "data" / PAIR, results / "history" / "neuronxcc-1_transformers-2.parquet")
    said = verify(results).problems
    assert "holds 2 rows of other versions than its name says" in said[0]
    assert "holds the run r1 of a/b, which data/ holds too" in said[1]


def test_a_history_that_is_newer_than_the_data(results):
    shutil.move(results / "data" / PAIR, results / "old")
    shutil.move(results / "history" / PAIR, results / "data" / PAIR)
    shutil.move(results / "old", results / "history" / PAIR)
    assert [each.partition("parquet ")[2] for each in verify(results).problems] == [
        "holds a newer run of a/b (r1) than data/ has.",
        "holds a run of c/d (r2), and data/ has none of it.",
    ]


def test_half_a_file_is_no_problem_and_is_named(results, make_row):
    left = [results / "data" / ".tmp-1", results / "journal" / ".tmp-2", results / "journal" / ".tmp-3"]
    for path in left:
        path.write_bytes(b"x")
    found = verify(results)
    assert (found.problems, found.leftovers) == ((), tuple(left))
    shown = CliRunner().invoke(app, ["results", "verify", "--results", str(results)])
    assert f"{left[0]} was left half-written by a process that was killed" in shown.output
    assert shown.exit_code == 0

    # Somebody may be writing a young entry of the journal; the others are nobody's.
    hours_ago = time.time() - 2 * dataset.ABANDONED_S
    os.utime(left[1], (hours_ago, hours_ago))
    dataset.compact(results)
    assert verify(results).leftovers == (left[2],)


def test_a_missing_card(results):
    (results / "README.md").unlink()
    assert "README.md cannot be read; `trnready results compact` writes it." in problem(results)
