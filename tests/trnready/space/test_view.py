"""What a model's page says: sentences, texts and where they part, charts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.results import meanings
from trnready.results.row import REASONS
from trnready.space import charts, view
from trnready.space.view import Text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "It runs on 1 software core modelled on trn2.3xlarge, not on Trainium itself. "),
        (
            {"device_kind": "hardware", "neuron_cores": 4},
            "It runs on 4 Trainium cores of trn2.3xlarge. ",
        ),
        (
            {"result": "FAIL", "reason": "crash", "stage": "load", "instance": None, "neuron_cores": None},
            "It does not run on software cores, not on Trainium itself: "
            "it ended while loading the weights onto the device. ",
        ),
        (
            {"result": "FAIL", "reason": "mismatch", "device_kind": "hardware", "instance": None},
            "It runs on 1 Trainium core, but it does not run right. ",
        ),
        (
            {"result": "SKIPPED", "reason": "gated", "stage": "resolve", "checkpoint_kind": "twin"},
            "It was not judged (a shrunk twin with random weights): "
            "it ended while finding the model and its files. ",
        ),
    ],
)
def test_verdict_is_a_sentence_that_names_the_device(make_row, changes, text: str) -> None:
    row = make_row(**changes)
    assert view.sentence(row) == text + meanings.REASONS[row.reason]


def test_software_is_never_called_trainium_without_a_not(make_row) -> None:
    for result, reasons in REASONS.items():
        for reason in reasons:
            text = view.sentence(make_row(result=result, reason=reason))
            said = text.removesuffix(meanings.REASONS[reason])
            assert said.replace("not on Trainium itself", "").count("Trainium") == 0


def test_texts_are_cut_before_the_word_that_differs() -> None:
    assert view.texts("The sea is blue today", "The sea is blond today") == (
        Text("The sea is ", "blue", " today"),
        Text("The sea is ", "blond", " today"),
    )
    assert view.texts("same", "same") == (Text("same", "", ""), Text("same", "", ""))
    assert view.texts("one two", "one") == (Text("", "one", " two"), Text("", "one", ""))


def test_texts_without_spaces_are_cut_where_they_differ() -> None:
    assert view.texts("x" * 50 + "a" * 50, "x" * 50 + "b") == (
        Text("x" * 50, "a" * view.LONGEST_MARK, "a" * (50 - view.LONGEST_MARK)),
        Text("x" * 50, "b", ""),
    )


@given(st.text(alphabet="ab \n"), st.text(alphabet="ab \n"))
def test_cut_texts_are_whole_and_share_their_start(ours: str, theirs: str) -> None:
    cut = view.texts(ours, theirs)
    assert ["".join((t.shared, t.different, t.rest)) for t in cut] == [ours, theirs]
    assert cut[0].shared == cut[1].shared
    assert (cut[0].different != cut[1].different or cut[0].rest != cut[1].rest) == (ours != theirs)


def test_colours_and_control_characters_do_not_reach_the_page() -> None:
    assert view.plain("\x1b[1;31mred\x1b[0m\r\nbell\x07\tend") == "red\nbell\ufffd\tend"


def facts(items: list[view.Fact]) -> dict[str, tuple[str, bool]]:
    return {fact.name: (fact.value, fact.known) for fact in items}


def test_counter_that_was_not_measured_is_not_zero(make_row) -> None:
    unknown = view.model_page([make_row()], None)
    assert unknown is not None
    assert set(facts(unknown.work).values()) == {("not reported", False)}
    counted = view.model_page([make_row(graphs=2, recompiles=0, graph_breaks=0, fallback_ops=[])], None)
    assert counted is not None
    assert facts(counted.work) == {
        "Graphs compiled": ("2", True),
        "Recompiles": ("0", True),
        "Graph breaks": ("0", True),
        "Operators on the CPU": ("0", True),
        "Graphs from the NEFF cache": ("not reported", False),
    }


def test_packages_are_quoted_for_the_shell(make_row) -> None:
    page = view.model_page([make_row(packages=["a>=1", "b==2", "c; rm -rf /"])], None)
    assert page is not None
    assert page.install == "pip install 'a>=1' b==2 'c; rm -rf /'"


def test_page_of_a_run_is_of_that_run(example_rows) -> None:
    rows = [row for row in example_rows if row.model_id == "acme/broken-7b"]
    page = view.model_page(rows, "run-wrong")
    assert page is not None
    assert (page.row.run_id, [row.run_id for row in page.others]) == ("run-wrong", ["run-hardware"])
    assert view.model_page(rows, "no-such-run") is None


def test_chart_marks_steps_above_the_threshold() -> None:
    chart = charts.step_chart([1.0, 3.0, 3.5, math.nan, math.inf], 3.0)
    assert [bar.kind for bar in chart.bars] == ["low", "low", "high", "broken", "broken"]
    assert chart.bars[1].y == chart.threshold_y
    assert chart.bars[3].label == "step 3: r = NaN"
    assert (chart.scale, chart.broken) == ("linear", True)
    assert "3 of them above the threshold 3" in chart.summary


@given(st.lists(st.floats(), min_size=1, max_size=40))
def test_chart_stays_within_its_frame(values: list[float]) -> None:
    chart = charts.step_chart(values, 3.0)
    assert len(chart.bars) == len(values)
    for bar in chart.bars:
        assert charts.LEFT <= bar.x <= bar.x + bar.width <= charts.WIDTH
        assert charts.TOP <= bar.y <= bar.y + bar.height <= charts.HEIGHT - charts.BOTTOM + 1.01
    assert charts.TOP <= chart.threshold_y < charts.HEIGHT - charts.BOTTOM
    assert 2 <= len(chart.y_ticks) <= 8
