"""What Compare, Failures and Coverage work out of the rows."""

from __future__ import annotations

import pytest

from trnready.results.diff import Pair
from trnready.space.compare import Question as CompareQuestion
from trnready.space.compare import compare
from trnready.space.failures import Question as FailuresQuestion
from trnready.space.failures import alike, failures
from trnready.space.grouped import group
from trnready.space.query import BadQuery

OLD = "neuronxcc-soft-0.0.9_transformers-5.24.0"
NEW = "neuronxcc-soft-0.1.0_transformers-5.24.0"


def names(section) -> list[str]:
    return [change.row.model_id for change in section.changes]


def test_compare_takes_the_two_newest_pairs_of_the_device(study_rows) -> None:
    found = compare(group(study_rows), CompareQuestion())
    assert found.device == "hardware"
    assert found.before == Pair("2.26.0", "transformers", "5.24.0")
    assert found.after == Pair("2.27.1", "transformers", "5.24.0")
    software = compare(group(study_rows), CompareQuestion(device="software"))
    assert (software.before.name, software.after.name) == (OLD, NEW)
    kinds = {section.kind: names(section) for section in software.sections}
    assert kinds["broken"] == ["acme/late-3b"]
    assert kinds["fixed"] == ["acme/small-2b", "acme/tiny-1b"]
    assert kinds["still_failing"] == ["acme/moe-16b"]
    assert kinds["gone"] == ["acme/gone-3b"]
    assert software.still_passing == 0


def test_compare_turned_around_turns_fixed_into_broken(study_rows) -> None:
    found = compare(
        group(study_rows), CompareQuestion(before=NEW, after=OLD, device="software", change="broken")
    )
    assert names(found.chosen) == ["acme/small-2b", "acme/tiny-1b"]
    assert found.swapped == f"/compare?before={OLD}&after={NEW}&device=software&change=broken"


def test_compare_of_one_pair_has_nothing_to_compare(make_row) -> None:
    found = compare(group([make_row()]), CompareQuestion())
    assert (found.before, found.after.name) == (None, NEW)
    assert compare(group([]), CompareQuestion()).pairs == []


def test_long_comparison_comes_in_pages(make_row) -> None:
    rows = [
        make_row(model_id=f"m/{number:03}", neuronx_cc=compiler, run_id=f"r{number}-{compiler}", **outcome)
        for number in range(130)
        for compiler, outcome in (("1.0", {}), ("2.0", {"result": "FAIL", "reason": "crash"}))
    ]
    first = compare(group(rows), CompareQuestion())
    assert (first.sections[0].count, len(first.sections[0].changes)) == (130, 25)
    second = compare(group(rows), CompareQuestion(change="broken", page=2))
    assert (len(second.chosen.changes), second.pages, second.next) == (30, 2, None)
    assert "page=" not in second.previous


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        (
            CompareQuestion(before="nothing"),
            "There are no results with the versions nothing. There are: neuronx-cc",
        ),
        (CompareQuestion(device="toaster"), "There is no device kind toaster"),
        (CompareQuestion(task="juggling"), "There are no results of a task called juggling."),
        (CompareQuestion(change="worse"), "There is no change called worse"),
        (CompareQuestion(page=2), "There is no page 2"),
    ],
)
def test_compare_refuses_what_is_not_there(study_rows, question, sentence: str) -> None:
    with pytest.raises(BadQuery, match=sentence):
        compare(group(study_rows), question)


def test_failures_are_grouped_by_reason_and_fingerprint(study_rows) -> None:
    found = failures(group(study_rows), FailuresQuestion(device="software"))
    assert [(group.reason, group.count) for group in found.groups][:2] == [
        ("unsupported_operator", 3),
        ("compile_error", 2),
    ]
    (same,) = found.groups[0].groups
    assert (same.count, same.models, same.more) == (3, ["acme/late-3b", "acme/moe-16b"], 0)
    assert same.error == "aten::_grouped_mm is not implemented on neuron"
    assert same.hint == "Try -O0."
    assert (found.failed, found.tested) == (8, 13)
    assert sum(group.share for group in found.groups) == pytest.approx(100, abs=0.5)


def test_many_fingerprints_of_a_reason_are_cut_short(make_row) -> None:
    rows = [
        make_row(model_id=f"m/{n}", run_id=f"r{n}", result="FAIL", reason="error", fingerprint=f"{n:04}")
        for n in range(250)
    ]
    (few,) = failures(group(rows), FailuresQuestion()).groups
    assert (few.count, len(few.groups), few.more) == (250, 8, 242)
    (many,) = failures(group(rows), FailuresQuestion(reason="error")).groups
    assert (len(many.groups), many.more) == (200, 50)


def test_software_failures_step_back_once_there_is_hardware(study_rows) -> None:
    found = failures(group(study_rows), FailuresQuestion())
    assert (found.device, found.failed, found.tested, found.hidden) == ("hardware", 1, 6, 8)
    assert found.with_hidden == "/failures?device=software"
    assert (
        failures(group(row for row in study_rows if row.device_kind == "software"), FailuresQuestion()).hidden
        == 0
    )


def test_fingerprint_leads_to_every_row_with_the_same(study_rows) -> None:
    mark = next(row.fingerprint for row in study_rows if row.model_id == "acme/moe-16b")
    found = alike(group(study_rows), FailuresQuestion(fingerprint=mark))
    assert [row.model_id for row in found.rows] == ["acme/late-3b", "acme/moe-16b", "acme/moe-16b"]
    assert alike(group(study_rows), FailuresQuestion(fingerprint="none")).rows == []


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        (FailuresQuestion(pair="x"), "There are no results with the versions x."),
        (FailuresQuestion(device="x"), "There is no device kind x"),
        (FailuresQuestion(task="x"), "There are no results of a task called x."),
        (FailuresQuestion(reason="gated"), "There is no reason to fail called gated."),
        (FailuresQuestion(fingerprint="x", page=9), "There is no page 9; this list has 1."),
    ],
)
def test_failures_refuse_what_is_not_there(study_rows, question, sentence: str) -> None:
    with pytest.raises(BadQuery, match=sentence):
        (alike if question.fingerprint else failures)(group(study_rows), question)
