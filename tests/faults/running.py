"""Runs cases of the fault table, each in a process of its own, and says of each what was got and whether it
is as expected. A fault that never fired is not, whatever came out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from faults.table import Case
from faults.workloads import FOLDER

TIMEOUT_S = 1800.0

TOGETHER = "generate"
"""The workload whose cases share processes."""


@dataclass(frozen=True)
class Result:
    """A case and what came of it."""

    case: Case
    outcome: str
    score: float | None
    remark: str
    fired: bool

    @property
    def as_expected(self) -> bool:
        """Whether the outcome is one of those expected, and the fault really was there."""
        return self.outcome in self.case.expected and (self.fired or not self.case.fault)


def run_all(
    cases: Sequence[Case], folder: Path, workers: int, seen: Callable[[Result], None]
) -> list[Result]:
    """Run the cases, `workers` processes at a time; `seen` is told of each as it ends. Results come in the
    order of the cases. Generations of one model share a process, which switches the faults on and off."""
    folder.mkdir(parents=True, exist_ok=True)

    def run_job(job: list[Case]) -> list[Result]:
        results = [run(job[0], folder)] if len(job) == 1 else run_together(job, folder)
        for each in results:
            seen(each)
        return results

    with ThreadPoolExecutor(workers) as pool:
        done = {id(each.case): each for results in pool.map(run_job, _jobs(cases)) for each in results}
    return [done[id(case)] for case in cases]


def _jobs(cases: Sequence[Case]) -> list[list[Case]]:
    """What runs in one process each, the longest first."""
    jobs: dict[object, list[Case]] = {}
    for case in cases:
        together = (case.workload, case.arguments, case.level) if case.workload == TOGETHER else id(case)
        jobs.setdefault(together, []).append(case)
    return sorted(jobs.values(), key=len, reverse=True)


def run_together(cases: Sequence[Case], folder: Path) -> list[Result]:
    """Run generations that differ by the fault alone."""
    first = cases[0]
    job = replace(
        first, workload="several", arguments=(*first.arguments, *(each.fault for each in cases)), fault=""
    )
    told = run(job, folder)
    try:
        outcomes = json.loads(told.remark)
    except ValueError:
        return [replace(told, case=case) for case in cases]
    return [
        Result(case, outcome, score, error or "", fired)
        for case in cases
        for outcome, fired, score, error in [outcomes[case.fault]]
    ]


def run(case: Case, folder: Path) -> Result:
    """Run one case in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="case-") as name:
        out, log = Path(name) / "out.json", Path(name) / "log"
        with log.open("wb") as output:
            try:
                subprocess.run(
                    [sys.executable, "-m", "faults.workloads", case.workload, str(out), *case.arguments],
                    env=_environment(case, folder),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=TIMEOUT_S,
                )
            except subprocess.TimeoutExpired:
                return Result(case, f"still running after {TIMEOUT_S:g} s", None, "", False)
        said = log.read_text(encoding="utf-8", errors="replace")
        if not out.exists():
            return Result(case, "died", None, " ".join(said[-400:].split()), _fired(case, said))
        told = json.loads(out.read_text(encoding="utf-8"))
        return Result(case, told["outcome"], told["score"], told["remark"], _fired(case, said))


def _fired(case: Case, said: str) -> bool:
    # Of several processes one is enough: a model that fits on two small cores met their limit on one.
    return f"softneuron: fault {case.name} fired" in said


def _environment(case: Case, folder: Path) -> dict[str, str]:
    tests = str(Path(__file__).resolve().parent.parent)
    environment = os.environ | {
        FOLDER: str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH")))),
        "NEURON_COMPILER_OPT_LEVEL": case.level,
        "TORCH_NEURONX_NEFF_CACHE_DIR": str(folder / "neff" / _cache_of(case)),
        "OMP_NUM_THREADS": "1",
        "SOFTNEURON_FAULTS": "",
    }
    environment["ASKED_FAULTS" if case.by_itself else "SOFTNEURON_FAULTS"] = case.fault
    return environment


def _cache_of(case: Case) -> str:
    """Faults of the cache, and the mark that every second run turns, have a folder of their own."""
    own = case.workload == "poisoned_cache" or case.name == "every_second_run"
    return re.sub(r"\W", "-", case.fault) if own else "shared"


def not_as_expected(results: Iterable[Result]) -> list[Result]:
    """The results that are not as expected."""
    return [each for each in results if not each.as_expected]
