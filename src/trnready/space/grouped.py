"""The rows of a snapshot grouped once, for the pages that ask about versions, devices and failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trnready.results import diff
from trnready.results.diff import Pair
from trnready.results.row import DEVICE_KINDS
from trnready.space.addresses import pairs_of, words
from trnready.space.plain import shown
from trnready.space.query import BadQuery, NotThere
from trnready.space.runs import Run


@dataclass(frozen=True, slots=True)
class Grouped:
    """`rows` by pair of versions and kind of device; `pairs` are the newest first; `by_fingerprint` holds the
    runs that did not pass."""

    rows: Mapping[tuple[Pair, str], Sequence[Run]]
    pairs: Sequence[Pair]
    tasks: Sequence[str]
    by_fingerprint: Mapping[str, Sequence[Run]]

    def devices(self, pair: Pair | None = None) -> list[str]:
        """Give the kinds of device that rows of a pair, or of any, were run on; hardware first."""
        found = {device for each, device in self.rows if pair in (None, each)}
        return [kind for kind in DEVICE_KINDS if kind in found]

    def pairs_on(self, device: str) -> list[Pair]:
        """Give the pairs that were tested on a kind of device, the newest first."""
        return [pair for pair in self.pairs if (pair, device) in self.rows]

    def chosen(self, pair: Pair | None, device: str, task: str) -> list[Run]:
        """Give the rows of a pair, device and task; None and empty texts mean any."""
        groups = (
            rows for (each, kind), rows in self.rows.items() if pair in (None, each) and device in ("", kind)
        )
        return [row for rows in groups for row in rows if task in ("", row.task)]

    def pair(self, name: str) -> Pair | None:
        """Give the pair of this name, None for an empty one. Raises `NotThere`."""
        if not name:
            return None
        found = next((pair for pair in self.pairs if pair.name == name), None)
        if found is None:
            known = "; ".join(words(pair) for pair in self.pairs[:6]) or "none yet"
            raise NotThere(f"There are no results with the versions {shown(name)}. There are: {known}.")
        return found

    def check(self, device: str, task: str) -> None:
        """Raise `BadQuery` for a kind of device or a task that is not there."""
        if device and device not in DEVICE_KINDS:
            kinds = " and ".join(DEVICE_KINDS)
            raise BadQuery(f"There is no device kind {shown(device)}; there are {kinds}.")
        if task and task not in self.tasks:
            raise NotThere(f"There are no results of a task called {shown(task)}.")


def group(rows: Iterable[Run]) -> Grouped:
    """Group the rows."""
    groups: defaultdict[tuple[Pair, str], list[Run]] = defaultdict(list)
    marks: defaultdict[str, list[Run]] = defaultdict(list)
    tasks = set()
    for row in rows:
        groups[diff.pair_of(row), row.device_kind].append(row)
        tasks.add(row.task)
        if row.fingerprint and row.result != "PASS":
            marks[row.fingerprint].append(row)
    pairs = pairs_of(members[0] for members in groups.values())
    return Grouped(dict(groups), pairs, sorted(tasks), dict(marks))
