"""The dataset card."""

from __future__ import annotations

from pathlib import Path

from trnready.results.row import Row


def write(results_dir: Path, rows: list[Row]) -> None:
    """Write the card."""
