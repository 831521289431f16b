"""The tables made from the sweeps: what they count, and that the pages of this repository hold the newest."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnready.plan.architectures import AUTO_CLASSES, Architecture, architectures
from trnready.plan.twin_row import TwinRow
from trnready.sweep.table import main, missing_of, read, replaced, tables

ROOT = Path(__file__).parents[3]
TEXT, IMAGE = "text-generation", "image-text-to-text"


def test_rows_are_counted_by_task_and_what_is_missing_is_said():
    everything = [Architecture(name, TEXT, "A") for name in ("a", "b", "c")]
    rows = [
        TwinRow("a", TEXT, "PASS", "match", "verify", counts=True),
        TwinRow("b", TEXT, "FAIL", "mismatch", "verify", cores=2, cpu_split_score=8.3),
        TwinRow(
            "b", IMAGE, "PASS", "match", "verify", inputs=["pixel_values"], held_bytes=[8, 7], planned_bytes=8
        ),
    ]
    assert [each.model_type for each in missing_of(rows, everything)] == ["c"]
    made = tables({"architectures-2-cores.jsonl": rows}, everything)
    assert made.splitlines() == [
        "| result | two cores: text | two cores: images |",
        "|---|---|---|",
        "| PASS match | 1 | 1 |",
        "| FAIL mismatch | 1 | 0 |",
        "| not run yet | 1 | 0 |",
        "",
        "**Two cores**: 2 of 3 pass, and 1 of these would have noticed the loss of any part; 1 were shown an "
        "image. In 1 of the 1 the fullest core held what the plan says, to the byte. What fails otherwise "
        "than by recompiling is split over processes of the CPU too, by Transformers alone: b ended there "
        "the same way.",
        "",
        "Not run yet on two cores: c.",
    ]


def test_a_device_that_is_at_fault_is_named():
    rows = [TwinRow("b", TEXT, "FAIL", "mismatch", "verify", cores=2, cpu_split_score=1.3)]
    made = tables({"architectures-2-cores.jsonl": rows}, [])
    assert "Right when split over processes of the CPU: b." in made
    assert "the same way" not in made


def test_a_sample_is_not_said_to_miss_what_it_never_was_to_hold():
    rows = [TwinRow("b", TEXT, "PASS", "match", "verify", level="-O1")]
    made = tables({"architectures-O1.jsonl": rows}, [Architecture("c", TEXT, "A")])
    assert made.splitlines()[2] == "| PASS match | 1 | 0 |"
    assert "ot run yet" not in made


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="has no"):
        replaced("text", "table")


def test_the_page_of_this_repository_is_what_its_sweeps_make():
    page = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    made = tables(read(ROOT / "datasets"), architectures(tuple(AUTO_CLASSES)))
    assert replaced(page, made) == page


def test_a_folder_without_sweeps_leaves_the_page_as_it_is(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("as it is")
    with pytest.raises(SystemExit, match="there are no sweeps in"):
        main(tmp_path, page)
    assert page.read_text() == "as it is"
