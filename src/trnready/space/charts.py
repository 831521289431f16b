"""The geometry of the small charts on a model's page: where each bar and line goes. The templates draw them
as inline SVG, with attributes only, since the content policy allows no inline styles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 360.0, 150.0
LEFT, RIGHT, TOP, BOTTOM = 30.0, 4.0, 10.0, 24.0
LOG_FROM = 30.0
"""Above this value the steps are drawn on a logarithmic scale, so that the threshold stays visible."""
LOG_FLOOR, CEILING = 0.1, 1e6
"""Smallest and largest value that the scale shows; what lies beyond is drawn at the edge."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One step: its place; `kind` is `low`, `high` (above the threshold) or `broken` (NaN, infinity)."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class StepChart:
    """A chart of one value per step against a threshold."""

    bars: list[Bar]
    y_ticks: list[Tick]
    x_ticks: list[Tick]
    threshold_y: float
    scale: str
    broken: bool
    summary: str


def step_chart(values: Sequence[float], threshold: float) -> StepChart:
    """Lay out one bar per step; values that are not finite reach the top and are marked."""
    finite = [value for value in values if math.isfinite(value)]
    largest = min(max([threshold * 1.25, *finite]), CEILING)
    logarithmic = largest > LOG_FROM
    if logarithmic:
        top = 10.0 ** math.ceil(math.log10(largest))
        marks = [10.0**power for power in range(-1, round(math.log10(top)) + 1)]
        # Neighbouring labels need room: at most five of them.
        marks = marks[:: -(-len(marks) // 5)]
    else:
        top = largest
        step = 1.0 if top <= 6 else 5.0
        marks = [step * i for i in range(int(top / step) + 1)]
    plot_height = HEIGHT - TOP - BOTTOM

    def y_of(value: float) -> float:
        share = value / top
        if logarithmic:
            share = math.log10(max(value, LOG_FLOOR) / LOG_FLOOR) / math.log10(top / LOG_FLOOR)
        return round(TOP + plot_height * (1 - min(max(share, 0.0), 1.0)), 2)

    slot = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    bars = []
    for step_number, value in enumerate(values):
        y = y_of(value) if math.isfinite(value) else TOP
        kind = "low" if value <= threshold else "high" if math.isfinite(value) else "broken"
        bars.append(
            Bar(
                x=round(LEFT + slot * (step_number + 0.15), 2),
                y=y,
                width=round(slot * 0.7, 2),
                height=round(max(HEIGHT - BOTTOM - y, 1.0), 2),
                kind=kind,
                label=f"step {step_number}: r = {number(value)}",
            )
        )
    every = max(1, -(-len(values) // 8))
    over = sum(bar.kind != "low" for bar in bars)
    return StepChart(
        bars=bars,
        y_ticks=[Tick(y_of(mark), f"{mark:g}") for mark in marks],
        x_ticks=[Tick(round(LEFT + slot * (i + 0.5), 2), str(i)) for i in range(0, len(values), every)],
        threshold_y=y_of(threshold),
        scale="logarithmic" if logarithmic else "linear",
        broken=any(bar.kind == "broken" for bar in bars),
        summary=f"r of {len(values)} steps; {over} of them above the threshold {threshold:g}.",
    )


def number(value: float) -> str:
    """Give a number to three significant digits, and NaN and infinities by name."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
