"""What the page Compare shows: two pairs of versions side by side, and the models that changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trnready.results import diff
from trnready.results.diff import Change, Pair
from trnready.space.addresses import joined
from trnready.space.grouped import Grouped
from trnready.space.plain import shown
from trnready.space.query import BadQuery, NotThere

PATH = "/compare"
PAGE_SIZE = 100
FIRST = 25
"""Changes of each kind that are shown beside the other kinds; its own page shows all of them."""

TITLES = {
    "broken": "Broken",
    "fixed": "Fixed",
    "still_failing": "Still failing",
    "new": "New",
    "gone": "Gone",
}
assert set(TITLES) == set(diff.KINDS)


@dataclass(frozen=True, slots=True)
class Question:
    """What the address asks for; empty texts leave it to the page."""

    before: str = ""
    after: str = ""
    device: str = ""
    task: str = ""
    change: str = ""
    page: int = 1


@dataclass(frozen=True, slots=True)
class Section:
    """The changes of one kind, or the first of them."""

    kind: str
    title: str
    meaning: str
    count: int
    changes: Sequence[Change]
    address: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything on the page. `before` or `after` is None when there are not two pairs to compare."""

    pairs: Sequence[Pair]
    before: Pair | None
    after: Pair | None
    asked_device: str
    device: str
    task: str
    tasks: Sequence[str]
    sections: list[Section]
    still_passing: int
    chosen: Section | None
    page: int
    pages: int
    all_kinds: str
    swapped: str
    previous: str | None
    next: str | None


@dataclass(frozen=True, slots=True)
class Sides:
    """What is compared: two pairs of versions, on one kind of device, in one task or in all of them."""

    before: Pair
    after: Pair
    device: str
    task: str


def difference(grouped: Grouped, sides: Sides) -> diff.Difference:
    """Give the models that changed."""
    old, new = (grouped.chosen(pair, sides.device, sides.task) for pair in (sides.before, sides.after))
    return diff.difference(old, new)


def compare(
    grouped: Grouped,
    asked: Question,
    differ: Callable[[Grouped, Sides], diff.Difference] = difference,
) -> Comparison:
    """Compare two pairs of versions on one kind of device. `differ` may keep what was worked out before.
    Raises `BadQuery` for what is not there."""
    grouped.check(asked.device, asked.task)
    if asked.change not in ("", *diff.KINDS):
        raise BadQuery(f"There is no change called {shown(asked.change)}; there are {', '.join(diff.KINDS)}.")
    device = asked.device or _default_device(grouped)
    of_kind = grouped.pairs_on(device)
    after = grouped.pair(asked.after) or (of_kind[0] if of_kind else None)
    older = [pair for pair in of_kind if pair != after]
    before = grouped.pair(asked.before) or (older[0] if older else None)
    state = {
        "before": before.name if before else "",
        "after": after.name if after else "",
        "device": asked.device,
        "task": asked.task,
    }
    found = diff.Difference()
    if before and after:
        found = differ(grouped, Sides(before, after, device, asked.task))
    sections = [_section(found, kind, state) for kind in diff.KINDS]
    chosen = next((each for each in sections if each.kind == asked.change), None)
    pages = max(1, -(-chosen.count // PAGE_SIZE)) if chosen else 1
    if not 1 <= asked.page <= pages:
        raise NotThere(f"There is no page {asked.page}; this list has {pages}.")
    if chosen:
        first = (asked.page - 1) * PAGE_SIZE
        part = found.of_kind(chosen.kind)[first : first + PAGE_SIZE]
        chosen = Section(chosen.kind, chosen.title, chosen.meaning, chosen.count, part, chosen.address)
    turned = state | {"before": state["after"], "after": state["before"]}

    def page(number: int) -> str | None:
        if not chosen or not 1 <= number <= pages:
            return None
        return joined(PATH, state | {"change": chosen.kind, "page": "" if number == 1 else str(number)})

    return Comparison(
        pairs=grouped.pairs,
        before=before,
        after=after,
        asked_device=asked.device,
        device=device,
        task=asked.task,
        tasks=grouped.tasks,
        sections=sections,
        still_passing=len(found.still_passing),
        chosen=chosen,
        page=asked.page,
        pages=pages,
        all_kinds=joined(PATH, state),
        swapped=joined(PATH, turned | {"change": asked.change}),
        previous=page(asked.page - 1),
        next=page(asked.page + 1),
    )


def _default_device(grouped: Grouped) -> str:
    """Give the kind of device that can be compared: hardware, unless only software has two pairs."""
    devices = grouped.devices()
    able = [device for device in devices if len(grouped.pairs_on(device)) > 1]
    return next(iter(able or devices), "")


def _section(found: diff.Difference, kind: str, state: dict[str, str]) -> Section:
    changes = found.of_kind(kind)
    return Section(
        kind,
        TITLES[kind],
        diff.MEANINGS[kind],
        len(changes),
        changes[:FIRST],
        joined(PATH, state | {"change": kind}),
    )
