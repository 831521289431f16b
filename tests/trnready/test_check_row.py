"""What two runs, a second process and a long generation make of a row, without running anything."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trnready.check import (
    Request,
    _agree,
    _compiled,
    _equal,
    _is_worth_repeating,
    _record,
    _reference_bytes,
)
from trnready.check_row import Attempt, Judged, Long, Warm, as_flaky, content_of, with_long, with_warm
from trnready.hub.local import open_folder
from trnready.results import dataset
from trnready.results.row import Row
from trnready.run.failure import Failure
from trnready.run.process import Ended, Finished
from trnready.run.report import ArrayReport, Graph, Report
from trnready.run.runner import Ran
from trnready.script.task import Prompt, Script
from trnready.verdict.rule import Verdict

BUILT = Graph(name="decode", nodes=10, compile_s=9.0, cache_hit=False, neff_module="MODULE_1")
FOUND = replace(BUILT, compile_s=0.5, cache_hit=True)
INTERPRETED = replace(BUILT, neff_module=None)
PASS = Judged(Verdict("PASS", "match"), None, None)
WITHIN = Judged(Verdict("PASS", "match_within_noise"), None, None)
MISMATCH = Judged(Verdict("FAIL", "mismatch", "off"), None, None)
CRASH = Failure("FAIL", "crash", "Ended by SIGSEGV.", None, "f")
COMMON: dict[str, Any] = {
    "device": "neuron",
    "dtypes": ("bfloat16",),
    "cores": 1,
    "text": "words",
    "load_s": 1.0,
    "first_call_s": 2.0,
    "later_call_s": 1.0,
    "parameter_devices": ("neuron:0",),
    "parameter_bytes": 1000,
    "graphs_first_call": (BUILT,),
    "graphs": (BUILT,),
    "graph_breaks": 0,
    "fallback_ops": (),
    "instance": None,
    "peak_bytes": (2000,),
    "versions": {},
}


def _report(**changes: Any) -> Report:
    facts: dict[str, Any] = {
        "input_tokens": (1,),
        "tokens": (2, 3),
        "first_call_tokens": (2, 3),
        "end_tokens": (),
        "logits": np.arange(8, dtype=np.float32).reshape(2, 4),
        "step_s": (0.1, 0.2),
    }
    return Report(**COMMON | facts | changes)


def _attempt(report: Report | None) -> Attempt:
    script = Script("acme/tiny", None, Prompt("a"), "bfloat16")
    return Attempt(script, "source", Ran(Ended(Finished(), 1.0), "", "run", report, None))


RED = {"result": "FAIL", "reason": "mismatch", "error": "off", "fingerprint": "f"}


@pytest.mark.parametrize(
    ("row", "before", "graph", "again"),
    [
        ({}, None, FOUND, False),  # a PASS that compiled nothing
        ({}, None, INTERPRETED, False),
        ({}, None, BUILT, True),  # must be found in the cache by a second process
        ({}, {}, FOUND, False),
        ({}, RED, FOUND, True),  # a changed result
        (RED, None, FOUND, True),  # a new red
        (RED, {}, FOUND, True),
        (RED, RED, FOUND, False),  # a red that is known
        (RED, RED | {"fingerprint": "g"}, FOUND, True),
        (RED, RED | {"reason": "crash"}, FOUND, True),
        ({"result": "SKIPPED", "reason": "reference_failed"}, None, BUILT, False),
    ],
)
def test_what_is_run_a_second_time(make_row, row, before, graph, again):
    older = None if before is None else make_row(**before)
    run = _attempt(_report(graphs=(graph,)))
    assert _is_worth_repeating(make_row(**row), older, run) == again


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        (PASS, PASS, True),
        (PASS, WITHIN, True),
        (PASS, MISMATCH, False),
        (MISMATCH, CRASH, False),
        (CRASH, CRASH, True),
        (CRASH, PASS, False),
    ],
)
def test_two_runs_agree_or_not(one, other, agree):
    assert _agree(one, other) == agree


def test_equal_reports_are_judged_once():
    assert _equal(_report(), _report(load_s=9.0, graphs=(FOUND,)))
    logits = np.arange(8, dtype=np.float32).reshape(2, 4)
    logits[1, 1] += 1e-6
    for change in (
        {"logits": logits},
        {"tokens": (2, 4)},
        {"first_call_tokens": (2, 4)},
        {"graphs": (BUILT, BUILT)},
        {"fallback_ops": ("aten::sort",)},
        {"parameter_devices": ("cpu",)},
        {"peak_bytes": (1,)},
        {"graphs": None},
        {"graphs": (replace(FOUND, interpreted=True),)},
        {"graphs_per_core": (1, 0)},
        {"parameter_bytes_per_core": (1, 2)},
    ):
        assert not _equal(_report(), _report(**change)), change
    assert not _equal(_report(), None)
    assert not _equal(None, None)
    embeddings = ArrayReport(**COMMON, arrays={"embeddings": logits}, repeats=True)
    assert _equal(embeddings, replace(embeddings))
    assert not _equal(embeddings, replace(embeddings, repeats=False))
    assert not _equal(embeddings, replace(embeddings, arrays={"embeddings": logits + 1}))


def test_two_runs_that_disagree_are_flaky_and_red(make_row):
    row = as_flaky(make_row(**RED, hint="Try."), make_row())
    assert (row.result, row.flaky) == ("FAIL", True)
    assert row.hint == "Of two runs in fresh processes the other ended as PASS match. Try."


def _warm(row: Row, *graphs: Graph) -> Row:
    report = _report(graphs=graphs)
    return with_warm(row, Warm(report, _compiled(_report(graphs=(BUILT,))), _compiled(report)))


def test_a_second_process_that_finds_all_graphs_tells_how_long_it_took(make_row):
    row = _warm(make_row(compile_s=9.0, neff_hits=0), FOUND, FOUND)
    assert (row.result, row.compile_warm_s, row.neff_hits) == ("PASS", 1.0, 2)


def test_a_second_process_that_compiles_again_fails(make_row):
    row = _warm(make_row(compile_s=9.0), FOUND, BUILT)
    assert (row.result, row.reason, row.neff_hits) == ("FAIL", "recompiles", 1)
    assert row.compile_warm_s is None
    assert row.error is not None
    assert row.error.startswith("A second process compiled 1 of 2 graphs again")


def test_only_the_very_same_modules_tell_of_an_emptied_cache():
    other = replace(BUILT, neff_module="MODULE_2")
    for graphs, same in ([(BUILT,), True], [(FOUND,), False], [(BUILT, other), False], [(other,), False]):
        report = _report(graphs=graphs)
        assert Warm(report, _compiled(_report(graphs=(BUILT,))), _compiled(report)).built_the_same is same


def test_modules_that_a_third_process_builds_again_fail(make_row):
    report = _report(graphs=(BUILT,))
    row = with_warm(make_row(), Warm(report, _compiled(report), _compiled(report), again=True))
    assert (row.result, row.reason) == ("FAIL", "recompiles")
    assert row.error is not None
    assert row.error.startswith("Two more processes built the same 1 of 1 graphs again")
    assert "empties the cache" in str(row.hint)


def test_a_second_process_that_neither_finds_nor_compiles_fails(make_row):
    row = _warm(make_row(compile_s=9.0))
    assert (row.result, row.reason, row.compile_warm_s) == ("FAIL", "recompiles", None)
    assert row.error == (
        "A second process did without 1 of the 1 graphs that the first had left in the NEFF cache."
    )


def test_a_long_generations_warnings_are_the_rows(make_row):
    broken = Judged(Verdict("PASS", "match", warnings=("graph_breaks",)), None, None)
    row = with_long(make_row(warnings=["fallback_ops"]), Long(512, broken))
    assert (row.result, row.warnings) == ("PASS", ["fallback_ops", "graph_breaks"])


def test_a_long_generation_must_pass_as_well(make_row):
    row = with_long(make_row(), Long(512, WITHIN))
    assert (row.result, row.reason, row.long_tokens, row.long_reason) == (
        "PASS",
        "match",
        512,
        "match_within_noise",
    )
    row = with_long(make_row(), Long(512, MISMATCH))
    assert (row.result, row.reason, row.long_reason) == ("FAIL", "mismatch", "mismatch")
    assert row.error == "With 512 tokens: off"


def test_a_long_generation_that_could_not_be_judged_is_no_pass(make_row):
    skipped = Failure("SKIPPED", "reference_failed", "too long", None, "f")
    row = with_long(make_row(), Long(512, skipped))
    assert (row.result, row.reason, row.long_reason) == ("SKIPPED", "reference_failed", "reference_failed")
    assert row.error == "With 512 tokens: too long"


def test_a_run_that_a_later_dated_one_hides_is_told(make_row, tmp_path):
    results = tmp_path / "results"
    request = Request("a/b", "text-generation", results, 1.0)
    today = make_row(run_id="today")
    assert _record(request, today, None).newer is None
    later = make_row(run_id="later", tested_at=today.tested_at + timedelta(days=400))
    assert _record(request, later, None).newer is None
    again = make_row(run_id="again", tested_at=today.tested_at + timedelta(days=1))
    assert _record(request, again, None).newer == later
    assert [row.run_id for row in dataset.read(results)] == ["later"]


def test_a_reference_needs_four_bytes_for_each_parameter():
    assert _reference_bytes(_report(parameters=500)) == 2000
    assert _reference_bytes(_report()) == 4000  # unknown: each byte could be one


def test_a_folders_content_changes_with_any_of_its_files(tiny_qwen3, tmp_path):
    folder: Path = shutil.copytree(tiny_qwen3, tmp_path / "model")
    before = content_of(open_folder(folder))
    assert content_of(open_folder(folder)) == before
    (folder / "tokenizer_config.json").write_text("{}")
    assert content_of(open_folder(folder)) != before


def test_a_folders_content_holds_what_it_links_to(tiny_qwen3, tmp_path):
    folder: Path = shutil.copytree(tiny_qwen3, tmp_path / "model")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "part.bin").write_bytes(b"1")
    (folder / "part").symlink_to(elsewhere)
    before = content_of(open_folder(folder))
    (elsewhere / "part.bin").write_bytes(b"12")
    assert content_of(open_folder(folder)) != before
