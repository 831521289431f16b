"""`make faults`: inject every fault, print the table (injected, workload, expected, got), keep the scores."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from faults.running import Result, not_as_expected, run_all
from faults.table import Case, cases, unbroken


def main() -> int:
    """Run the table; 1 when a case is not as expected."""
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path(".faults"), help="where to keep models and scores"
    )
    parser.add_argument("--only", default="", help="only faults with this in their name or workload")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    args = parser.parse_args()
    folder = args.folder.resolve()
    chosen = [case for case in (*unbroken(), *cases()) if args.only in f"{case.fault} {case.on}"]
    console = Console(stderr=True)
    start = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    kept = _kept_of_others(folder / "faults.json", chosen)
    before = len(kept)

    def seen(result: Result) -> None:
        kept.append(_kept(result))
        # Whatever ends this early, what was measured stays.
        (folder / "faults.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
        mark = "ok" if result.as_expected else "NOT AS EXPECTED"
        spent = time.monotonic() - start
        console.print(
            f"[{spent:6.1f} s] {len(kept) - before}/{len(chosen)} {_injected(result.case)} "
            f"on {result.case.on}: {result.outcome} {mark}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    results = run_all(chosen, folder, args.workers, seen)
    Console(width=160 if not sys.stdout.isatty() else None).print(_table(results))
    wrong = not_as_expected(results)
    minutes = (time.monotonic() - start) / 60
    print(f"{len(results)} cases in {minutes:.1f} minutes, {len(wrong)} not as expected.")
    for each in wrong:
        fired = "" if each.fired or not each.case.fault else "; the fault NEVER FIRED"
        print(f"  {_injected(each.case)} on {each.case.on}: {each.outcome}{fired}. {each.remark}")
    return 1 if wrong else 0


def _injected(case: Case) -> str:
    return case.fault or "nothing"


def _table(results: list[Result]) -> Table:
    table = Table("injected", "workload", "expected", "got", "score", "")
    for each in results:
        score = "" if each.score is None else f"{each.score:.3g}"
        mark = "[green]ok[/]" if each.as_expected else "[bold red]not as expected[/]"
        expected = " or ".join(each.case.expected)
        table.add_row(_injected(each.case), each.case.on, expected, each.outcome, score, mark)
    return table


def _kept_of_others(path: Path, chosen: list[Case]) -> list[dict[str, object]]:
    """What earlier runs left of cases that are not run now."""
    again = {(case.fault, case.on) for case in chosen}
    if not path.exists():
        return []
    found: list[dict[str, object]] = json.loads(path.read_text(encoding="utf-8"))
    return [each for each in found if (each["fault"], each["workload"]) not in again]


def _kept(result: Result) -> dict[str, object]:
    return {
        "fault": result.case.fault,
        "workload": result.case.on,
        "expected": list(result.case.expected),
        "got": result.outcome,
        "score": result.score,
        "as_expected": result.as_expected,
    }


if __name__ == "__main__":
    sys.exit(main())
