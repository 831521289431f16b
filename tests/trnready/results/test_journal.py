"""The journal: entries are whole or absent, and what cannot be written or read is said in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trnready.results import journal
from trnready.results.dataset import NewerSchema, ResultsNotWritable, UnreadableData


def test_entry_is_read_back(tmp_path: Path, make_row) -> None:
    row = make_row(versions={"torch": "2.13.0"}, score_steps=[0.5, float("nan")], warnings=["graph_breaks"])
    path = journal.write(tmp_path / "new" / "results", row)
    assert journal.load(path).to_json() == row.to_json()
    assert journal.entries(tmp_path / "new" / "results") == [path]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_two_rows_of_one_run_are_both_kept(tmp_path: Path, make_row) -> None:
    journal.write(tmp_path, make_row(wall_time_s=1.0))
    journal.write(tmp_path, make_row(wall_time_s=2.0))
    assert len(journal.entries(tmp_path)) == 2


def test_a_file_in_the_way_is_said(tmp_path: Path, make_row) -> None:
    (tmp_path / "results").write_text("I am a file")
    for attempt in (lambda p: journal.write(p, make_row()), journal.check_writable):
        with pytest.raises(ResultsNotWritable, match=r"cannot write results to .*journal.*: "):
            attempt(tmp_path / "results")
    assert (tmp_path / "results").read_text() == "I am a file"


def test_folder_of_the_kernel_refuses(make_row) -> None:
    with pytest.raises(ResultsNotWritable, match="cannot write results to /proc/"):
        journal.check_writable(Path("/proc/results"))


def test_check_writable_leaves_nothing(tmp_path: Path) -> None:
    journal.check_writable(tmp_path)
    assert list((tmp_path / "journal").iterdir()) == []


def test_refused_write_leaves_what_was_there(tmp_path: Path, make_row) -> None:
    """The system refuses to write more than 64 bytes to any file, as a full disk would."""
    first = journal.write(tmp_path, make_row())
    script = (
        "import resource, sys; from pathlib import Path; from trnready.results import journal\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
        "try: journal.write(Path(sys.argv[1]), journal.load(Path(sys.argv[2])))\n"
        "except journal.ResultsNotWritable as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "other"), str(first)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large" in done.stdout
    assert list((tmp_path / "other" / "journal").iterdir()) == []
    assert journal.load(first) == make_row()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"model_id": "x"}', b"null"])
def test_damaged_entry_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "entry.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableData, match=r"entry\.json cannot be read as a result"):
        journal.load(path)
    assert path.read_bytes() == content


def test_entry_of_a_newer_schema_is_said(tmp_path: Path, make_row) -> None:
    path = tmp_path / "entry.json"
    path.write_text(json.dumps(make_row().to_json() | {"schema_version": 99}))
    with pytest.raises(NewerSchema, match="schema version 99"):
        journal.load(path)
