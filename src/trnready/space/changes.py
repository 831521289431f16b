"""What changed between two pairs of versions, worked out once for each snapshot. The API asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trnready.results import diff
from trnready.results.row import DEVICE_KINDS
from trnready.space.addresses import pairs_of
from trnready.space.query import NotThere
from trnready.space.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Compared:
    """Two pairs of versions on one kind of device and their difference; None where there are not two."""

    before: diff.Pair | None
    after: diff.Pair | None
    device_kind: str | None
    difference: diff.Difference


def compared(
    snapshot: Snapshot, before: str, after: str, device_kind: str | None, task: str | None
) -> Compared:
    """Compare two pairs, named as in the names of their files; empty texts take the two newest. Raises
    `NotThere` for a pair that is not there."""
    key = ("changes", before, after, device_kind, task)
    return snapshot.wholes.get(key, lambda: _compare(snapshot, before, after, device_kind, task))


def _compare(
    snapshot: Snapshot, before: str, after: str, device_kind: str | None, task: str | None
) -> Compared:
    everything = snapshot.runs_where(task=task)
    kinds = [kind for kind in DEVICE_KINDS if any(run.device_kind == kind for run in everything)]
    chosen = device_kind or next(iter(kinds), None)
    runs = [run for run in everything if run.device_kind == chosen]
    known, here = pairs_of(snapshot.runs.all), pairs_of(runs)
    newer = _named(known, after) or next(iter(here), None)
    older = _named(known, before) or next((pair for pair in here if pair != newer), None)
    if newer is None or older is None:
        return Compared(older, newer, chosen, diff.Difference())
    return Compared(
        older,
        newer,
        chosen,
        diff.difference(
            [run for run in runs if diff.pair_of(run) == older],
            [run for run in runs if diff.pair_of(run) == newer],
        ),
    )


def _named(known: Sequence[diff.Pair], name: str) -> diff.Pair | None:
    if not name:
        return None
    found = next((pair for pair in known if pair.name == name), None)
    if found is None:
        names = ", ".join(pair.name for pair in known[:6]) or "none yet"
        raise NotThere(f"There are no results with the versions {name[:200]!r}; there are {names}.")
    return found
