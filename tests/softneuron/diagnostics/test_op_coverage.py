"""The sweep of operators: what it notices, and that it can be stopped and started again."""

from __future__ import annotations

import signal

import pytest
import torch

from softneuron.diagnostics import op_coverage
from softneuron.diagnostics.op_cases import Case, Mover, difference, run_case
from softneuron.diagnostics.op_coverage import Journal, build_digest, run_batch, summary, table

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def row(case, failures=(), ran=2, equal=2, build="b"):
    return {
        "case": case,
        "build": build,
        "words": [],
        "failures": list(failures),
        "tallies": {"forward": {"ran": ran, "equal": equal}},
    }


def test_a_case_counts_its_samples_by_phase():
    outcome = run_case(Case("add", "float32"), most_samples=3)
    assert outcome.failures == []
    assert outcome.tallies["forward"].ran == outcome.tallies["forward"].equal == 3
    assert outcome.tallies["backward"].ran == 3


@pytest.mark.parametrize(
    ("host", "device", "why"),
    [
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23], device="neuron"), "1 of 1 elements differ"),
        (torch.tensor([0.0]), torch.tensor([-0.0], device="neuron"), "1 of 1 elements differ"),
        (torch.ones(2), torch.ones(2, device="neuron", dtype=torch.float64), "dtype"),
        (torch.ones(2, 3), torch.ones(3, 2, device="neuron").t(), "strides"),
        (torch.ones(2), torch.ones(3, device="neuron"), "shape"),
        (torch.tensor(1 + 2j).conj(), torch.tensor(1 - 2j, device="neuron"), "bit differs"),
        ([torch.ones(1)], [], "0 results instead of 1"),
        (1.5, 2.5, "2.5 instead of 1.5"),
    ],
)
def test_a_difference_is_named(host, device, why):
    found = difference("add", host, device)
    assert found is not None
    assert why in found


def test_equal_results_and_nans_are_not_differences():
    x = torch.tensor([float("nan"), -1.0])
    assert difference("add", (x, 3), (x.to("neuron"), 3)) is None


def test_arguments_keep_strides_offsets_and_shared_memory():
    base = torch.arange(12.0).reshape(3, 4)
    column, again = base[:, 1], base[:, 1]
    move = Mover("neuron")
    first, second, same = move(column), move(again), move(column)
    assert first is same
    assert (first.stride(), first.storage_offset()) == (column.stride(), 1)
    first.fill_(9)
    assert second.tolist() == [9, 9, 9]
    assert base[0, 1] == 1


def test_a_sweep_goes_on_where_it_stopped(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(row("add float32", build=build_digest()))
    journal.append(row("mul float32", build="of an older core"))
    with journal.path.open("a") as file:
        file.write('{"case": "cut sh')
    started: list[str] = []

    def note(cases, path):
        started.extend(cases)

    monkeypatch.setattr(op_coverage, "run_batch", note)
    op_coverage.sweep(tmp_path, ["add", "mul", "sub"], ["float32"])
    assert started == ["mul\tfloat32", "sub\tfloat32"]


def test_a_case_that_kills_its_process_is_named_and_the_rest_runs(tmp_path, monkeypatch):
    real = op_coverage.subprocess.Popen

    class Killed(real):
        def communicate(self, text, timeout):
            if "mul" in text:
                out = super().communicate("", timeout)
                self.returncode = -signal.SIGSEGV
                return "add\tint64\nmul\tint64\n", out[1]
            return super().communicate(text, timeout)

    monkeypatch.setattr(op_coverage.subprocess, "Popen", Killed)
    journal = Journal(tmp_path / "journal.jsonl")
    run_batch(["add\tint64", "mul\tint64", "nn.functional.relu\tint64"], journal.path)
    rows = journal.rows()
    assert rows["mul int64"]["failures"][0].startswith("crash: the process ended with signal 11")
    assert rows["nn.functional.relu int64"]["failures"] == []


def test_summary_and_table_count_by_dtype():
    rows = {r["case"]: r for r in (row("add float32"), row("mul bool", ["forward 0: a | b"], 4, 3))}
    total = summary(rows.values())
    assert (total["all"]["cases"], total["all"]["clean"]) == (2, 1)
    assert (total["bool"]["ran"], total["bool"]["equal"]) == (4, 3)
    text = table(rows)
    assert "| all | 2 | 1 | 6 | 5 | 83.333 | 0 |" in text
    assert "| mul bool | 1 | forward 0: a \\| b |" in text
