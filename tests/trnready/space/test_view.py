"""What a model's page says: sentences, texts and where they part, charts."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.plan import known_plans
from trnready.results import meanings
from trnready.results.row import REASONS
from trnready.space import charts, view
from trnready.space.plain import plain
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
    assert plain("\x1b[1;31mred\x1b[0m\r\nbell\x07\tend") == "red\nbell\ufffd\tend"


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


def test_memory_is_drawn_against_what_a_core_has(make_row) -> None:
    def memory(**changes: object) -> view.Memory | None:
        page = view.model_page([make_row(**changes)], None)
        assert page is not None
        return page.memory

    known = memory(bytes_per_core=[6 * 2**30, 12 * 2**30], instance="trn2.3xlarge")
    assert known == view.Memory(
        [view.CoreBar(0, "6.0 GiB", 25.0), view.CoreBar(1, "12.0 GiB", 50.0)], limit="24.0 GiB"
    )
    unknown = memory(bytes_per_core=[6 * 2**30, 12 * 2**30], instance=None)
    assert unknown is not None
    assert (unknown.limit, [bar.percent for bar in unknown.bars]) == (None, [50.0, 100.0])
    assert memory(bytes_per_core=None) is None


def test_margin_is_told_in_units_of_the_noise(make_row) -> None:
    row = make_row(text="a", first_divergence=4, margin_at_divergence=0.05, noise=0.02)
    page = view.model_page([row], None)
    assert page is not None
    assert page.evidence is not None
    assert facts(page.evidence.facts)["The CPU's margin there"] == ("0.05 logits, 2.5 times the noise", True)


def test_plan_is_the_runs_own_or_that_of_the_same_cores(make_row) -> None:
    def sentence(**changes: object) -> str | None:
        page = view.model_page([make_row(**changes)], None)
        assert page is not None
        return None if page.plan is None else page.plan.sentence

    known = json.dumps(known_plans.find("Qwen/Qwen3-30B-A3B"))
    assert sentence(plan=known, neuron_cores=8).startswith("4 cores of trn2.3xlarge, tensor parallel")
    assert sentence(model_id="Qwen/Qwen3-30B-A3B", neuron_cores=4).startswith("4 cores of trn2.3xlarge")
    assert sentence(model_id="Qwen/Qwen3-30B-A3B", neuron_cores=8) is None
    assert sentence() == "1 core is the fewest there is, and it held the whole model."
    assert sentence(result="FAIL", reason="crash") is None
