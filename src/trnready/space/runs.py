"""The database of runs: every row of a results folder, taken over from its files one by one, so that only
what has changed is read again. A file that breaks keeps its last good rows. `trnready.space.index`
asks it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import uuid
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from trnready.errors import TrnreadyError
from trnready.results import dataset, journal, units
from trnready.results.row import NewerSchema, Row, key
from trnready.run.stack import is_broken_on_purpose

FORMAT = "2"
"""Raised whenever the tables change, so that a file of an older trnready is built anew."""

LONGEST_ERROR = 500
"""Letters of an error that a list shows; the whole is in the row."""

_TABLES = """
CREATE TABLE files (path TEXT PRIMARY KEY, mark TEXT NOT NULL, notice TEXT);
CREATE TABLE runs (
    number INTEGER PRIMARY KEY, path TEXT NOT NULL, run_id TEXT NOT NULL, identity TEXT NOT NULL,
    columns TEXT NOT NULL, content BLOB NOT NULL
);
CREATE INDEX runs_of_file ON runs (path);
CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The columns of a row that lists, counts and comparisons need; each means what it means in the row, but
    the error is cut after `LONGEST_ERROR` letters."""

    model_id: str
    revision: str | None
    task: str
    library: str
    library_version: str
    neuronx_cc: str
    neuron_cores: int | None
    result: str
    reason: str
    stage: str
    error: str | None
    fingerprint: str | None
    hint: str | None
    warnings: list[str]
    wall_time_s: float | None
    peak_memory_bytes: int | None
    model_type: str | None
    checkpoint_kind: str
    dtype: str | None
    parallelism: str | None
    device_kind: str
    instance: str | None
    score: float | None
    tokens_per_s: float | None
    tested_at: datetime
    run_id: str
    flaky: bool | None


_COLUMNS = tuple(each.name for each in fields(Run))


def marks(results_dir: Path) -> dict[str, str]:
    """Give the files that hold rows, each with what changes when it is written again.

    The journal comes first: an entry that vanishes meanwhile is then in the Parquet files, which come after.
    """
    found: dict[str, str] = {}
    for path in (*journal.entries(results_dir), *dataset.data_files(results_dir)):
        try:
            status = path.stat()
        except OSError:
            continue
        mark = f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"
        found[path.relative_to(results_dir).as_posix()] = mark
    return found


def build(path: Path, before: Path | None, results_dir: Path, wanted: dict[str, str]) -> None:
    """Write the database of the files in `wanted`, taking from `before` the rows of files that are as they
    were. Raises `OSError` or `sqlite3.Error`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        if before is not None and before.exists():
            shutil.copyfile(before, temporary)
        with closing(sqlite3.connect(temporary, isolation_level=None)) as database:
            database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
            database.execute("BEGIN")
            if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                for statement in filter(str.strip, _TABLES.split(";")):
                    database.execute(statement)
            _take_over(database, results_dir, wanted)
            database.execute("INSERT OR REPLACE INTO notes VALUES ('format', ?)", (FORMAT,))
            database.execute("COMMIT")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _take_over(database: sqlite3.Connection, results_dir: Path, wanted: dict[str, str]) -> None:
    known = dict(database.execute("SELECT path, mark FROM files"))
    for name in known.keys() - wanted.keys():
        database.execute("DELETE FROM runs WHERE path = ?", (name,))
        database.execute("DELETE FROM files WHERE path = ?", (name,))
    for name, mark in wanted.items():
        if known.get(name) == mark:
            continue
        notice = None
        try:
            rows = _load(results_dir / name)
        except FileNotFoundError:
            continue
        except TrnreadyError as error:
            kept = database.execute("SELECT count(*) FROM runs WHERE path = ?", (name,)).fetchone()[0]
            notice = _notice(name, error, kept)
        else:
            database.execute("DELETE FROM runs WHERE path = ?", (name,))
            shown = [row for row in rows if not is_broken_on_purpose(row.neuronx_cc)]
            if len(shown) < len(rows):
                left = units.count(len(rows) - len(shown), "run")
                notice = f"{name} holds {left} of a device with injected faults, not shown."
            database.executemany(
                "INSERT INTO runs (path, run_id, identity, columns, content) VALUES (?, ?, ?, ?, ?)",
                (_record(name, row) for row in shown),
            )
        database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (name, mark, notice))


def _load(path: Path) -> list[Row]:
    load: Callable[[Path], Row | list[Row]] = journal.load if path.suffix == ".json" else dataset.read_file
    rows = load(path)
    return [rows] if isinstance(rows, Row) else rows


def _notice(name: str, error: TrnreadyError, kept: int) -> str:
    """Say what is wrong without showing where on the disk the folder is."""
    wrong = (
        "was written by a newer trnready and cannot be read by this one"
        if isinstance(error, NewerSchema)
        else "is damaged and cannot be read"
    )
    shown = "Its last good rows are shown instead." if kept else "Its rows are not shown."
    return f"{name} {wrong}. {shown}"


def _record(name: str, row: Row) -> tuple[str, str, str, str, bytes]:
    whole = row.to_json()
    columns = {column: whole[column] for column in _COLUMNS}
    if row.error is not None:
        columns["error"] = row.error[:LONGEST_ERROR]
    content = zlib.compress(json.dumps(whole).encode(), 1)
    return (name, row.run_id, json.dumps(key(row)), json.dumps(columns), content)


class Runs:
    """The database, open for reading; safe to share between threads."""

    def __init__(self, path: Path) -> None:
        """Raises `sqlite3.Error`, `ValueError` or `KeyError` when the file is none of ours."""
        self.path = path
        address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        # SQLite itself takes turns on a connection; every question here is answered in well under 1 ms.
        self._database = sqlite3.connect(address, uri=True, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        if dict(self._database.execute("SELECT name, value FROM notes"))["format"] != FORMAT:
            raise ValueError("another format")
        self.marks: dict[str, str] = dict(self._database.execute("SELECT path, mark FROM files"))
        told = self._database.execute("SELECT notice FROM files WHERE notice IS NOT NULL ORDER BY path")
        self.notices = tuple(notice for (notice,) in told)
        listed = self._database.execute("SELECT identity, number, columns FROM runs").fetchall()
        # All columns as one text: reading 20,000 short ones would take twice as long.
        columns = json.loads(f"[{','.join(each for _, _, each in listed)}]")
        found = _newest(
            (identity, number, _run(values))
            for (identity, number, _), values in zip(listed, columns, strict=True)
        )
        self._numbers = [number for number, _ in found]
        self.all = [run for _, run in found]
        """The newest run of everything, in order of model name and age."""

    def content(self, place: int) -> bytes:
        """Give a whole row by its place in `all`, as `Row.to_json` in JSON."""
        found = self._database.execute(
            "SELECT content FROM runs WHERE number = ?", (self._numbers[place],)
        ).fetchone()
        return zlib.decompress(found[0])

    def rows(self, places: Sequence[int]) -> list[Row]:
        """Give whole rows by their places in `all`, in the order asked for."""
        numbers = [self._numbers[place] for place in places]
        marks = ",".join("?" * len(numbers))
        found = self._database.execute(
            f"SELECT number, content FROM runs WHERE number IN ({marks})", list(numbers)
        ).fetchall()
        by_number = {number: Row.from_json(json.loads(zlib.decompress(each))) for number, each in found}
        return [by_number[number] for number in numbers]


def _newest(runs: Iterable[tuple[str, int, Run]]) -> list[tuple[int, Run]]:
    best: dict[str, tuple[int, Run]] = {}
    for identity, number, run in runs:
        other = best.get(identity)
        if other is None or (other[1].tested_at, other[1].run_id) < (run.tested_at, run.run_id):
            best[identity] = (number, run)
    return sorted(best.values(), key=lambda each: (each[1].model_id, each[1].tested_at, each[1].run_id))


def _run(values: dict[str, Any]) -> Run:
    values["tested_at"] = datetime.fromisoformat(values["tested_at"])
    values["score"] = None if values["score"] is None else float(values["score"])
    for name in ("wall_time_s", "tokens_per_s"):
        values[name] = None if values[name] is None else float(values[name])
    return Run(**values)
