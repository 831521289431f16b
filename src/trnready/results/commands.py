"""The commands `trnready results compact` and `trnready results show`; the command line registers them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trnready.errors import TrnreadyError
from trnready.results import dataset, units
from trnready.results.row import Row

ResultsDir = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Folder that holds the results.", show_default=True)
]

UNKNOWN = "-"
"""Stands for a value that was not reported, where there is room for no more."""

_STYLES = {"PASS": "green", "FAIL": "red", "SKIPPED": "yellow"}


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

    Example: trnready results show HuggingFaceTB/SmolLM2-135M-Instruct --results results
    """
    rows = dataset.read(results)
    if model is not None:
        rows = [row for row in rows if row.model_id == model]
        if not rows:
            raise NoSuchRow(f"{results} holds no result of {model}; `trnready check {model}` makes one.")
    if as_json:
        typer.echo(json.dumps([row.to_json() for row in rows], ensure_ascii=False, indent=1))
    elif not rows:
        typer.echo(f"{results} holds no results yet; `trnready check MODEL --results {results}` makes one.")
    elif model is None:
        Console().print(overview(rows))
    else:
        for row in rows:
            Console().print(details(row))


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
    table = Table("column", "value", title=escape(_printable(row.model_id)), title_justify="left")
    for name, value in row.to_json().items():
        if value not in (None, [], {}) and name != "run_py":
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            table.add_row(name, escape(_printable(text)))
    return table


def _versions(row: Row) -> str:
    return f"{row.neuronx_cc}, {row.library} {row.library_version}"


def _printable(text: str) -> str:
    """Replace what would steer the terminal, such as the colour codes in a log."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
