"""How much of the Hub's lists the results cover, and what is known of every architecture. The index asks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trnready.plan import quantization
from trnready.results.row import RESULTS
from trnready.space.ask import CUTS, Architecture, Ask, Coverage, Share, View
from trnready.space.names import Ids, Mask
from trnready.space.snapshot import RESULT_CODE, Best, Snapshot

LISTS: tuple[View, ...] = ("trending", "downloads")


def coverage(snapshot: Snapshot, ask: Ask) -> Coverage:
    """Give the shares and the architectures, for the task, versions and device that were asked for."""
    key = (ask.task, ask.neuronx_cc, ask.library, ask.library_version, ask.device_kind)
    return snapshot.wholes.get(
        ("coverage", key), lambda: Coverage(_shares(snapshot, ask), _architectures(snapshot, ask))
    )


def _shares(snapshot: Snapshot, ask: Ask) -> list[Share]:
    best, twins = snapshot.best(ask), _twin_passes(snapshot)
    downloads = np.maximum(snapshot.facts("downloads"), 0)
    shares = []
    for view in LISTS:
        for task in snapshot.tasks if ask.task is None else [ask.task]:
            whole = snapshot.base(replace(ask, view=view, task=task))
            if not len(whole):
                continue
            tops = (*(cut for cut in CUTS if cut < len(whole)), None)
            shares += [_share(view, task, top, whole[:top], best, twins, downloads) for top in tops]
    return shares


def _share(
    view: str, task: str, top: int | None, head: Ids, best: Best, twins: Mask, downloads: npt.NDArray[Any]
) -> Share:
    result = best.result[head]
    passed = result == RESULT_CODE["PASS"]
    failed = result == RESULT_CODE["FAIL"]
    tested, predicted = passed | failed, ~(passed | failed) & twins[head]

    def total(mask: Mask) -> int:
        return int(downloads[head][mask].sum())

    return Share(
        list=view,
        task=task,
        top=top,
        listed=len(head),
        tested=int(tested.sum()),
        passed=int(passed.sum()),
        failed=int(failed.sum()),
        predicted=int(predicted.sum()),
        downloads=int(downloads[head].sum()),
        tested_downloads=total(tested),
        passed_downloads=total(passed),
        failed_downloads=total(failed),
        predicted_downloads=total(predicted),
    )


def _twin_passes(snapshot: Snapshot) -> Mask:
    """Say of each entry whether its architecture's twin passed and stands for it: twins are not quantized."""
    names = snapshot.names

    def passes(model_type: str | None, task: str) -> bool:
        twin = snapshot.twins.get((model_type, task)) if model_type else None
        return twin is not None and twin.result == "PASS"

    # The last column is for entries whose architecture is not known: -1.
    kinds = [*names.model_types, None]
    table = np.array([[passes(kind, task) for kind in kinds] for task in names.tasks], np.bool_)
    own = table.reshape(len(names.tasks), len(kinds))[names.task, names.model_type]
    more = [
        passes(each.model_type, each.task) and quantization.in_name(each.model_id) is None
        for each in snapshot.more
    ]
    return np.concatenate([own & ~names.quantized, np.array(more, np.bool_)])


def _architectures(snapshot: Snapshot, ask: Ask) -> list[Architecture]:
    listed, downloads = _listed(snapshot)
    results: dict[tuple[str, str], Counter[str]] = {}
    best = snapshot.best(ask)
    for number in best.run[best.run >= 0].tolist():
        run = snapshot.runs.all[number]
        if run.model_type:
            results.setdefault((run.model_type, run.task), Counter())[run.result] += 1
    found = [
        Architecture(
            *key,
            snapshot.twins.get(key),
            listed[key],
            downloads[key],
            *(results.get(key, Counter())[name] for name in RESULTS),
        )
        for key in {*snapshot.twins, *listed, *results}
        if ask.task in (None, key[1])
    ]
    return sorted(found, key=lambda each: (-each.downloads, -each.listed, each.model_type, each.task))


def _listed(snapshot: Snapshot) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Count the listed models of each architecture and task, and their downloads."""
    names = snapshot.names
    known = names.model_type >= 0
    codes = names.task[known].astype(np.int64) * len(names.model_types) + names.model_type[known]
    counts = np.bincount(codes)
    sums = np.bincount(codes, weights=np.maximum(names.facts["downloads"][known], 0))
    listed: Counter[tuple[str, str]] = Counter()
    downloads: Counter[tuple[str, str]] = Counter()
    for code in np.flatnonzero(counts).tolist():
        task, model_type = divmod(code, len(names.model_types))
        key = (names.model_types[model_type], names.tasks[task])
        listed[key], downloads[key] = int(counts[code]), int(sums[code])
    return listed, downloads
