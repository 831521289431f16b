"""What the commands over results share: the option that names the folder, and text that is safe to print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ResultsDir = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Folder that holds the results.", show_default=True)
]


def printable(text: str) -> str:
    """Replace what would steer the terminal, such as the colour codes in a log."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
