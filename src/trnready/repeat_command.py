"""The command `trnready repeat`: runs a row again and shows what came out differently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trnready.check_command import (
    DEFAULT_TIMEOUT_S,
    INTERRUPTED,
    Interpreter,
    Memory,
    ReferenceMemory,
    Timeout,
    size,
    superseded,
)
from trnready.console import output
from trnready.progress import stopped_by_signals, watching
from trnready.repeat import Differs, How, Repeated, find, repeat
from trnready.results.text import ResultsDir, printable

DIFFERENT = 1
SHOWN = 160


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command("repeat")
    def command(
        row: Annotated[
            str,
            typer.Argument(help="A run's name or its beginning, a model's name, or a file of the journal."),
        ],
        results: ResultsDir = Path("results"),
        model: Annotated[
            str | None,
            typer.Option(help="Where the checkpoint is on this machine, if it is not where it was."),
        ] = None,
        timeout: Timeout = DEFAULT_TIMEOUT_S,
        memory: Memory = None,
        python: Interpreter = None,
        reference_memory: ReferenceMemory = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
    ) -> None:
        """Run a row again from what it recorded, and say what came out differently.

        Runs the row's own run.py with its prompt and dtype on the device that is here, software cores or
        Trainium, judges it anew and records the new run. Times are not compared.

        Exit status: 0 the same, 1 something came out differently, 2 nothing was run, 130 stopped.

        Example: trnready repeat 20261201T090000Z-0a1b2c3d --results results
        """
        recorded = find(row, results)
        how = How(timeout, model, python, size(memory), size(reference_memory))
        try:
            with stopped_by_signals(), watching(Console(stderr=True)) as watch:
                repeated = repeat(recorded, results, how, watch)
        except KeyboardInterrupt:
            typer.echo("trnready: stopped; this run was not recorded, and nothing of it is left.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        if as_json:
            typer.echo(json.dumps(to_json(repeated), ensure_ascii=False))
        else:
            _show(repeated, output())
        if repeated.done.not_folded is not None:
            raise repeated.done.not_folded
        if repeated.outcome:
            raise typer.Exit(DIFFERENT)


def to_json(repeated: Repeated) -> dict[str, object]:
    """Give both runs' names and results, and every difference."""

    def told(differences: tuple[Differs, ...]) -> dict[str, object]:
        return {each.column: {"before": each.before, "after": each.after} for each in differences}

    before, after = repeated.before, repeated.done.row
    return {
        "before": {"run_id": before.run_id, "result": before.result, "reason": before.reason},
        "after": {"run_id": after.run_id, "result": after.result, "reason": after.reason},
        "circumstances": told(repeated.circumstances),
        "outcome": told(repeated.outcome),
    }


def _show(repeated: Repeated, console: Console) -> None:
    before, after = repeated.before, repeated.done.row
    console.print(
        f"{escape(printable(before.model_id))}: {before.result} {before.reason} in {before.run_id}, "
        f"{after.result} {after.reason} in {after.run_id}",
        highlight=False,
    )
    for title, differences in (
        ("run on something else", repeated.circumstances),
        ("came out differently", repeated.outcome),
    ):
        if differences:
            table = Table("column", "before", "after", title=title, title_justify="left")
            for each in differences:
                table.add_row(each.column, _short(each.before), _short(each.after))
            console.print(table)
    if not repeated.outcome:
        console.print("Everything came out the same, times apart.")
    newer = superseded(repeated.done)
    if newer is not None:
        console.print(f"The new run is superseded {newer}", style="yellow", highlight=False)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = printable(text)
    return escape(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
