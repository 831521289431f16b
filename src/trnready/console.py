"""What commands print tables and text with: fitted to a terminal, and elsewhere never wrapped, so that a path
or an id stays whole for whoever reads it from a pipe or a file."""

from __future__ import annotations

from typing import Any

from rich.console import Console

WIDE = 1_000_000
"""Columns that no line needs."""


def output() -> Console:
    """Give a console of standard output."""
    console = Console()
    return console if console.file.isatty() else _Unwrapped(width=WIDE)


class _Unwrapped(Console):
    """Prints whole lines, without the spaces that fill a table's last column."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as any console does."""
        with self.capture() as captured:
            super().print(*objects, **options)
        lines = captured.get().split("\n")
        self.file.write("\n".join(line.rstrip(" ") for line in lines))
        self.file.flush()
