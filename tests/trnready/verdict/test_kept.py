"""References that are kept: found again, bounded, and never believed when damaged."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.run.memory import NoAmount, host_memory, parse_size
from trnready.verdict.kept import Question, References

QUESTION = Question(
    content="local-1",
    script="PROMPT = 'a'",
    options=("--dtype", "float32"),
    fed=(1, 2),
    versions={"torch": "2.13.0", "transformers": "5.24.0"},
    cpu="a processor",
)


def _report(folder: Path, size: int = 100) -> Path:
    folder.mkdir(parents=True)
    (folder / "report.json").write_text('{"a": 1}')
    (folder / "outputs.safetensors").write_bytes(b"x" * size)
    (folder / "phase").write_text("run")
    return folder


def _keep(references: References, question: Question, report: Path) -> None:
    with references.place(question) as place:
        assert place.found() is None
        place.keep(report)


def _found(references: References, question: Question) -> bool:
    with references.place(question) as place:
        return place.found() is not None


def test_what_was_kept_is_found_again(tmp_path):
    references = References(tmp_path / "kept")
    _keep(references, QUESTION, _report(tmp_path / "report"))
    with references.place(QUESTION) as place:
        found = place.found()
        assert found is not None
        assert sorted(os.listdir(found)) == ["digest", "outputs.safetensors", "report.json"]
        assert (found / "outputs.safetensors").read_bytes() == b"x" * 100


OTHER = {
    "content": "local-2",
    "script": "PROMPT = 'b'",
    "options": ("--dtype", "bfloat16"),
    "fed": (1, 3),
    "versions": {"torch": "2.13.0", "transformers": "5.23.0"},
    "cpu": "another processor",
}


@pytest.mark.parametrize("name", OTHER)
def test_another_question_is_another_reference(name):
    assert replace(QUESTION, **{name: OTHER[name]}).key() != QUESTION.key()


def test_settings_that_change_the_last_bits_are_part_of_the_question(monkeypatch):
    before = QUESTION.key()
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert QUESTION.key() != before


@pytest.mark.parametrize("name", ["outputs.safetensors", "report.json", "digest"])
@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_damaged_reference_is_computed_again(tmp_path, name, damage):
    references = References(tmp_path / "kept")
    _keep(references, QUESTION, _report(tmp_path / "report"))
    path = tmp_path / "kept" / QUESTION.key() / name
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(content[:-1] + (b"?" if damage == "changed" else b""))
    assert not _found(references, QUESTION)
    _keep(references, QUESTION, tmp_path / "report")
    assert _found(references, QUESTION)


def test_what_was_used_longest_ago_makes_room(tmp_path):
    references = References(tmp_path / "kept", limit=1000)
    questions = [replace(QUESTION, content=str(number)) for number in range(4)]
    report = _report(tmp_path / "report", 250)
    for age, question in enumerate(questions[:3]):
        _keep(references, question, report)
        mark = tmp_path / "kept" / question.key() / "digest"
        os.utime(mark, (1000 + age, 1000 + age))
    assert _found(references, questions[0])  # used again just now
    _keep(references, questions[3], report)
    assert [_found(references, each) for each in questions] == [True, False, True, True]


def test_what_is_larger_than_all_of_it_is_not_kept(tmp_path):
    references = References(tmp_path / "kept", limit=50)
    _keep(references, QUESTION, _report(tmp_path / "report"))
    assert not _found(references, QUESTION)


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    references = References(tmp_path / "file/kept")
    _keep(references, QUESTION, _report(tmp_path / "report"))
    assert not _found(references, QUESTION)


def test_a_process_waits_for_another_that_computes_the_same(tmp_path):
    program = """
import sys, pathlib
from trnready.verdict.kept import Question, References
folder = pathlib.Path(sys.argv[1])
question = Question("a", "b", (), None, {}, None)
with References(folder / "kept").place(question) as place:
    if place.found() is None:
        (folder / "computed").open("a").write("x")
        place.keep(folder / "report")
"""
    _report(tmp_path / "report")
    started = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(3)]
    assert [each.wait(120) for each in started] == [0, 0, 0]
    assert (tmp_path / "computed").read_text() == "x"


def test_the_users_own_folder_and_size(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TRNREADY_REFERENCES", raising=False)
    assert References.of_user().folder == tmp_path / "trnready/references"
    monkeypatch.setenv("TRNREADY_REFERENCES", str(tmp_path / "here"))
    monkeypatch.setenv("TRNREADY_REFERENCES_SIZE", "500MB")
    assert References.of_user() == References(tmp_path / "here", 500_000_000)
    monkeypatch.setenv("TRNREADY_REFERENCES_SIZE", "much")
    with pytest.raises(NoAmount, match="'much' is no amount of memory"):
        References.of_user()


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("1.5KiB", 1536), ("2 GB", 2 * 10**9), ("16gib", 2**34), ("0", 0)]
)
def test_amounts_of_memory(text, size):
    assert parse_size(text) == size


@given(st.text(max_size=12))
def test_any_text_is_an_amount_or_refused(text):
    with contextlib.suppress(NoAmount):
        assert parse_size(text) >= 0


def test_this_machine_has_memory():
    assert host_memory() > 2**28
