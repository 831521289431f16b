"""What the page Failures shows: the failed runs grouped by reason, and within a reason by fingerprint, which
is equal for failures with the same cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trnready.results import diff, meanings
from trnready.results.diff import Pair
from trnready.results.row import REASONS
from trnready.space.addresses import joined
from trnready.space.grouped import Grouped
from trnready.space.plain import plain, shown
from trnready.space.query import BadQuery, NotThere
from trnready.space.runs import Run

PATH = "/failures"
PAGE_SIZE = 100
NAMED = 4
"""Models of a group that are named beside it."""
FIRST, MOST = 8, 200
"""Groups of a reason that are shown beside the other reasons, and alone."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the address asks for; empty texts leave it open."""

    pair: str = ""
    device: str = ""
    task: str = ""
    reason: str = ""
    fingerprint: str = ""
    page: int = 1


@dataclass(frozen=True, slots=True)
class Group:
    """Failures with one fingerprint; `fingerprint` is None where none was recorded."""

    fingerprint: str | None
    error: str
    hint: str | None
    stages: list[str]
    count: int
    models: list[str]
    more: int
    address: str


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Failures of one reason; `share` is of all failures shown, from 0 to 100."""

    reason: str
    meaning: str
    count: int
    share: float
    groups: list[Group]
    more: int
    address: str


@dataclass(frozen=True, slots=True)
class Failures:
    """The page of all failures. `hidden` counts those on software cores that are not shown because there are
    results from hardware."""

    pairs: Sequence[Pair]
    pair: Pair | None
    asked_device: str
    device: str
    task: str
    tasks: Sequence[str]
    reason: str
    reasons: list[tuple[str, int]]
    failed: int
    tested: int
    found: int
    hidden: int
    with_hidden: str
    groups: list[ReasonGroup]


@dataclass(frozen=True, slots=True)
class Alike:
    """The page of the runs with one fingerprint."""

    fingerprint: str
    rows: Sequence[Run]
    found: int
    page: int
    pages: int
    whole: str
    previous: str | None
    next: str | None


def failures(grouped: Grouped, asked: Question) -> Failures:
    """Group the failed runs that the question is about. Raises `BadQuery` for what is not there."""
    pair = _checked(grouped, asked)
    # Software results step back once there are results from hardware.
    device = asked.device or next(iter(grouped.devices(pair)), "")
    chosen = grouped.chosen(pair, device, asked.task)
    failed = [row for row in chosen if row.result == "FAIL"]
    counts = Counter(row.reason for row in failed)
    wanted = [row for row in failed if asked.reason in ("", row.reason)]
    state = _state(asked)
    hidden = 0
    if device == "hardware" and not asked.device:
        hidden = sum(row.result == "FAIL" for row in grouped.chosen(pair, "software", asked.task))
    return Failures(
        pairs=grouped.pairs,
        pair=pair,
        asked_device=asked.device,
        device=device,
        task=asked.task,
        tasks=grouped.tasks,
        reason=asked.reason,
        reasons=counts.most_common(),
        failed=len(failed),
        tested=sum(row.result != "SKIPPED" for row in chosen),
        found=len(wanted),
        hidden=hidden,
        with_hidden=joined(PATH, state | {"device": "software"}),
        groups=_by_reason(wanted, state),
    )


def alike(grouped: Grouped, asked: Question) -> Alike:
    """Give the runs with the fingerprint that is asked for, on any device unless one is named. Raises
    `BadQuery` for what is not there."""
    pair = _checked(grouped, asked)
    same = [
        row
        for row in grouped.by_fingerprint.get(asked.fingerprint, ())
        if pair in (None, diff.pair_of(row))
        and asked.device in ("", row.device_kind)
        and asked.task in ("", row.task)
    ]
    same.sort(key=lambda row: (row.model_id.casefold(), -row.tested_at.timestamp()))
    pages = max(1, -(-len(same) // PAGE_SIZE))
    if not 1 <= asked.page <= pages:
        raise NotThere(f"There is no page {asked.page}; this list has {pages}.")
    state = _state(asked)

    def page(number: int) -> str | None:
        if not 1 <= number <= pages:
            return None
        turned = {"fingerprint": asked.fingerprint, "page": "" if number == 1 else str(number)}
        return joined(PATH, state | turned)

    return Alike(
        fingerprint=asked.fingerprint,
        rows=same[(asked.page - 1) * PAGE_SIZE : asked.page * PAGE_SIZE],
        found=len(same),
        page=asked.page,
        pages=pages,
        whole=joined(PATH, state),
        previous=page(asked.page - 1),
        next=page(asked.page + 1),
    )


def _checked(grouped: Grouped, asked: Question) -> Pair | None:
    """Give the pair that is asked for, and refuse what is not there."""
    grouped.check(asked.device, asked.task)
    if asked.reason and asked.reason not in REASONS["FAIL"]:
        raise BadQuery(f"There is no reason to fail called {shown(asked.reason)}.")
    return grouped.pair(asked.pair)


def _state(asked: Question) -> dict[str, str]:
    return {"pair": asked.pair, "device": asked.device, "task": asked.task, "reason": asked.reason}


def _by_reason(failed: Sequence[Run], state: dict[str, str]) -> list[ReasonGroup]:
    by_reason: defaultdict[str, list[Run]] = defaultdict(list)
    for row in failed:
        by_reason[row.reason].append(row)
    ordered = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    most = MOST if state["reason"] else FIRST
    return [_of_reason(reason, rows, len(failed), most, state) for reason, rows in ordered]


def _of_reason(
    reason: str, rows: Sequence[Run], failed: int, most: int, state: dict[str, str]
) -> ReasonGroup:
    groups = _by_fingerprint(rows)
    return ReasonGroup(
        reason=reason,
        meaning=meanings.REASONS[reason],
        count=len(rows),
        share=round(100 * len(rows) / failed, 1),
        groups=[_group(fingerprint, alike, state) for fingerprint, alike in groups[:most]],
        more=max(0, len(groups) - most),
        address=joined(PATH, state | {"reason": reason}),
    )


def _by_fingerprint(rows: Sequence[Run]) -> list[tuple[str | None, list[Run]]]:
    found: defaultdict[str | None, list[Run]] = defaultdict(list)
    for row in rows:
        found[row.fingerprint].append(row)
    return sorted(found.items(), key=lambda item: (item[0] is None, -len(item[1]), item[0] or ""))


def _group(fingerprint: str | None, rows: Sequence[Run], state: dict[str, str]) -> Group:
    newest = max(rows, key=lambda row: row.tested_at)
    models = sorted({row.model_id for row in rows}, key=str.casefold)
    # The reason need not stand in the address of a fingerprint, which has only one.
    state = state | {"reason": ""}
    return Group(
        fingerprint=fingerprint,
        error=plain(next((row.error for row in rows if row.error), "no error text was recorded")),
        hint=None if newest.hint is None else plain(newest.hint),
        stages=sorted({row.stage for row in rows}),
        count=len(rows),
        models=models[:NAMED],
        more=max(0, len(models) - NAMED),
        address=joined(PATH, state | {"fingerprint": fingerprint or ""}),
    )
