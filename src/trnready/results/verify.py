"""Whether a results folder is sound: every file readable, every row as the schema says and where it belongs,
no run twice. `trnready results verify` calls it; it changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trnready.errors import TrnreadyError
from trnready.results import card, dataset, journal
from trnready.results.files import temporaries
from trnready.results.row import Row, age, key
from trnready.results.schema import UnreadableData

CLOCKS_DIFFER = timedelta(hours=1)
"""How far another machine's clock may be ahead of this one's."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What was looked at, a sentence for each thing that is wrong, and the half-written files that killed
    processes left, which do no harm."""

    files: int
    rows: int
    journal: int
    problems: tuple[str, ...]
    leftovers: tuple[Path, ...]


def verify(results_dir: Path) -> Findings:
    """Look at every file of a results folder. Raises `UnreadableData` when there is no such folder."""
    if not results_dir.is_dir():
        raise UnreadableData(f"there is no results folder at {results_dir}.")
    problems = [str(error) for error in dataset.no_folders(results_dir)]
    found: dict[str, list[tuple[Path, Row]]] = {dataset.DATA: [], dataset.HISTORY: [], journal.FOLDER: []}
    files = 0
    for folder in (dataset.DATA, dataset.HISTORY):
        for path in dataset.parquet_files(results_dir / folder):
            files += 1
            try:
                rows = dataset.read_file(path)
            except TrnreadyError as error:
                problems.append(str(error))
                continue
            found[folder] += [(path, row) for row in rows]
            problems += _misplaced(path, rows)
    for path in journal.entries(results_dir):
        files += 1
        try:
            found[journal.FOLDER].append((path, journal.load(path)))
        except (TrnreadyError, FileNotFoundError) as error:
            problems.append(str(error))
    problems += _twice(found[dataset.DATA])
    problems += _in_both(found)
    problems += _outdated(found)
    problems += _ahead(found)
    problems += _card(results_dir)
    rows_kept = len(found[dataset.DATA]) + len(found[dataset.HISTORY])
    leftovers = tuple(path for folder in found for path in temporaries(results_dir / folder))
    return Findings(files, rows_kept, len(found[journal.FOLDER]), tuple(problems), leftovers)


def _misplaced(path: Path, rows: list[Row]) -> Iterator[str]:
    strangers = sum(dataset.pair_file(row) != path.name for row in rows)
    if strangers:
        yield f"{path} holds {strangers} rows of other versions than its name says."


def _twice(data: list[tuple[Path, Row]]) -> Iterator[str]:
    seen: Counter[object] = Counter(key(row) for _, row in data)
    for path, row in data:
        if seen[key(row)] > 1:
            yield f"{path} holds {row.model_id} ({row.run_id}), and so does another row: one must go."


def _in_both(found: dict[str, list[tuple[Path, Row]]]) -> Iterator[str]:
    # Entries of the journal may be in the files already: a compaction that was killed folds them again.
    data = {(key(row), age(row)) for _, row in found[dataset.DATA]}
    if found[journal.FOLDER]:
        return
    for path, row in found[dataset.HISTORY]:
        if (key(row), age(row)) in data:
            yield f"{path} holds the run {row.run_id} of {row.model_id}, which {dataset.DATA}/ holds too."


def _outdated(found: dict[str, list[tuple[Path, Row]]]) -> Iterator[str]:
    newest = {key(row): age(row) for _, row in found[dataset.DATA]}
    for path, row in found[dataset.HISTORY]:
        if key(row) not in newest:
            yield f"{path} holds a run of {row.model_id} ({row.run_id}), and {dataset.DATA}/ has none of it."
        elif newest[key(row)] < age(row):
            yield f"{path} holds a newer run of {row.model_id} ({row.run_id}) than {dataset.DATA}/ has."


def _ahead(found: dict[str, list[tuple[Path, Row]]]) -> Iterator[str]:
    limit = datetime.now(UTC) + CLOCKS_DIFFER
    for rows in found.values():
        for path, row in rows:
            if row.tested_at > limit:
                when = f"{row.tested_at:%Y-%m-%d %H:%M} UTC"
                yield (
                    f"{path} holds a run of {row.model_id} ({row.run_id}) of {when}, which is not yet: it "
                    "takes the place of every run until then."
                )


def _card(results_dir: Path) -> Iterator[str]:
    if not dataset.data_files(results_dir):
        return
    try:
        text = (results_dir / card.NAME).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        yield f"{results_dir / card.NAME} cannot be read; `trnready results compact` writes it."
        return
    if card.MARK not in text:
        yield f"{results_dir / card.NAME} is no dataset card of trnready; move it away and compact again."
