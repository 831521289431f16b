"""What the page Coverage shows: how much of the Hub's lists is tested, and every architecture's result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from trnready.plan.twin_row import TwinRow
from trnready.results import units
from trnready.results.row import DEVICE_KINDS, RESULTS
from trnready.space.addresses import joined
from trnready.space.ask import Architecture, Ask, Share
from trnready.space.coverage import coverage
from trnready.space.lists import default_device
from trnready.space.plain import shown
from trnready.space.query import BadQuery, NotThere
from trnready.space.snapshot import Snapshot

PATH = "/coverage"
UNKNOWN_TASK = "unknown"
"""What the catalog calls the task of models whose task the Hub does not know."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One part of a bar: where it begins and how wide it is, of 100, and what it stands for."""

    kind: str
    start: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of shares that add up to 100: passed, failed, predicted, the rest."""

    name: str
    slices: list[Slice]
    words: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The bars of one of the Hub's lists for one task: by count and by downloads."""

    order: str
    task: str
    bars: list[Bar]


@dataclass(frozen=True, slots=True)
class Tile:
    """An architecture on the map."""

    model_type: str
    task: str
    kind: str
    little: bool
    words: str
    address: str


@dataclass(frozen=True, slots=True)
class Map:
    """The architectures of one task that a twin was run of, and how many came to each result. `others` counts
    the model types in the lists that have no twin, and `others_listed` the models of these."""

    task: str
    counts: list[tuple[str, int]]
    tiles: list[Tile]
    others: int
    others_listed: int


@dataclass(frozen=True, slots=True)
class CoveragePage:
    """Everything on the page. `chosen` is the architecture that the address asks about."""

    asked_device: str
    device: str
    charts: list[Chart]
    maps: list[Map]
    chosen: Architecture | None


def coverage_page(snapshot: Snapshot, device: str, architecture: str, task: str) -> CoveragePage:
    """Lay out the page. Raises `BadQuery` for an architecture or a kind of device that is not there."""
    if device not in ("", *DEVICE_KINDS):
        raise BadQuery(f"There is no device kind {shown(device)}; there are {' and '.join(DEVICE_KINDS)}.")
    asked, device = device, device or default_device(snapshot.pairs())
    found = coverage(snapshot, Ask(device_kind=device))
    chosen = None
    if architecture:
        named = [each for each in found.architectures if each.model_type == architecture]
        chosen = next((each for each in named if task in ("", each.task)), None)
        if chosen is None:
            raise NotThere(f"There is no architecture called {shown(architecture)} for this task.")
    tasks = sorted({each.task for each in found.architectures if each.twin}, key=_task_order)
    return CoveragePage(
        asked_device=asked,
        device=device,
        charts=_charts(found.shares),
        maps=[_map([each for each in found.architectures if each.task == name], name) for name in tasks],
        chosen=chosen,
    )


def _task_order(task: str) -> tuple[bool, bool, str]:
    return (task == UNKNOWN_TASK, task != "text-generation", task)


def _charts(shares: list[Share]) -> list[Chart]:
    charts: dict[tuple[str, str], Chart] = {}
    for share in sorted(shares, key=lambda each: (each.list != "trending", _task_order(each.task))):
        if share.listed == 0:
            continue
        chart = charts.setdefault((share.list, share.task), Chart(share.list, share.task, []))
        head = f"all {share.listed:,}" if share.top is None else f"first {share.top:,}"
        chart.bars.append(_bar(f"{head} models", share.passed, share.failed, share.predicted, share.listed))
        if share.downloads:
            name, downloads = f"their downloads, {units.short(share.downloads)}", share.downloads
            parts = (share.passed_downloads, share.failed_downloads, share.predicted_downloads)
            chart.bars.append(_bar(name, *parts, downloads))
    return list(charts.values())


def _bar(name: str, passed: int, failed: int, predicted: int, whole: int) -> Bar:
    parts = [
        ("pass", passed, "passed"),
        ("fail", failed, "failed"),
        ("predicted", predicted, "predicted to run"),
    ]
    slices, start = [], 0.0
    for kind, value, words in parts:
        width = round(100 * value / whole, 3)
        if value:
            slices.append(Slice(kind, round(start, 3), width, f"{_percent(value, whole)} {words}"))
        start += width
    said = ", ".join(each.words for each in slices) or "nothing tested"
    return Bar(name, slices, said)


def _percent(value: int, whole: int) -> str:
    share = 100 * value / whole
    return f"{share:.0f} %" if share >= 9.95 else f"{share:.1f} %" if share >= 0.05 else "< 0.1 %"


def _map(found: list[Architecture], task: str) -> Map:
    tiles = [_tile(each, each.twin) for each in sorted(found, key=lambda each: each.model_type) if each.twin]
    counts = Counter(tile.kind for tile in tiles)
    others = [each for each in found if each.twin is None]
    return Map(
        task=task,
        counts=[(result, counts[result]) for result in RESULTS if counts[result]],
        tiles=tiles,
        others=len(others),
        others_listed=sum(each.listed for each in others),
    )


def _tile(each: Architecture, twin: TwinRow) -> Tile:
    said = f"twin {twin.result} {twin.reason.replace('_', ' ')}"
    tested = each.passed + each.failed
    if tested:
        said += f"; {each.passed} of {units.count(tested, 'checkpoint')} passed"
    return Tile(
        model_type=each.model_type,
        task=each.task,
        kind=twin.result,
        little=twin.result == "PASS" and not twin.counts,
        words=f"{said}; {units.count(each.listed, 'model')} listed",
        address=joined(PATH, {"architecture": each.model_type, "task": each.task}) + "#architecture",
    )
