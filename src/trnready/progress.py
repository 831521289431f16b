"""What a command shows while it works through its stages, and how it is stopped."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from trnready.run.runner import Watch


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a test as Ctrl-C does, so that no model is left running."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


WORDS = {"compile": "compile (the first call, tracing included)", "run": "run (the second call)"}
"""What a stage of `run.py` spans, where its name alone would say less."""


@contextmanager
def watching(console: Console) -> Iterator[Watch]:
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
        print(
            f"[{time.monotonic() - self._start:6.1f} s] {WORDS.get(name, name)}", file=sys.stderr, flush=True
        )

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
            grid.add_row(mark, WORDS.get(name, name), Text(f"{end - start:.1f} s", "dim"))
        return grid
