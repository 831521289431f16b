"""The command `trnready results diff`: what it reads, its table, its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from trnready.console import output
from trnready.results import dataset, journal
from trnready.results.diff import KINDS, Change, Compared, Difference, difference, find_pair, pair_of, pairs
from trnready.results.row import Row
from trnready.results.schema import UnreadableData
from trnready.results.text import ResultsDir, printable

BROKEN = 1
"""Exit status when a model that passed fails."""

_STYLES = {"broken": "bold red", "fixed": "green", "still_failing": "red", "new": "cyan", "gone": "yellow"}


def diff(
    before: Annotated[
        str,
        typer.Argument(metavar="A", help="A pair of versions or a part of its name, a file, or a folder."),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="What to compare it with.")],
    results: ResultsDir = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print every change as JSON.")] = False,
) -> None:
    """Say what changed from A to B: broken, fixed, still failing, new, gone.

    A pair of versions is named as its file is, or by a part that no other pair has. Exit status 1 when
    something broke.

    Example: trnready results diff 5.23.0 5.24.0 --results results
    """
    found = difference(_side(before, results), _side(after, results))
    if as_json:
        typer.echo(json.dumps({"before": before, "after": after} | found.to_json(), ensure_ascii=False))
    else:
        if any(found.of_kind(kind) for kind in KINDS):
            output().print(table(found))
        typer.echo(summary(found))
    if found.broken:
        raise typer.Exit(BROKEN)


def _side(name: str, results: Path) -> list[Row]:
    """Give the rows that one side names. Raises `UnreadableData`, `NewerSchema` or `NoSuchPair`."""
    path = Path(name)
    if path.suffix == ".parquet" and path.is_file():
        return dataset.read_file(path)
    if path.suffix == ".json" and path.is_file():
        return [journal.load(path)]
    if path.is_dir():
        return dataset.read(path)
    if not results.is_dir():
        raise UnreadableData(f"{name} is no file, and there is no results folder at {results}.")
    rows = dataset.read(results)
    pair = find_pair(pairs(rows), name)
    return [row for row in rows if pair_of(row) == pair]


def table(found: Difference) -> Table:
    """Give the changes as a table, worst first."""
    shown = Table(box=box.SIMPLE, pad_edge=False)
    shown.add_column("change", no_wrap=True)
    shown.add_column("model", overflow="fold")
    shown.add_column("before", overflow="fold")
    shown.add_column("after", overflow="fold")
    for kind in KINDS:
        for change in found.of_kind(kind):
            words = kind.replace("_", " ")
            shown.add_row(
                f"[{_STYLES[kind]}]{words}[/]", _named(change), _said(change.before), _said(change.after)
            )
    return shown


def summary(found: Difference) -> str:
    """Give the counts in one line."""
    counts = [f"{len(found.of_kind(kind))} {kind.replace('_', ' ')}" for kind in (*KINDS, "still_passing")]
    return ", ".join(counts) + "."


def _named(change: Change) -> str:
    row = change.row
    about = " ".join(each for each in (row.task, row.dtype, row.device_kind) if each)
    return f"{escape(printable(row.model_id))}\n[dim]{escape(printable(about))}[/]"


def _said(row: Compared | None) -> str:
    if row is None:
        return "-"
    return f"{row.result}\n[dim]{escape(row.reason.replace('_', ' '))}[/]"
