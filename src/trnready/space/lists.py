"""What the pages Selected, Trending, Downloads and Results show: one question to the index, the pickers and
headings that change it, and how each line is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from trnready.results.row import DEVICE_KINDS, REASONS, RESULTS
from trnready.space.addresses import joined
from trnready.space.ask import UNTESTED, Ask, Entry, Listing, Pair, View
from trnready.space.natural import natural
from trnready.space.plain import shown
from trnready.space.prediction import Foretold, foretell
from trnready.space.query import BadQuery, NotThere
from trnready.space.snapshot import Snapshot

PATHS: dict[View, str] = {
    "selected": "/",
    "trending": "/trending",
    "downloads": "/downloads",
    "results": "/results",
}
ONE_TASK: tuple[View, ...] = ("trending", "downloads")
"""Views that follow the Hub's order, which is one for each task."""
FIRST_TASK = "text-generation"
RESULT_CHOICES = (*RESULTS, UNTESTED)
BOTH = "any"
"""Word for rows of either kind of device."""
_LARGEST_FIRST = ("downloads", "tested_at")
SORTS = ("position", "name", "result", "cores", "wall_time", "memory", "downloads", "tested_at")


@dataclass(frozen=True, slots=True)
class Question:
    """What an address asks of a list, by the names in the address; empty texts leave it to the page."""

    task: str = ""
    compiler: str = ""
    version: str = ""
    device: str = ""
    q: str = ""
    result: str = ""
    reason: str = ""
    sort: str = ""
    order: str = ""
    page: int = 1


@dataclass(frozen=True, slots=True)
class Heading:
    """A column: its name, what its heading leads to, and how the list is sorted by it now."""

    name: str
    title: str
    address: str
    sorted: str
    numeric: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One model of the list: the entry, and what to say where there is no result of it."""

    entry: Entry
    foretold: Foretold | None


@dataclass(frozen=True, slots=True)
class ListPage:
    """Everything on one page of a list."""

    view: View
    path: str
    question: Question
    listing: Listing
    lines: list[Line]
    headings: list[Heading]
    tasks: list[str]
    task: str
    compilers: list[str]
    versions: list[str]
    device: str
    device_kinds: list[str]
    software_hidden: int
    with_software: str
    reasons: list[str]
    by_result: dict[str, str]
    filtered: bool
    unfiltered: str
    elsewhere: list[tuple[str, str]]
    page: int
    pages: int
    previous: str | None
    next: str | None


def list_page(snapshot: Snapshot, view: View, asked: Question) -> ListPage:
    """Answer a question to a list. Raises `BadQuery` for what is not there."""
    tasks = snapshot.tasks
    task = asked.task
    if not task and view in ONE_TASK and tasks:
        task = FIRST_TASK if FIRST_TASK in tasks else tasks[0]
    _check("task", asked.task, tasks, NotThere)
    pairs = snapshot.pairs()
    compilers = _newest_first(pair.neuronx_cc for pair in pairs)
    of_compiler = [pair for pair in pairs if asked.compiler in ("", pair.neuronx_cc)]
    versions = _newest_first(pair.library_version for pair in pairs if pair.library == "transformers")
    _check("compiler version", asked.compiler, compilers, NotThere)
    _check("Transformers version", asked.version, versions, NotThere)
    _check("device", asked.device, (*DEVICE_KINDS, BOTH))
    _check("result", asked.result, RESULT_CHOICES)
    reasons = [reason for result in RESULTS for reason in REASONS[result]]
    _check("reason", asked.reason, reasons)
    _check("order", asked.order, ("up", "down"))
    if asked.sort:
        _check("column to sort by", asked.sort, SORTS)
    chosen = [pair for pair in of_compiler if asked.version in ("", pair.library_version)]
    device = asked.device or default_device(chosen)
    ask = Ask(
        view=view,
        task=task or None,
        neuronx_cc=asked.compiler or None,
        library="transformers" if asked.version else None,
        library_version=asked.version or None,
        device_kind=None if device == BOTH else device,
        search=asked.q,
        result=asked.result or None,
        reason=asked.reason or None,
        sort=asked.sort or _usual(view, asked),
        descending=None if not asked.order else asked.order == "down",
        page=asked.page,
    )
    listing = snapshot.list(ask)
    state = {name: value for name, value in asdict(asked).items() if name != "page"}
    path = PATHS[view]

    def page(number: int) -> str | None:
        if not 1 <= number <= listing.pages:
            return None
        return joined(path, state | {"page": "" if number == 1 else str(number)})

    filters = {"q": "", "result": "", "reason": ""}
    hidden = sum(pair.counts.tested for pair in chosen if pair.device_kind == "software")
    return ListPage(
        view=view,
        path=path,
        question=asked,
        listing=listing,
        lines=[Line(entry, None if entry.row else foretell(entry.prediction)) for entry in listing.entries],
        headings=_headings(view, asked, state),
        tasks=tasks,
        task=task,
        compilers=compilers,
        versions=versions,
        device=device,
        device_kinds=list(DEVICE_KINDS),
        software_hidden=hidden if device == "hardware" and not asked.device else 0,
        with_software=joined(path, state | {"device": BOTH}),
        reasons=[
            reason for reason in reasons if asked.result in ("", UNTESTED) or reason in REASONS[asked.result]
        ],
        by_result={each: joined(path, state | {"result": each, "reason": ""}) for each in RESULT_CHOICES},
        filtered=any(state[name] for name in filters),
        unfiltered=joined(path, state | filters),
        elsewhere=_elsewhere(view, asked),
        page=listing.page,
        pages=listing.pages,
        previous=page(listing.page - 1),
        next=page(listing.page + 1),
    )


def _usual(view: View, asked: Question) -> str:
    """Give the order of a list that nobody ordered: the start page begins with what was tested."""
    return "tested_first" if view == "selected" and not asked.order else "position"


def _elsewhere(view: View, asked: Question) -> list[tuple[str, str]]:
    """Give the other lists, asked for the same part of a name."""
    if not asked.q:
        return []
    names = {"selected": "Selected", "trending": "Trending", "downloads": "Downloads", "results": "Results"}
    state = {"q": asked.q, "device": asked.device}
    return [(names[other], joined(path, state)) for other, path in PATHS.items() if other != view]


def default_device(pairs: Sequence[Pair]) -> str:
    """Give the kind of device to show: hardware as soon as there is a result from it."""
    kinds = {pair.device_kind for pair in pairs}
    return "hardware" if "hardware" in kinds else "software"


def _check(what: str, value: str, known: Sequence[str], error: type[BadQuery] = BadQuery) -> None:
    if value and value not in known:
        there = ", ".join(known[:12]) or "none yet"
        raise error(f"There is no {what} {shown(value)}. There is: {there}.")


def _newest_first(versions: Iterable[str]) -> list[str]:
    return sorted(set(versions), key=natural, reverse=True)


def _headings(view: View, asked: Question, state: dict[str, str]) -> list[Heading]:
    columns = [("name", "Model", False), ("result", "Result", False), ("cores", "Cores", True)]
    columns += [("wall_time", "Wall time", True), ("memory", "Peak memory", True)]
    if view in ONE_TASK:
        columns.insert(1, ("downloads", "Downloads", True))
    columns += [("tested_at", "Tested", True)]
    if view in ONE_TASK or view == "selected":
        columns.insert(0, ("position", "#", True))
    return [_heading(name, title, numeric, view, asked, state) for name, title, numeric in columns]


def _heading(
    name: str, title: str, numeric: bool, view: View, asked: Question, state: dict[str, str]
) -> Heading:
    usual = "down" if name in _LARGEST_FIRST else "up"
    now = (asked.order or ("down" if asked.sort in _LARGEST_FIRST else "up")) if asked.sort == name else ""
    if not asked.sort and name == _usual(view, asked):
        now = asked.order or "up"
    turned = {"up": "down", "down": "up"}.get(now, usual)
    changes = {"sort": name, "order": "" if turned == usual else turned}
    if name == "position" and turned == "up" and view != "selected":
        changes = {"sort": "", "order": ""}
    sorted_words = {"up": "ascending", "down": "descending"}.get(now, "none")
    return Heading(name, title, joined(PATHS[view], state | changes), sorted_words, numeric)
