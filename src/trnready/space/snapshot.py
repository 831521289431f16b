"""Everything that the Space knows at one moment, and the answers to what is asked of it. A snapshot never
changes, so what was worked out once is kept. `trnready.space.index` makes one whenever a file has changed."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from trnready.plan import quantization
from trnready.plan.trainium import LARGE, MOST_CORES, SMALL
from trnready.plan.twin_row import TwinRow
from trnready.results.row import DEVICE_KINDS, RESULTS, Row
from trnready.space.ask import (
    ALL_REASONS,
    BYTES_PER_PARAMETER,
    PAGE_SIZE,
    Ask,
    Counts,
    Entry,
    FailureGroup,
    Listing,
    Pair,
    Prediction,
    View,
    check,
)
from trnready.space.names import Ids, Listed, Mask, Names, fold
from trnready.space.query import NotThere
from trnready.space.runs import Run, Runs

T = TypeVar("T")

RESULT_CODE = {name: code for code, name in enumerate(RESULTS)}
_REASON_CODE = {name: code for code, name in enumerate(ALL_REASONS)}
_LARGEST_FIRST = frozenset({"downloads", "trending", "likes", "tested_at", "speed"})
_RUN_SORTS: dict[str, Callable[[Run], float | int | None]] = {
    "result": lambda run: RESULT_CODE[run.result],
    "cores": lambda run: run.neuron_cores,
    "wall_time": lambda run: run.wall_time_s,
    "memory": lambda run: run.peak_memory_bytes,
    "speed": lambda run: run.tokens_per_s,
    "tested_at": lambda run: run.tested_at.timestamp(),
}


@dataclass(frozen=True, slots=True)
class Best:
    """The row to show for each entry, for one choice of versions and device: `run` numbers it in the
    snapshot's runs, -1 where there is none; `result` and `reason` are codes, -1 likewise. `known` are the
    entries that have a result."""

    known: Ids
    run: Ids
    result: npt.NDArray[np.int8]
    reason: npt.NDArray[np.int8]


class _Kept:
    """Answers that were worked out, the last few used; safe to share between threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                found: T = self._values[key]
                return found
        made = make()
        with self._lock:
            self._values[key] = made
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return made


class _RunColumns:
    """Columns of all runs as arrays, for choosing and sorting many at once."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._devices = [
            _codes([_device(run)[place] for run in runs]) for place in range(len(_device(Ask())))
        ]
        self.result = np.array([RESULT_CODE[run.result] for run in runs], np.int8)
        self.reason = np.array([_REASON_CODE[run.reason] for run in runs], np.int8)
        self.values = {sort: _values(runs, value) for sort, value in _RUN_SORTS.items()}
        """What runs are sorted by, NaN where it is not known. One more than there are runs: the last stands
        for entries without a run, whose number is -1."""

    def where(self, device: tuple[str | None, ...]) -> Mask:
        """Say of each run whether it is of these versions and this device; None means any."""
        found: Mask = np.ones(len(self._runs), np.bool_)
        for wanted, (codes, column) in zip(device, self._devices, strict=True):
            if wanted is not None:
                found &= column == codes.get(wanted, -1)
        return found


def _values(runs: Sequence[Run], value: Callable[[Run], float | int | None]) -> npt.NDArray[np.float64]:
    known = [value(run) for run in runs]
    return np.array([*(np.nan if each is None else each for each in known), np.nan], np.float64)


def _codes(words: Sequence[str | None]) -> tuple[dict[str | None, int], Ids]:
    codes = {word: code for code, word in enumerate(dict.fromkeys(words))}
    return codes, np.array([codes[word] for word in words], np.int32)


class Snapshot:
    """The names, the runs and the twins at one moment; safe to share between threads."""

    def __init__(self, names: Names, runs: Runs, twins: Sequence[TwinRow]) -> None:
        self.names, self.runs = names, runs
        self.twins = {(twin.model_type, twin.task): twin for twin in twins if twin.cores == 1}
        self.split_twins = {(twin.model_type, twin.task): twin for twin in twins if twin.cores > 1}
        self._entry_of: dict[tuple[str, str], int] = {}
        self.more: list[Listed] = []
        """Models that were tested and are in no list; they are numbered after those of `names`."""
        self._run_entry = np.array([self._entry(run) for run in runs.all], np.int32)
        self._run_order = np.array(
            sorted(range(len(runs.all)), key=lambda number: _preference(runs.all[number])), np.int32
        )
        self._count = len(names) + len(self.more)
        self._more_names = [fold(each.model_id) for each in self.more]
        self.tasks = sorted({*names.tasks, *(run.task for run in runs.all)})
        own_tasks = np.array([self.tasks.index(task) for task in names.tasks], np.int32)
        more_tasks = np.array([self.tasks.index(each.task) for each in self.more], np.int32)
        self._task = np.concatenate([own_tasks[names.task], more_tasks])
        self._left_out_reason = np.full(self._count, -1, np.int8)
        for number, reason in names.left_out.items():
            self._left_out_reason[number] = _REASON_CODE[reason]
        self._by_name = names.order_with(self._more_names)
        by_age = sorted(range(len(runs.all)), key=lambda place: runs.all[place].tested_at)
        self._place_of_run = {runs.all[place].run_id: place for place in by_age}
        self._of_runs = _RunColumns(runs.all)
        self._bests, self._orders = _Kept(24), _Kept(64)
        self._searches, self.wholes = _Kept(128), _Kept(32)

    def _entry(self, run: Run) -> int:
        """Give the number of the entry that a run belongs to; one that no catalog lists gets a new one."""
        key = (run.model_id, run.task)
        if key not in self._entry_of:
            listed = self.names.tasks_of(run.model_id)
            if run.task in listed:
                self._entry_of[key] = listed[run.task]
            else:
                known = self.names.models([next(iter(listed.values()))])[0] if listed else None
                self._entry_of[key] = len(self.names) + len(self.more)
                self.more.append(_unlisted(run, known))
        return self._entry_of[key]

    def list(self, ask: Ask) -> Listing:
        """Give one page of what was asked for. Raises `BadQuery`."""
        check(ask)
        ordered, counts = self._whole(ask)
        pages = max(1, -(-len(ordered) // ask.page_size))
        if not 1 <= ask.page <= pages:
            raise NotThere(f"There is no page {ask.page}; this list has {pages}.")
        shown = ordered[(ask.page - 1) * ask.page_size : ask.page * ask.page_size]
        entries = self._entries(shown.tolist(), self.best(ask), ask.view)
        return Listing(list(entries), len(ordered), counts, ask.page, pages)

    def model(self, model_id: str, task: str | None = None, ask: Ask | None = None) -> Entry | None:
        """Give what is known of a model, with its newest row of the versions and device that were asked for;
        None when it is neither listed nor tested.

        A name with other capitals is found when there is none with these. Without a task, one that was tested
        comes first, then the one that the Hub lists it under.
        """
        name = model_id
        if not self._numbers_of(name):
            name = self.names.spelled(model_id) or model_id
        best = self.best(ask or Ask())
        numbers = [each for each in self._numbers_of(name) if task in (None, self.tasks[self._task[each]])]
        if not numbers:
            return None
        chosen = min(numbers, key=lambda number: (best.run[number] < 0, number))
        return self._entries([chosen], best, "results")[0]

    def runs_of(self, model_id: str) -> Sequence[Run]:
        """Give every row of a model: hardware before software, then the newest first."""
        return [self.runs.all[place] for place in self._places_of(model_id)]

    def rows_of(self, model_id: str) -> Sequence[Row]:
        """Give every row of a model, whole, in the order of `runs_of`."""
        return self.runs.rows(self._places_of(model_id))

    def row(self, run_id: str) -> Row | None:
        """Give the row of a run, whole; the newest, should two share the name; None when it is not there."""
        place = self._place_of_run.get(run_id)
        return None if place is None else self.runs.rows([place])[0]

    def row_json(self, run_id: str) -> bytes | None:
        """Give what `row` gives as JSON, as it was stored."""
        place = self._place_of_run.get(run_id)
        return None if place is None else self.runs.content(place)

    def _places_of(self, model_id: str) -> Sequence[int]:
        runs = self.runs.all
        start = bisect_left(runs, model_id, key=lambda run: run.model_id)
        end = bisect_right(runs, model_id, key=lambda run: run.model_id)
        return sorted(
            range(start, end), key=lambda at: (runs[at].device_kind, -runs[at].tested_at.timestamp())
        )

    def runs_where(
        self,
        *,
        task: str | None = None,
        neuronx_cc: str | None = None,
        library: str | None = None,
        library_version: str | None = None,
        device_kind: str | None = None,
        fingerprint: str | None = None,
    ) -> Sequence[Run]:
        """Give the rows of these versions, in order of name; None means any."""
        wanted = {
            "task": task,
            "neuronx_cc": neuronx_cc,
            "library": library,
            "library_version": library_version,
            "device_kind": device_kind,
            "fingerprint": fingerprint,
        }
        chosen = {name: value for name, value in wanted.items() if value is not None}
        return [run for run in self.runs.all if all(getattr(run, n) == v for n, v in chosen.items())]

    def pairs(self) -> Sequence[Pair]:
        """Give every pair of versions that was tested, hardware before software, newest versions first."""
        return self.wholes.get("pairs", lambda: _pairs(self.runs.all))

    def fingerprints(
        self,
        *,
        task: str | None = None,
        neuronx_cc: str | None = None,
        library_version: str | None = None,
        device_kind: str | None = None,
    ) -> Sequence[FailureGroup]:
        """Give the failures that are alike, the largest groups first."""
        key = ("groups", task, neuronx_cc, library_version, device_kind)
        return self.wholes.get(
            key,
            lambda: _groups(
                self.runs_where(
                    task=task,
                    neuronx_cc=neuronx_cc,
                    library_version=library_version,
                    device_kind=device_kind,
                )
            ),
        )

    def base(self, ask: Ask) -> Ids:
        """Give the entries of a view in its own order, before any search and filter."""
        if ask.view == "results":
            best = self.best(ask)
            return self._in_order(("results", _device(ask)), ask.task, lambda: self._tested_by_name(best))
        places = {
            "selected": self.names.selected,
            "trending": self.names.trending,
            "downloads": self.names.downloads,
        }[ask.view]
        return self._in_order(ask.view, ask.task, lambda: _placed(places))

    def best(self, ask: Ask) -> Best:
        """Give the row to show for each entry, for the versions and device that were asked for."""
        device = _device(ask)
        return self._bests.get(device, lambda: self._make_best(device))

    def facts(self, name: str) -> npt.NDArray[Any]:
        """Give a number of every entry, -1 where it is not known: downloads, trending, likes, parameters."""
        own = self.names.facts[name]
        more = [getattr(each, name) for each in self.more]
        return np.concatenate([own, np.array([-1 if each is None else each for each in more], own.dtype)])

    def _whole(self, ask: Ask) -> tuple[Ids, Counts]:
        """Give all entries that match, in order, and the counts before the last filters."""
        key = replace(ask, page=1, page_size=PAGE_SIZE)
        return self._orders.get(key, lambda: self._make_whole(ask))

    def _make_whole(self, ask: Ask) -> tuple[Ids, Counts]:
        best = self.best(ask)
        base = self.base(ask)
        matching = self._members(ask, base)
        words = fold(ask.search).split()
        if words:
            found = self._searches.get(tuple(words), lambda: self._search(words))
            matching = matching & found
            base = base[found[base]]
        counts = _count_up(len(base), best.result[best.known[matching[best.known]]])
        return self._sorted(ask, self._filtered(ask, base, best), best), counts

    def _members(self, ask: Ask, base: Ids) -> Mask:
        """Say of each entry whether it is in a view, whose entries are given."""

        def make() -> Mask:
            found: Mask = np.zeros(self._count, np.bool_)
            found[base] = True
            return found

        device = _device(ask) if ask.view == "results" else None
        return self._orders.get(("members", ask.view, ask.task, device), make)

    def _in_order(self, key: Hashable, task: str | None, make: Callable[[], Ids]) -> Ids:
        whole = self._orders.get(key, make)
        if task is None:
            return whole
        number = self.tasks.index(task) if task in self.tasks else -1
        return self._orders.get((key, task), lambda: whole[self._task[whole] == number])

    def _tested_by_name(self, best: Best) -> Ids:
        order = self._by_name
        return order[best.run[order] >= 0]

    def _make_best(self, device: tuple[str | None, ...]) -> Best:
        chosen = self._run_order[self._of_runs.where(device)[self._run_order]]
        run = np.full(self._count, -1, np.int32)
        run[self._run_entry[chosen]] = chosen  # The last one wins, and the best is last.
        left_out = self._left_out_reason >= 0
        result = np.where(left_out, RESULT_CODE["SKIPPED"], -1).astype(np.int8)
        reason = self._left_out_reason.copy()
        tested = np.flatnonzero(run >= 0)
        result[tested] = self._of_runs.result[run[tested]]
        reason[tested] = self._of_runs.reason[run[tested]]
        return Best(np.flatnonzero(result >= 0).astype(np.int32), run, result, reason)

    def _search(self, words: Sequence[str]) -> Mask:
        more = [all(word in name for word in words) for name in self._more_names]
        return np.concatenate([self.names.search(words), np.array(more, np.bool_)])

    def _filtered(self, ask: Ask, base: Ids, best: Best) -> Ids:
        if ask.result is not None:
            base = base[best.result[base] == RESULT_CODE.get(ask.result, -1)]
        if ask.reason is not None:
            base = base[best.reason[base] == _REASON_CODE[ask.reason]]
        if ask.fingerprint is not None:
            runs = self.runs.all
            keep = [n >= 0 and runs[n].fingerprint == ask.fingerprint for n in best.run[base].tolist()]
            base = base[np.array(keep, np.bool_)]
        return base

    def _sorted(self, ask: Ask, base: Ids, best: Best) -> Ids:
        descending = ask.sort in _LARGEST_FIRST if ask.descending is None else ask.descending
        if ask.sort == "position":
            return base[::-1] if descending else base
        if ask.sort == "tested_first":
            tested = best.run[base] >= 0
            first, then = (~tested, tested) if descending else (tested, ~tested)
            return np.concatenate([base[first], base[then]])
        if ask.sort in _RUN_SORTS:
            values = self._of_runs.values[ask.sort][best.run[base]]
            known = ~np.isnan(values)
            order = np.argsort(-values[known] if descending else values[known], kind="stable")
            return np.concatenate([base[known][order], base[~known]])
        wanted = np.zeros(self._count, np.bool_)
        wanted[base] = True
        whole = self._fact_order(ask.sort, descending)
        return whole[wanted[whole]]

    def _fact_order(self, sort: str, descending: bool) -> Ids:
        """Give all entries by name or by a fact; those of which it is not known come last."""

        def make() -> Ids:
            if sort == "name":
                return self._by_name[::-1] if descending else self._by_name
            values = self.facts(sort)
            order = self.names.descending[sort]
            if (values[len(order) :] >= 0).any():
                order = np.argsort(-values, kind="stable").astype(np.int32)
            else:
                order = np.concatenate([order, np.arange(len(order), self._count, dtype=np.int32)])
            known = np.count_nonzero(values >= 0)
            return order if descending else np.concatenate([order[:known][::-1], order[known:]])

        return self._orders.get(("facts", sort, descending), make)

    def _numbers_of(self, model_id: str) -> Sequence[int]:
        listed = self.names.tasks_of(model_id).values()
        more = (len(self.names) + i for i, each in enumerate(self.more) if each.model_id == model_id)
        return sorted({*listed, *more})

    def _entries(self, numbers: Sequence[int], best: Best, view: View) -> Sequence[Entry]:
        own = len(self.names)
        listed = iter(self.names.models([number for number in numbers if number < own]))
        found = [next(listed) if number < own else self.more[number - own] for number in numbers]
        return [
            self._entry_from(each, int(best.run[number]), view)
            for number, each in zip(numbers, found, strict=True)
        ]

    def _entry_from(self, each: Listed, run: int, view: View) -> Entry:
        row = self.runs.all[run] if run >= 0 else None
        places = {
            "selected": each.selected_position,
            "trending": each.trending_position,
            "downloads": each.downloads_position,
            "results": None,
        }
        model_type = each.model_type or (row.model_type if row else None)
        return Entry(
            model_id=each.model_id,
            task=each.task,
            position=places[view],
            downloads=each.downloads,
            trending=each.trending,
            model_type=model_type,
            parameters=each.parameters,
            license=each.license,
            gated=each.gated,
            likes=each.likes,
            created=each.created,
            downloads_position=each.downloads_position,
            trending_position=each.trending_position,
            selected_position=each.selected_position,
            why=each.why,
            left_out=each.left_out,
            row=row,
            prediction=self._predict(each, model_type),
        )

    def _predict(self, each: Listed, model_type: str | None) -> Prediction | None:
        parameters = each.parameters
        twin = self.twins.get((model_type, each.task)) if model_type else None
        if twin is None and parameters is None:
            return None
        size = None if parameters is None else BYTES_PER_PARAMETER * parameters
        cores = None if size is None else cores_for(size)
        instance = None if cores is None else SMALL.name if cores <= SMALL.cores else LARGE.name
        return Prediction(
            model_type=model_type,
            twin=twin,
            split_twin=self.split_twins.get((model_type, each.task)) if model_type else None,
            parameters=parameters,
            weight_bytes=size,
            cores=cores,
            instance=instance,
            too_large=size is not None and cores is None,
            quantized=quantization.in_name(each.model_id),
        )


def cores_for(weight_bytes: int) -> int | None:
    """Give the fewest Trainium2 cores whose memory holds so many bytes; None when a test has too few."""
    sizes = (size for size in LARGE.sizes if size <= MOST_CORES)
    return next((size for size in sizes if weight_bytes <= size * LARGE.bytes_per_core), None)


def _preference(run: Run) -> tuple[bool, bool, datetime, str]:
    return (run.device_kind == "hardware", run.checkpoint_kind == "real", run.tested_at, run.run_id)


def _device(of: Ask | Run) -> tuple[str | None, ...]:
    return (of.neuronx_cc, of.library, of.library_version, of.device_kind)


def _placed(places: npt.NDArray[Any]) -> Ids:
    """Give the entries that have a place, in order of it; those of equal place in the order of the files."""
    found = np.flatnonzero(places >= 0).astype(np.int32)
    order: Ids = found[np.argsort(places[found], kind="stable")]
    return order


def _count_up(listed: int, results: npt.NDArray[np.int8]) -> Counts:
    counts = np.bincount(results, minlength=len(RESULTS)).tolist()
    passed, failed, skipped = (counts[RESULT_CODE[name]] for name in RESULTS)
    return Counts(listed, passed + failed, passed, failed, skipped)


def _unlisted(run: Run, known: Listed | None) -> Listed:
    entry = Listed(run.model_id, run.task, model_type=run.model_type)
    if known is not None:
        for name in ("model_type", "parameters", "license", "gated", "likes", "created", "downloads"):
            setattr(entry, name, getattr(known, name))
    return entry


def _pairs(runs: Iterable[Run]) -> list[Pair]:
    groups: dict[tuple[str, str, str, str], list[Run]] = {}
    for run in runs:
        key = (run.neuronx_cc, run.library, run.library_version, run.device_kind)
        groups.setdefault(key, []).append(run)
    pairs = []
    for key, members in groups.items():
        results = Counter(run.result for run in members)
        passed, failed, skipped = (results[name] for name in RESULTS)
        counts = Counts(len(members), passed + failed, passed, failed, skipped)
        pairs.append(Pair(*key, counts, max(run.tested_at for run in members)))
    pairs.sort(key=lambda p: (_version(p.neuronx_cc), _version(p.library_version), p.tested_at), reverse=True)
    return sorted(pairs, key=lambda pair: DEVICE_KINDS.index(pair.device_kind))


def _groups(runs: Iterable[Run]) -> list[FailureGroup]:
    groups: dict[tuple[str | None, str, str], list[Run]] = {}
    for run in runs:
        if run.result == "FAIL":
            groups.setdefault((run.fingerprint, run.reason, run.stage), []).append(run)
    found = [
        FailureGroup(
            *key,
            len(members),
            sorted({run.model_id for run in members}),
            max(members, key=lambda run: (run.tested_at, run.run_id)),
        )
        for key, members in groups.items()
    ]
    return sorted(found, key=lambda group: (-group.rows, group.reason, group.stage, group.fingerprint or ""))


def _version(text: str) -> tuple[tuple[int, int, str], ...]:
    """Give a version as something that sorts: 2.9 before 2.27."""
    parts = re.split(r"[.+-]", text)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)
