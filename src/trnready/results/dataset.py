"""The dataset on disk: `data/` holds the newest run of everything, one Parquet file for each pair of compiler
and library versions, `history/` the runs they replaced, and `journal/` what is not folded in yet."""

from __future__ import annotations

import hashlib
import io
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from trnready import parquet
from trnready.errors import TrnreadyError
from trnready.results import card, journal, units
from trnready.results.files import (
    ResultsNotWritable,
    not_writable,
    sync_folder,
    temporaries,
    write_whole,
)
from trnready.results.row import NewerSchema, Row, age, key
from trnready.results.schema import SCHEMA, UnreadableData, check_schema, from_table, to_table

__all__ = [
    "Contents",
    "NewerSchema",
    "ResultsNotWritable",
    "Summary",
    "UnreadableData",
    "compact",
    "data_files",
    "latest",
    "newest",
    "no_folders",
    "pair_file",
    "parquet_files",
    "read",
    "read_file",
    "read_readable",
]

DATA = "data"
HISTORY = "history"
LOCK = ".compact.lock"
LOCK_TIMEOUT_S = 120.0
ABANDONED_S = 3600.0
"""Seconds after which nobody is writing a half-written journal entry any more."""
MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class Summary:
    """What a compaction did: runs folded in, older runs moved to the history, files written; and a sentence
    for each file of another pair that it did not need and that cannot be read."""

    folded: int
    replaced: int
    files: tuple[Path, ...]
    unreadable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """The newest run of everything that could be read, and an error for each file that could not."""

    rows: list[Row]
    problems: tuple[TrnreadyError, ...]


def compact(results_dir: Path) -> Summary:
    """Fold the journal into `data/`, move the runs that were replaced to `history/`, and write the card.

    Files of pairs that cannot be read are left as they are, together with the journal entries that belong to
    them; all the others are folded first. Raises `NewerSchema`, `UnreadableData` or `ResultsNotWritable`.
    """
    if not results_dir.is_dir():
        raise UnreadableData(f"there is no results folder at {results_dir}.")
    try:
        with FileLock(results_dir / LOCK, timeout=LOCK_TIMEOUT_S):
            return _compact_locked(results_dir)
    except Timeout:
        raise ResultsNotWritable(
            f"another trnready has been compacting {results_dir} for more than {LOCK_TIMEOUT_S:.0f} s; "
            "try again when it has ended. The journal keeps every run until then."
        ) from None
    except OSError as error:
        raise not_writable(results_dir, error) from error


def _compact_locked(results_dir: Path) -> Summary:
    problems: list[TrnreadyError] = [*no_folders(results_dir)]
    if problems:
        raise _as_one(problems)
    pairs: defaultdict[str, list[tuple[Path, Row]]] = defaultdict(list)
    _remove_leftovers(results_dir)
    for path in journal.entries(results_dir):
        try:
            row = journal.load(path)
        except TrnreadyError as error:
            problems.append(error)
        else:
            pairs[pair_file(row)].append((path, row))
    folded = replaced = 0
    written: list[Path] = []
    for name, found in sorted(pairs.items()):
        try:
            replaced += _fold(results_dir, name, [row for _, row in found])
        except (NewerSchema, UnreadableData) as error:
            problems.append(error)
            continue
        written.append(results_dir / DATA / name)
        for path, _ in found:
            path.unlink()
        folded += len(found)
    if written:
        sync_folder(results_dir / journal.FOLDER)
    if problems:
        raise _as_one(problems)
    counts, unreadable = _count(results_dir)
    card.write(results_dir, counts)
    return Summary(folded, replaced, tuple(written), tuple(unreadable))


def _fold(results_dir: Path, name: str, new: list[Row]) -> int:
    """Fold runs of one pair into its files and give how many older runs went to the history."""
    data, history = results_dir / DATA / name, results_dir / HISTORY / name
    before = read_file(data) if data.exists() else []
    everything = _distinct([*before, *new])
    kept = newest(everything)
    kept_ids = {id(row) for row in kept}
    older = [row for row in everything if id(row) not in kept_ids]
    if older:
        # The history comes first: a kill between the two files leaves a run in both, never in neither.
        past = read_file(history) if history.exists() else []
        _write_parquet(history, _distinct([*past, *older]))
    _write_parquet(data, kept)
    return len(older)


def newest(rows: Iterable[Row]) -> list[Row]:
    """Give the newest run of each key, in order of model name and age."""
    best: dict[object, Row] = {}
    for row in rows:
        other = best.get(key(row))
        if other is None or age(other) < age(row):
            best[key(row)] = row
    return sorted(best.values(), key=lambda row: (row.model_id, age(row)))


def _distinct(rows: Iterable[Row]) -> list[Row]:
    """Drop the second copy of a run; an interrupted compaction leaves a run in two files."""
    seen: dict[object, Row] = {}
    for row in rows:
        seen.setdefault((key(row), age(row)), row)
    return list(seen.values())


def read(results_dir: Path) -> list[Row]:
    """Give the newest run of everything, journal included. A folder that is missing or empty has no rows.

    Raises `NewerSchema` or `UnreadableData` naming the first file that cannot be read.
    """
    found = read_readable(results_dir)
    if found.problems:
        raise _as_one(found.problems)
    return found.rows


def read_readable(results_dir: Path) -> Contents:
    """Give what can be read, for those who would rather have a part than nothing."""
    rows: list[Row] = []
    problems: list[TrnreadyError] = [*no_folders(results_dir)]
    # The journal first: an entry that vanishes meanwhile is then in the Parquet files, which are read after.
    for path in journal.entries(results_dir):
        try:
            rows.append(journal.load(path))
        except FileNotFoundError:
            continue
        except TrnreadyError as error:
            problems.append(error)
    for path in data_files(results_dir):
        try:
            rows.extend(read_file(path))
        except TrnreadyError as error:
            problems.append(error)
    return Contents(newest(rows), tuple(problems))


def no_folders(results_dir: Path) -> Iterator[UnreadableData]:
    """Give an error for each thing that stands where a folder of the dataset belongs."""
    for name in (DATA, HISTORY, journal.FOLDER):
        path = results_dir / name
        if path.exists() and not path.is_dir():
            yield UnreadableData(f"{path} is no folder; move it away. Nothing can be kept there until then.")


def _as_one(problems: Sequence[TrnreadyError]) -> TrnreadyError:
    first, others = problems[0], len(problems) - 1
    if not others:
        return first
    return type(first)(
        f"{first} {units.count(others, 'more file')} cannot be read; `trnready results verify` names each."
    )


def latest(results_dir: Path, row: Row) -> Row | None:
    """Give the newest recorded run of the same model in the same way, or None. What cannot be read is left
    out."""
    found: list[Row] = []
    for path in journal.entries(results_dir):
        with suppress(TrnreadyError, FileNotFoundError):
            found.append(journal.load(path))
    with suppress(TrnreadyError):
        found += read_file(results_dir / DATA / pair_file(row))
    return max((each for each in found if key(each) == key(row)), key=age, default=None)


def data_files(results_dir: Path) -> list[Path]:
    """Give the Parquet files of `data/`, in order of name."""
    return parquet_files(results_dir / DATA)


def parquet_files(folder: Path) -> list[Path]:
    """Give the Parquet files of a folder, in order of name; half-written ones are left out."""
    return sorted(p for p in folder.glob("*.parquet") if not p.name.startswith("."))


def _count(results_dir: Path) -> tuple[Counter[card.Line], list[str]]:
    """Count the rows of `data/` for the card; give a sentence for each file that cannot be read."""
    counts: Counter[card.Line] = Counter()
    problems: list[str] = []
    for path in data_files(results_dir):
        try:
            columns = _read_table(path, card.LINE_COLUMNS).to_pydict()
        except (NewerSchema, UnreadableData) as error:
            problems.append(str(error))
        else:
            counts.update(card.Line(*values) for values in zip(*columns.values(), strict=True))
    return counts, problems


def read_file(path: Path) -> list[Row]:
    """Read one Parquet file of the dataset. Raises `NewerSchema` or `UnreadableData`."""
    return from_table(_read_table(path, SCHEMA.names), str(path))


def _read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    try:
        with parquet.opened(path) as file:
            check_schema(file.schema_arrow, str(path))
            return file.read(columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise UnreadableData(
            f"{path} is damaged and cannot be read; move it away or restore it. It was left as it is."
        ) from error


def pair_file(row: Row) -> str:
    """Give the name of the Parquet file for the row's pair of compiler and library versions."""
    parts = (quote(text, safe="+") for text in (row.neuronx_cc, row.library, row.library_version))
    name = "neuronxcc-{}_{}-{}".format(*parts)
    if len(name) > MAX_NAME:
        name = f"{name[:MAX_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"{name}.parquet"


def _write_parquet(path: Path, rows: list[Row]) -> None:
    buffer = io.BytesIO()
    pq.write_table(to_table(rows), buffer, compression="zstd")
    write_whole(path, buffer.getvalue())


def _remove_leftovers(results_dir: Path) -> None:
    """Remove what killed processes left half-written.

    The lock says that nobody is writing the Parquet files now. The journal is written without it, so there
    only files that nobody has touched for `ABANDONED_S` are removed.
    """
    for folder in (DATA, HISTORY):
        for path in temporaries(results_dir / folder):
            path.unlink(missing_ok=True)
    for path in temporaries(results_dir / journal.FOLDER):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > ABANDONED_S:
                path.unlink()
