"""The results of one model over versions, laid out as a small chart: one column for each pair of versions,
the wall time as its height. A model's page draws it as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trnready.results import diff, units
from trnready.results.row import Row
from trnready.space.addresses import words
from trnready.space.charts import Tick
from trnready.space.natural import natural

HEIGHT, TOP, BOTTOM, LEFT, RIGHT, SLOT = 150.0, 14.0, 34.0, 68.0, 8.0, 84.0
SHOWN = 8
"""Pairs of versions that are drawn at most, the newest."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run: its place, `kind` (`pass`, `fail`, `skipped`) and what to say of it."""

    x: float
    y: float
    base: float
    kind: str
    label: str
    value: str
    run_id: str


@dataclass(frozen=True, slots=True)
class HistoryChart:
    """Columns from the oldest pair to the newest, with the two lines of each column's name."""

    points: list[Point]
    names: list[tuple[float, str, str]]
    y_ticks: list[Tick]
    width: float
    summary: str
    left_out: int


def history(rows: Sequence[Row], shown: Row) -> HistoryChart | None:
    """Lay out the runs that can be compared with the one shown: same task, type, checkpoint and device kind.

    The newest run of each pair counts. Gives None when there is only one pair.
    """
    alike = [row for row in rows if _what(row) == _what(shown)]
    newest: dict[diff.Pair, Row] = {}
    for row in sorted(alike, key=lambda row: row.tested_at):
        newest[diff.pair_of(row)] = row
    if len(newest) < 2:
        return None
    ordered = sorted(
        newest.items(), key=lambda item: (natural(item[0].neuronx_cc), natural(item[0].library_version))
    )
    left_out, ordered = max(0, len(ordered) - SHOWN), ordered[-SHOWN:]
    top = _round_up(max((row.wall_time_s or 0.0 for _, row in ordered), default=0.0))
    points, names = [], []
    for column, (pair, row) in enumerate(ordered):
        x = round(LEFT + SLOT * (column + 0.5), 2)
        y = _y(row.wall_time_s or 0.0, top)
        value = units.seconds(row.wall_time_s)
        points.append(
            Point(
                x, y, HEIGHT - BOTTOM, row.result.lower(),
                f"{words(pair)}: {row.result} {row.reason}, wall time {value}", value, row.run_id,
            )
        )  # fmt: skip
        names.append((x, pair.neuronx_cc[:14], pair.library_version[:14]))
    results = ", ".join(f"{row.result} with {words(pair)}" for pair, row in ordered)
    return HistoryChart(
        points=points,
        names=names,
        y_ticks=[Tick(_y(top * share, top), units.seconds(top * share)) for share in (0.5, 1.0)],
        width=LEFT + SLOT * len(ordered) + RIGHT,
        summary=f"Results by versions, oldest first: {results}.",
        left_out=left_out,
    )


def _what(row: Row) -> tuple[object, ...]:
    return (row.task, row.library, row.dtype, row.checkpoint_kind, row.device_kind)


def _y(value: float, top: float) -> float:
    share = min(max(value / top, 0.0), 1.0) if top > 0 else 0.0
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 2)


def _round_up(value: float) -> float:
    """Give the next round number of seconds, minutes or hours."""
    for step in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800):
        if value <= step:
            return float(step)
    return 3600.0 * -(-value // 3600)
