"""`trnready repeat`: which row is meant, what is changed in its script, what counts as different. That it
runs is tested with `trnready check`."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import pytest

from trnready import repeat
from trnready.repeat import CIRCUMSTANCES, OUTCOME, Differs, NotRepeatable, differing, find
from trnready.results import dataset, journal
from trnready.results.schema import SCHEMA

SCRIPT = 'import torch\n\nMODEL = "/gone/model"\nREVISION = "abc"\nPROMPT = "Hi"\n\nprint(MODEL)\n'


class Nobody:
    def stage(self, name: str) -> None: ...

    def tick(self) -> None: ...


@pytest.fixture
def results(tmp_path: Path, make_row) -> Path:
    for index, model in enumerate(["a/b", "a/b", "c/d"]):
        when = make_row().tested_at + timedelta(days=index)
        row = make_row(model_id=model, run_id=f"2026100{index}-run", tested_at=when, run_py=SCRIPT)
        journal.write(tmp_path, row)
        dataset.compact(tmp_path)
    return tmp_path


def test_a_row_is_named_by_its_run_its_model_or_its_file(results, make_row, tmp_path):
    assert find("20261002-run", results).model_id == "c/d"
    assert find("20261002", results).run_id == "20261002-run"
    assert find("20261000-run", results).run_id == "20261000-run", "a run in the history"
    assert find("a/b", results).run_id == "20261001-run", "of a model, the newest"
    entry = journal.write(tmp_path / "elsewhere", make_row(run_id="loose"))
    assert find(str(entry), results).run_id == "loose"


@pytest.mark.parametrize(
    ("name", "message"),
    [("2026", "is the beginning of more than one run"), ("x/y", "is no run and no model in")],
)
def test_a_name_that_means_no_single_row(results, name, message):
    with pytest.raises(NotRepeatable, match=message):
        find(name, results)


def test_a_missing_folder_is_said(tmp_path):
    with pytest.raises(NotRepeatable, match="there is no results folder at"):
        find("a/b", tmp_path / "none")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "was never run"),
        (SCRIPT, "/gone/model, which the run.py of run-1 loads, is not here; name it with --model"),
        ("print(1)", "does not say which MODEL it loads"),
        ("MODEL = (", "is no Python"),
    ],
)
def test_what_cannot_be_repeated_is_said(make_row, tmp_path, script, message):
    with pytest.raises(NotRepeatable, match=message):
        repeat.repeat(make_row(run_py=script), tmp_path, repeat.How(1.0), Nobody())


def test_another_checkpoint_takes_the_place_of_the_one_that_the_script_names():
    changed = repeat._with_constants(SCRIPT, {"MODEL": "/here/it's", "REVISION": None})
    before, after = SCRIPT.splitlines(), changed.splitlines()
    assert [line for line, old in zip(after, before, strict=True) if line != old] == [
        'MODEL = "/here/it\'s"',
        "REVISION = None",
    ]


def test_differences_are_named_by_column_and_times_are_none(make_row):
    before = make_row(versions={"torch": "2.13.0", "x": "1"}, score=math.nan, score_steps=[math.nan, 1.0])
    after = make_row(
        versions={"torch": "2.14.0", "x": "1"},
        score=math.nan,
        score_steps=[math.nan, 2.0],
        wall_time_s=1.0,
        run_id="other",
        result="FAIL",
        reason="mismatch",
    )
    assert differing(before, after, CIRCUMSTANCES) == (Differs("versions.torch", "2.13.0", "2.14.0"),)
    assert [each.column for each in differing(before, after, OUTCOME)] == ["result", "reason", "score_steps"]
    assert differing(before, before, (*CIRCUMSTANCES, *OUTCOME)) == ()


def test_every_column_named_is_one_of_the_schema():
    assert set(CIRCUMSTANCES) | set(OUTCOME) <= set(SCHEMA.names)
    assert not set(CIRCUMSTANCES) & set(OUTCOME)
