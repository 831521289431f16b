"""What changed between two sets of rows, such as two pairs of compiler and library versions: fixed, broken,
still failing, new, gone. Pure functions over rows; `trnready results diff` and the Space call them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from trnready.errors import TrnreadyError

KINDS = ("broken", "fixed", "still_failing", "new", "gone")
"""The kinds of change, worst first."""

MEANINGS: dict[str, str] = {
    "broken": "PASS before, FAIL after",
    "fixed": "FAIL before, PASS after",
    "still_failing": "FAIL before and after",
    "new": "PASS or FAIL after; before, not tested or skipped",
    "gone": "PASS or FAIL before; after, not tested or skipped",
}


class Compared(Protocol):
    """What is compared: a row, or those of its columns that this takes."""

    @property
    def model_id(self) -> str: ...
    @property
    def revision(self) -> str | None: ...
    @property
    def task(self) -> str: ...
    @property
    def library(self) -> str: ...
    @property
    def library_version(self) -> str: ...
    @property
    def neuronx_cc(self) -> str: ...
    @property
    def neuron_cores(self) -> int | None: ...
    @property
    def result(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def stage(self) -> str: ...
    @property
    def error(self) -> str | None: ...
    @property
    def fingerprint(self) -> str | None: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def checkpoint_kind(self) -> str: ...
    @property
    def dtype(self) -> str | None: ...
    @property
    def device_kind(self) -> str: ...
    @property
    def instance(self) -> str | None: ...
    @property
    def tested_at(self) -> datetime: ...
    @property
    def run_id(self) -> str: ...


class NoSuchPair(TrnreadyError):
    """No pair of versions, or more than one, is meant by a name."""


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A compiler version and a library version: what one file of the dataset holds."""

    neuronx_cc: str
    library: str
    library_version: str

    @property
    def name(self) -> str:
        """The pair in one word, as in the name of its file."""
        return f"neuronxcc-{self.neuronx_cc}_{self.library}-{self.library_version}"


@dataclass(frozen=True, slots=True)
class Change:
    """One model before and after; None on the side that has no row of it. Never both None."""

    before: Compared | None
    after: Compared | None

    @property
    def row(self) -> Compared:
        """The newer of the two rows there are."""
        row = self.after or self.before
        assert row is not None
        return row

    def to_json(self) -> dict[str, Any]:
        """Give what names the model, and what each side says of it."""
        named = {name: getattr(self.row, name) for name in ("model_id", "revision", "task", "device_kind")}
        dtype = next((each.dtype for each in (self.after, self.before) if each and each.dtype), None)
        return named | {"dtype": dtype, "before": _side(self.before), "after": _side(self.after)}


@dataclass(frozen=True, slots=True)
class Difference:
    """All changes by kind, each in order of the model's name; `still_passing` is PASS before and after."""

    broken: tuple[Change, ...] = ()
    fixed: tuple[Change, ...] = ()
    still_failing: tuple[Change, ...] = ()
    new: tuple[Change, ...] = ()
    gone: tuple[Change, ...] = ()
    still_passing: tuple[Change, ...] = ()

    def of_kind(self, kind: str) -> tuple[Change, ...]:
        """Give the changes of one of `KINDS`, or of `still_passing`."""
        changes: tuple[Change, ...] = getattr(self, kind)
        return changes

    def to_json(self) -> dict[str, Any]:
        """Give the counts and every change as JSON can hold them; what still passes is only counted."""
        counts = {kind: len(self.of_kind(kind)) for kind in (*KINDS, "still_passing")}
        return {"counts": counts} | {kind: [each.to_json() for each in self.of_kind(kind)] for kind in KINDS}


def difference(before: Iterable[Compared], after: Iterable[Compared]) -> Difference:
    """Compare two sets of rows of one dataset.

    Only rows of the same model, revision, task, kind of checkpoint and kind of device are compared, and of
    the same dtype; a row without one was never run and stands for all of the model's. Where a side has
    several such rows, those of equal cores and instance belong together, then the newest of each side. Of
    two runs of the same on one side, the newer counts.
    """
    kinds: defaultdict[str, list[Change]] = defaultdict(list)
    for change in _matched(before, after):
        kind = _kind(change)
        if kind is not None:
            kinds[kind].append(change)
    return Difference(**{kind: tuple(sorted(changes, key=_order)) for kind, changes in kinds.items()})


def pairs(rows: Iterable[Compared]) -> list[Pair]:
    """Give the pairs of versions that the rows are of, in order."""
    return sorted({pair_of(row) for row in rows})


def pair_of(row: Compared) -> Pair:
    """Give the row's pair of versions."""
    return Pair(row.neuronx_cc, row.library, row.library_version)


def find_pair(known: Sequence[Pair], text: str) -> Pair:
    """Give the pair that `text` names: its whole name, or a part of it that no other pair has.

    Raises `NoSuchPair` with the names there are.
    """
    text = text.removesuffix(".parquet")
    found = [pair for pair in known if pair.name == text] or [pair for pair in known if text in pair.name]
    if len(found) == 1:
        return found[0]
    names = ", ".join(pair.name for pair in (found or known)) or "none"
    if found:
        raise NoSuchPair(f"{text!r} is a part of more than one pair of versions: {names}.")
    raise NoSuchPair(f"{text!r} is no file and no pair of versions of these results; there are {names}.")


def _side(row: Compared | None) -> dict[str, Any] | None:
    if row is None:
        return None
    names = (
        "result",
        "reason",
        "stage",
        "error",
        "fingerprint",
        "warnings",
        "neuron_cores",
        "instance",
        "neuronx_cc",
        "library",
        "library_version",
        "run_id",
    )
    return {name: getattr(row, name) for name in names} | {"tested_at": row.tested_at.isoformat()}


def _subject(row: Compared) -> tuple[object, ...]:
    return (row.model_id, row.revision, row.task, row.checkpoint_kind, row.device_kind)


_BELONG: tuple[Callable[[Compared], object], ...] = (
    lambda row: (_subject(row), row.dtype, row.neuron_cores, row.instance),
    lambda row: (_subject(row), row.dtype, row.neuron_cores),
    lambda row: (_subject(row), row.dtype),
)
"""What two rows share that belong together, the closest first."""


def _matched(before: Iterable[Compared], after: Iterable[Compared]) -> list[Change]:
    old, new = _newest_first(before), _newest_first(after)
    changes: list[Change] = []
    for shared in _BELONG:
        waiting: defaultdict[object, list[Compared]] = defaultdict(list)
        for row in old:
            waiting[shared(row)].append(row)
        unmatched = []
        for row in new:
            if waiting[shared(row)]:
                changes.append(Change(waiting[shared(row)].pop(0), row))
            else:
                unmatched.append(row)
        matched = {id(change.before) for change in changes}
        old, new = [row for row in old if id(row) not in matched], unmatched
    return changes + _with_those_never_run(old, new)


def _with_those_never_run(old: list[Compared], new: list[Compared]) -> list[Change]:
    """Pair what is left: a row without a dtype was skipped unrun, and goes with each of the other side's."""
    skipped_old = {_subject(row): row for row in reversed(old) if row.dtype is None}
    skipped_new = {_subject(row): row for row in reversed(new) if row.dtype is None}
    changes = [Change(skipped_old.get(_subject(row)), row) for row in new if row.dtype is not None]
    changes += [Change(row, skipped_new.get(_subject(row))) for row in old if row.dtype is not None]
    used = {id(row) for change in changes for row in (change.before, change.after)}
    changes += [Change(row, None) for row in skipped_old.values() if id(row) not in used]
    changes += [Change(None, row) for row in skipped_new.values() if id(row) not in used]
    return changes


def _newest_first(rows: Iterable[Compared]) -> list[Compared]:
    newest: dict[object, Compared] = {}
    for row in sorted(rows, key=_age, reverse=True):
        newest.setdefault(_BELONG[0](row), row)
    return list(newest.values())


def _age(row: Compared) -> tuple[datetime, str]:
    return (row.tested_at, row.run_id)


def _result(row: Compared | None) -> str:
    return "SKIPPED" if row is None else row.result


def _kind(change: Change) -> str | None:
    match _result(change.before), _result(change.after):
        case "PASS", "FAIL":
            return "broken"
        case "FAIL", "PASS":
            return "fixed"
        case "FAIL", "FAIL":
            return "still_failing"
        case "PASS", "PASS":
            return "still_passing"
        case "SKIPPED", "PASS" | "FAIL":
            return "new"
        case "PASS" | "FAIL", "SKIPPED":
            return "gone"
        case _:
            return None


def _order(change: Change) -> tuple[str, str, str, str, int]:
    row = change.row
    return (row.model_id, row.task, row.revision or "", row.dtype or "", row.neuron_cores or 0)
