"""The command `trnready check`: its options, what it shows while it runs and at the end, its exit status."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from trnready.check import Done, Request, Watch, check
from trnready.results.row import Row

EXIT_STATUS = {"PASS": 0, "FAIL": 1, "SKIPPED": 2}
INTERRUPTED = 130
DEFAULT_TIMEOUT_S = 1800.0
COLOURS = {"PASS": "bold green", "FAIL": "bold red", "SKIPPED": "bold yellow"}


class Dtype(StrEnum):
    """Types that a model can be run in."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


class Device(StrEnum):
    """Where the script under test runs."""

    neuron = "neuron"
    cpu = "cpu"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command("check")
    def command(
        model: Annotated[str, typer.Argument(help="A checkpoint's folder, or a model's id on the Hub.")],
        task: Annotated[str, typer.Option(help="What the model is to do.")] = "text-generation",
        results: Annotated[Path, typer.Option(help="Folder of the dataset to add the result to.")] = Path(
            "results"
        ),
        prompt: Annotated[
            str | None, typer.Option(help="What to ask; by default, one of the task's own prompts.")
        ] = None,
        timeout: Annotated[
            float, typer.Option(min=1, help="Seconds that each process running the model may take.")
        ] = DEFAULT_TIMEOUT_S,
        dtype: Annotated[
            Dtype | None, typer.Option(help="Type to run in; by default, the checkpoint's own.")
        ] = None,
        device: Annotated[
            Device, typer.Option(help="cpu is for finding mistakes in a script: it never passes.")
        ] = Device.neuron,
    ) -> None:
        """Test one model on the neuron device and record the result.

        Writes run.py, runs it in a process of its own, runs the same file on the CPU, compares the two,
        and adds a row to the dataset.

        Exit status: 0 PASS, 1 FAIL, 2 SKIPPED or nothing tested, 130 stopped.

        Example: trnready check ./my-checkpoint --results results --timeout 600
        """
        request = Request(
            name=model,
            task=task,
            results=results,
            timeout_s=timeout,
            prompt=prompt,
            dtype=None if dtype is None else dtype.value,
            device=device.value,
        )
        try:
            with _stopped_by_signals(), _watch(Console(stderr=True)) as watch:
                done = check(request, watch)
        except KeyboardInterrupt:
            typer.echo("trnready: stopped; this run was not recorded, and nothing of it is left.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        show(done, request.results, Console())
        if done.not_folded is not None:
            raise done.not_folded
        raise typer.Exit(EXIT_STATUS[done.row.result])


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a test as Ctrl-C does, so that no model is left running."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _watch(console: Console) -> Iterator[Watch]:
    """Show the stages: live on a terminal, as plain lines elsewhere."""
    if not console.is_terminal:
        lines = _Lines()
        yield lines
        lines.finish()
        return
    display = _Display()
    with Live(get_renderable=display.render, console=console, refresh_per_second=8, transient=True):
        yield display


class _Lines:
    """One line as each stage begins."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def stage(self, name: str) -> None:
        print(f"[{time.monotonic() - self._start:6.1f} s] {name}", file=sys.stderr, flush=True)

    def tick(self) -> None:
        pass

    def finish(self) -> None:
        self.stage("done")


class _Display:
    """All stages so far with their seconds, the present one turning."""

    def __init__(self) -> None:
        self._stages: list[tuple[str, float]] = []
        self._spinner = Spinner("dots")

    def stage(self, name: str) -> None:
        self._stages.append((name, time.monotonic()))

    def tick(self) -> None:
        pass

    def render(self) -> Table:
        """Give what to show now."""
        grid = Table.grid(padding=(0, 1))
        ends = [start for _, start in self._stages[1:]] + [time.monotonic()]
        for index, ((name, start), end) in enumerate(zip(self._stages, ends, strict=False)):
            present = index == len(self._stages) - 1
            mark = self._spinner if present else Text("✓", "green")
            grid.add_row(mark, name, Text(f"{end - start:.1f} s", "dim"))
        return grid


def show(done: Done, results: Path, console: Console) -> None:
    """Print the result as a table."""
    row = done.row
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _lines(row):
        table.add_row(name, _printable(value))
    if done.folder is not None:
        table.add_row("run.py", str(done.folder / "run.py"))
        table.add_row("log", str(done.folder / "run.log"))
    table.add_row("recorded", str(results / ("data" if done.not_folded is None else "journal")))
    console.print(table)


def _lines(row: Row) -> Iterator[tuple[str, Text]]:
    """Give the lines of the table; what is not known is left out or said to be unknown, never 0."""
    yield "model", Text(row.model_id)
    yield "verdict", Text.assemble((row.result, COLOURS[row.result]), f" {row.reason} (stage {row.stage})")
    for name, value in (("error", row.error), ("hint", row.hint)):
        if value is not None:
            yield name, Text(value)
    yield "warnings", Text(", ".join(row.warnings) or "none", "yellow" if row.warnings else "")
    yield "device", Text(_device(row))
    yield "cores", Text(_number(row.neuron_cores))
    if row.reason in ("match", "match_within_noise", "mismatch"):
        yield "score", Text(f"{_number(row.score, '.3g')} times the rounding noise; up to 3 passes")
    yield "wall time", Text(_number(row.wall_time_s, ".1f", " s"))
    yield (
        "peak memory",
        Text("unknown" if row.peak_memory_bytes is None else f"{row.peak_memory_bytes / 2**20:.1f} MiB"),
    )
    yield "graphs", Text(_number(row.graphs))
    yield "recompiles", Text(_number(row.recompiles))
    yield "fallbacks", Text("unknown" if row.fallback_ops is None else ", ".join(row.fallback_ops) or "none")
    yield "tokens per second", Text(_number(row.tokens_per_s, ".1f"))
    if row.text is not None:
        yield "text", Text(f"{row.prompt}{row.text}")
    if row.text_reference is not None and row.text_reference != row.text:
        yield "CPU's text", Text(f"{row.prompt}{row.text_reference}")


def _printable(text: Text) -> Text:
    """A model's text may hold anything, terminal commands among it: what cannot be printed becomes a dot."""
    shown = text.copy()
    shown.plain = "".join(each if each.isprintable() or each == "\n" else "·" for each in text.plain)
    return shown


def _device(row: Row) -> str:
    if row.device_kind == "hardware":
        return f"Trainium, neuronx-cc {row.neuronx_cc}"
    return f"software NeuronCores, not Trainium ({row.neuronx_cc})"


def _number(value: float | None, form: str = "d", unit: str = "") -> str:
    return "unknown" if value is None else f"{value:{form}}{unit}"
