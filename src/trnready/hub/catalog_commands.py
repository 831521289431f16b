"""The commands `trnready catalog refresh` and `trnready catalog check`; `trnready.hub.commands` registers
them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from trnready import carried
from trnready.errors import TrnreadyError
from trnready.hub import catalog, refresh, selected
from trnready.results import units

TASKS = ("text-generation", "image-text-to-text")

Folder = Annotated[
    Path, typer.Option("--catalog", metavar="DIR", help="Folder with the catalogs and selected.yaml.")
]


class NoSuchTask(TrnreadyError):
    """A task name that cannot be one of the Hub's."""


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(
        help="The Hub's lists of models, and our own choice among them.\n\n"
        "Example: trnready catalog refresh --limit 5000",
        no_args_is_help=True,
    )
    group.command("refresh")(refresh_catalogs)
    group.command("check")(check_selected)
    app.add_typer(group, name="catalog")


def refresh_catalogs(
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="T",
            help="A task of the Hub's; may be given more than once.",
            show_default=" and ".join(TASKS),
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Models of each order at most.", show_default="all")
    ] = None,
    folder: Folder = Path(catalog.FOLDER),
) -> None:
    """Take over the Hub's own lists of each task: by downloads, and by trend.

    One that is interrupted goes on where it stopped, for a day. A model for which the Hub names no task is
    listed under the task `unknown`. HF_ENDPOINT names another Hub.

    Example: trnready catalog refresh --task text-generation --limit 5000
    """
    for name in task or TASKS:
        if not name or not all(letter.isalnum() or letter == "-" for letter in name):
            raise NoSuchTask(f"{name!r} is no task; the Hub's are called such as {TASKS[0]}.")
    for name in dict.fromkeys(task or TASKS):
        try:
            with _progress() as progress:
                done = refresh.refresh(name, limit, folder, _Bars(progress, name, limit).tell)
        except KeyboardInterrupt:
            typer.echo("Interrupted. The same command goes on from here, for a day.", err=True)
            raise typer.Exit(130) from None
        left_out = f", {units.count(done.private, 'private model')} left out" if done.private else ""
        unknown = f", {done.unknown:,} without a task" if done.unknown else ""
        typer.echo(
            f"{done.path}: {units.count(done.models, 'model')}, {done.trending:,} with a place by trend"
            f"{unknown}{left_out}."
        )


def check_selected(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--catalog",
            metavar="DIR",
            help="Folder with selected.yaml.",
            show_default="catalog in the working folder, or the one that trnready carries",
        ),
    ] = None,
) -> None:
    """Say which models of selected.yaml the Hub no longer has under that name.

    Exit status 0: all are there; 1: the list has to be mended; 2: the Hub does not answer.

    Example: trnready catalog check
    """
    if folder is None:
        here = Path(catalog.FOLDER)
        folder = here if here.is_dir() else carried.root() / catalog.FOLDER
    models = selected.read(folder / selected.NAME)
    with _progress() as progress:
        bar = progress.add_task("asking the Hub", total=len(models))
        findings = refresh.check(models, lambda count: progress.update(bar, completed=count))
    for finding in findings:
        typer.echo(f"{finding.model_id} {finding.sentence}")
    if findings:
        typer.echo(
            f"{len(findings)} of {units.count(len(models), 'model')} to mend in {folder / selected.NAME}."
        )
        raise typer.Exit(1)
    typer.echo(f"The Hub has all {units.count(len(models), 'model')} of {folder / selected.NAME}.")


class _Bars:
    """A progress bar for each order of a task's list."""

    def __init__(self, progress: Progress, task: str, limit: int | None) -> None:
        self._progress, self._task, self._limit = progress, task, limit
        self._bars: dict[str, TaskID] = {}

    def tell(self, order: str, count: int) -> None:
        if order not in self._bars:
            self._bars[order] = self._progress.add_task(f"{self._task}, by {order}", total=self._limit)
        self._progress.update(self._bars[order], completed=count)


def _progress() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
