"""The commands `trnready results compact|show|diff|export|verify`; the command line registers them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from trnready.console import output
from trnready.errors import TrnreadyError
from trnready.results import dataset, units
from trnready.results.diff import find_pair, pairs
from trnready.results.diff_command import diff
from trnready.results.export import Format, Selection, encode
from trnready.results.files import write_whole
from trnready.results.row import DEVICE_KINDS, REASONS, RESULTS, Row
from trnready.results.schema import SCHEMA, UnreadableData
from trnready.results.text import ResultsDir
from trnready.results.text import printable as _printable
from trnready.results.verify import verify as find_problems

UNKNOWN = "-"
"""Stands for a value that was not reported, where there is room for no more."""

_STYLES = {"PASS": "green", "FAIL": "red", "SKIPPED": "yellow"}


class NoSuchChoice(TrnreadyError):
    """A word that no row can have."""


class NoSuchRow(TrnreadyError):
    """The results hold nothing of the model that was asked for."""


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    results = typer.Typer(
        help="Look after the recorded results.\n\nExample: trnready results show --results results",
        no_args_is_help=True,
    )
    results.command()(compact)
    results.command()(show)
    results.command()(diff)
    results.command()(export)
    results.command()(verify)
    app.add_typer(results, name="results")


def compact(results: ResultsDir = Path("results")) -> None:
    """Fold the journal into the Parquet files and write the dataset card.

    Safe at any time, also while tests are running. Exit status 1 when a file could not be read.

    Example: trnready results compact --results results
    """
    summary = dataset.compact(results)
    typer.echo(
        f"{units.count(summary.folded, 'run')} folded into {results / dataset.DATA}, "
        f"{units.count(summary.replaced, 'older run')} moved to {results / dataset.HISTORY}."
    )
    for sentence in summary.unreadable:
        typer.echo(f"warning: {sentence}", err=True)
    if summary.unreadable:
        raise typer.Exit(1)


def show(
    model: Annotated[
        str | None, typer.Argument(help="Show everything recorded of this model.", show_default=False)
    ] = None,
    results: ResultsDir = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Show the newest result of every model, or all that is recorded of one.

    Exit status 1 when a file could not be read; what the others hold is shown all the same.

    Example: trnready results show HuggingFaceTB/SmolLM2-135M-Instruct --results results
    """
    _check_there(results)
    found = dataset.read_readable(results)
    for error in found.problems:
        typer.echo(f"warning: {error}", err=True)
    if found.rows or as_json or not found.problems:
        _show(found.rows, model, results, as_json)
    if found.problems:
        raise typer.Exit(1)


def _show(rows: list[Row], model: str | None, results: Path, as_json: bool) -> None:
    if model is not None:
        rows = [row for row in rows if row.model_id == model]
        if not rows:
            raise NoSuchRow(f"{results} holds no result of {model}; `trnready check {model}` makes one.")
    if as_json:
        typer.echo(json.dumps([row.to_json() for row in rows], ensure_ascii=False, indent=1))
    elif not rows:
        typer.echo(f"{results} holds no results yet; `trnready check MODEL --results {results}` makes one.")
    elif model is None:
        output().print(overview(rows))
    else:
        for row in rows:
            output().print(details(row))


def export(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; - is standard output.")],
    results: ResultsDir = Path("results"),
    form: Annotated[
        Format | None, typer.Option("--format", help="Kind of file; by default, as the name ends.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Columns, with commas; by default, all.")] = None,
    model: Annotated[str | None, typer.Option(help="Only models with this in their name.")] = None,
    result: Annotated[str | None, typer.Option(help="Only PASS, FAIL or SKIPPED.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only this reason, such as mismatch.")] = None,
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    device_kind: Annotated[str | None, typer.Option(help="Only hardware, or only software.")] = None,
    versions: Annotated[
        str | None, typer.Option(help="Only this pair of versions, or the one pair with this in its name.")
    ] = None,
) -> None:
    """Write the rows, or a selection of them, as CSV, JSON or Parquet.

    In CSV, lists are written as JSON, and what is not known is empty.

    Example: trnready results export failures.csv --result FAIL --columns model_id,reason,error
    """
    _check_choice("result", result, RESULTS)
    _check_choice("reason", reason, [each for named in REASONS.values() for each in named])
    _check_choice("device kind", device_kind, DEVICE_KINDS)
    rows = _read(results)
    pair = None if versions is None else find_pair(pairs(rows), versions)
    chosen = Selection(model, result, reason, task, device_kind, pair).of(rows)
    names = SCHEMA.names if columns is None else [name.strip() for name in columns.split(",")]
    content = encode(chosen, names, form or _format_of(output))
    if str(output) == "-":
        typer.echo(content, nl=False)
        return
    write_whole(output, content)
    typer.echo(f"{units.count(len(chosen), 'row')} written to {output}.", err=True)


def _check_choice(what: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise NoSuchChoice(f"there is no {what} {value!r}; there is {', '.join(known)}.")


def _format_of(output: Path) -> Format:
    try:
        return Format(output.suffix.removeprefix("."))
    except ValueError:
        raise typer.BadParameter(
            f"{output} ends in none of .csv, .json and .parquet; say --format.", param_hint="FILE"
        ) from None


def verify(results: ResultsDir = Path("results")) -> None:
    """Look for damaged files, rows that break the schema, and runs that are there twice.

    Changes nothing. Exit status 1 when something is wrong.

    Example: trnready results verify --results results
    """
    found = find_problems(results)
    for sentence in found.problems:
        typer.echo(sentence)
    for path in found.leftovers:
        typer.echo(f"{path} was left half-written by a process that was killed; nothing reads it.")
    typer.echo(
        f"{units.count(found.files, 'file')}, {units.count(found.rows, 'row')}, "
        f"{units.count(found.journal, 'run')} in the journal: "
        f"{units.count(len(found.problems), 'problem') if found.problems else 'all sound'}."
    )
    if found.problems:
        raise typer.Exit(1)


def _read(results: Path) -> list[Row]:
    _check_there(results)
    return dataset.read(results)


def _check_there(results: Path) -> None:
    if not results.is_dir():
        raise UnreadableData(f"there is no results folder at {results}; `trnready check MODEL` makes one.")


def overview(rows: list[Row]) -> Table:
    """Give the table of all rows."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("result", overflow="fold")
    for name in ("cores", "wall time", "peak memory"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("device", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{escape(_printable(row.model_id))}\n[dim]{escape(_printable(_versions(row)))}[/]",
            f"[{_STYLES[row.result]}]{row.result}[/]\n{row.reason.replace('_', ' ')}",
            UNKNOWN if row.neuron_cores is None else str(row.neuron_cores),
            UNKNOWN if row.wall_time_s is None else units.seconds(row.wall_time_s),
            UNKNOWN if row.peak_memory_bytes is None else units.size(row.peak_memory_bytes),
            row.device_kind,
        )
    return table


def details(row: Row) -> Table:
    """Give every column that a row states, one to a line; `run_py` is left to the Space and to `--json`."""
    name = escape(_printable(row.model_id))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), title=name, title_justify="left")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for column, value in row.to_json().items():
        if value not in (None, [], {}) and column != "run_py":
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            table.add_row(column, escape(_printable(text)))
    return table


def _versions(row: Row) -> str:
    return f"{row.neuronx_cc}, {row.library} {row.library_version}"
