"""The command `trnready sweep`: a twin of every architecture, by worker processes, with a live display."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trnready.console import output
from trnready.errors import TrnreadyError
from trnready.plan import twin_row
from trnready.plan.architectures import TASKS, Architecture, architectures
from trnready.plan.twin_row import TwinRow
from trnready.progress import stopped_by_signals
from trnready.results.units import seconds as in_words
from trnready.sweep.pool import Progress, Settings, run_all

INTERRUPTED = 130
COLOURS = {"PASS": "green", "FAIL": "red", "SKIPPED": "yellow"}


class BadChoice(TrnreadyError):
    """An option of the sweep names something that there is none of."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command("sweep")
    def command(
        all_architectures: Annotated[
            bool, typer.Option("--architectures", help="A twin of every architecture of Transformers.")
        ] = False,
        task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")] = None,
        only: Annotated[list[str] | None, typer.Option(help="Only this model type; may be repeated.")] = None,
        out: Annotated[Path, typer.Option(help="File to record in, one JSON object a line.")] = Path(
            "architectures.jsonl"
        ),
        workers: Annotated[int, typer.Option(min=1, help="Processes side by side.")] = 1,
        level: Annotated[
            int, typer.Option("-O", min=0, max=1, help="0 runs graphs as they are, 1 compiles them.")
        ] = 1,
        cores: Annotated[
            int, typer.Option(min=1, max=16, help="Cores that each twin is split over, one process each.")
        ] = 1,
        timeout: Annotated[float, typer.Option(min=1, help="Seconds that one twin may take.")] = 300.0,
        redo: Annotated[
            list[str] | None,
            typer.Option(help="Run again what is recorded with this result or reason; may be repeated."),
        ] = None,
    ) -> None:
        """Run a twin of every architecture on the neuron device and record how each did.

        What is recorded already is not run again, so a sweep that was stopped goes on where it was.

        Exit status: 0 all were run, 130 stopped. How they did is in the file.

        Example: trnready sweep --architectures --task text-generation --workers 2 -O0
        """
        if not all_architectures and not only:
            raise BadChoice("say what to sweep: --architectures for all, or --only with a model type.")
        work = _chosen(tuple(task or TASKS), only or [])
        rows = twin_row.read_rows(out)
        todo = _open(work, rows, (cores, f"-O{level}"), redo or [])
        settings = Settings(workers, f"-O{level}", timeout, out.with_suffix(".log"), cores)
        console = Console(stderr=True)
        progress = Progress()
        try:
            with stopped_by_signals(), _display(console, progress, len(todo), workers) as seen:
                for row in run_all(todo, settings, progress, seen.tick):
                    twin_row.append_row(out, row)
                    rows[row.key] = row
                    seen.row(row)
        except KeyboardInterrupt:
            typer.echo(f"trnready: stopped; what was done is in {out}.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        twin_row.write_sorted(out, rows.values())
        wanted = {(each.model_type, each.task) for each in work}
        show(
            [
                row
                for row in rows.values()
                if (row.model_type, row.task) in wanted and (row.cores, row.level) == (cores, f"-O{level}")
            ]
        )
        typer.echo(f"recorded in {out}")


def _chosen(tasks: tuple[str, ...], only: list[str]) -> list[Architecture]:
    unknown = [each for each in tasks if each not in TASKS]
    if unknown:
        raise BadChoice(f"there is no sweep of {unknown[0]!r}; there is one of {' and '.join(TASKS)}.")
    found = architectures(tasks)
    strangers = set(only) - {each.model_type for each in found}
    if strangers:
        raise BadChoice(
            f"the installed Transformers has no {sorted(strangers)[0]!r} that does {', '.join(tasks)}."
        )
    return [each for each in found if not only or each.model_type in only]


def _open(
    work: list[Architecture],
    rows: Mapping[tuple[str, str, int, str], TwinRow],
    how: tuple[int, str],
    redo: list[str],
) -> list[Architecture]:
    """Give what is still to be run on so many cores at this level."""

    def is_done(each: Architecture) -> bool:
        row = rows.get((each.model_type, each.task, *how))
        return row is not None and row.result not in redo and row.reason not in redo

    return [each for each in work if not is_done(each)]


class _Seen:
    """Rows as they come, and what is running."""

    def __init__(self, progress: Progress, total: int, workers: int) -> None:
        self._progress, self._total, self._workers = progress, total, workers
        self._start = time.monotonic()
        self._results: Counter[str] = Counter()
        self._last: list[TwinRow] = []

    def tick(self) -> None:
        """Time goes by."""

    def row(self, row: TwinRow) -> None:
        """A row came."""
        self._results[row.result] += 1
        self._last = [*self._last, row][-8:]

    def render(self) -> Group:
        """Give what to show now."""
        done = sum(self._results.values())
        spent = time.monotonic() - self._start
        left = in_words(spent / done * (self._total - done)) if done else "?"
        counts = ", ".join(f"{count} {result}" for result, count in sorted(self._results.items()))
        grid = Table.grid(padding=(0, 2))
        for row in self._last:
            grid.add_row(Text(row.result, COLOURS[row.result]), row.model_type, row.reason, _time(row))
        for architecture, since in list(self._progress.running.values()):
            grid.add_row(Text("…", "dim"), architecture.model_type, "", in_words(time.monotonic() - since))
        head = Text(f"{done} of {self._total}, {counts or 'none yet'}; about {left} left")
        return Group(head, ProgressBar(total=max(self._total, 1), completed=done, width=60), grid)


class _Lines(_Seen):
    """The same where there is no terminal: one line a row."""

    def row(self, row: TwinRow) -> None:
        super().row(row)
        done = sum(self._results.values())
        line = f"[{done}/{self._total}] {row.model_type} {row.task}: {row.result} {row.reason} {_time(row)}"
        print(line, file=sys.stderr, flush=True)


def _time(row: TwinRow) -> str:
    return "" if row.seconds is None else in_words(row.seconds)


@contextmanager
def _display(console: Console, progress: Progress, total: int, workers: int) -> Iterator[_Seen]:
    if not console.is_terminal or os.environ.get("TERM") == "dumb":
        yield _Lines(progress, total, workers)
        return
    seen = _Seen(progress, total, workers)
    with Live(get_renderable=seen.render, console=console, refresh_per_second=4, transient=True):
        yield seen


def show(rows: list[TwinRow]) -> None:
    """Print how many came to what, by task."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("task", "result", "reason"):
        table.add_column(name)
    table.add_column("architectures", justify="right")
    counts = Counter((row.task, row.result, row.reason) for row in rows)
    for (task, result, reason), count in sorted(counts.items()):
        table.add_row(task, Text(result, COLOURS[result]), reason, str(count))
    console = output()
    console.print(table)
    passed = sum(row.result == "PASS" for row in rows)
    proven = sum(row.counts for row in rows)
    console.print(f"{passed} of {len(rows)} pass; {proven} of those would have noticed the loss of any part.")
