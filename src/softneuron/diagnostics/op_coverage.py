"""Which operators of PyTorch's own database run on a core with the CPU's numbers: `make op-coverage`.

A sweep over operators and dtypes, each batch in a process of its own, so that a
crash ends one batch and is named. Every case is a line in a journal; a sweep
that is started again goes on where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

CASE_SECONDS = 300
BATCH = 40
COUNTS = ("cases", "clean", "ran", "equal", "words", "crashes")


def build_digest() -> str:
    """Names the C++ core that ran, so that a journal never mixes two."""
    from softneuron import _C

    return hashlib.sha256(Path(_C.__file__).read_bytes()).hexdigest()[:12]


class Journal:
    """One JSON line per finished case; the last line of a case counts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> dict[str, dict[str, Any]]:
        """Rows by case name. A line that was cut short is left out."""
        found: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    row = json.loads(line)
                    found[row["case"]] = row
                except (ValueError, KeyError):
                    continue
        return found

    def append(self, row: dict[str, Any]) -> None:
        """Add one row and make it stay."""
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def worker(journal: Path) -> None:
    """Run the cases named on standard input, one a line; say which one is running on standard output."""
    import warnings

    from softneuron.diagnostics.op_cases import Case, run_case

    warnings.simplefilter("ignore")
    book, build = Journal(journal), build_digest()
    for line in sys.stdin:
        operator, dtype = line.rstrip("\n").split("\t")
        print(line, end="", flush=True)
        try:
            outcome = asdict(run_case(Case(operator, dtype)))
        except Exception as error:
            outcome = {
                "tallies": {},
                "words": [],
                "failures": [],
                "broken": f"{type(error).__name__}: {error}",
            }
        outcome["case"] = f"{operator} {dtype}"
        book.append({**outcome, "build": build})


def run_batch(cases: Sequence[str], journal: Path) -> None:
    """Run `cases` ("operator<tab>dtype") in a process; one that kills it or hangs is written down."""
    left = list(cases)
    while left:
        command = [sys.executable, "-m", __spec__.name, "--worker", "--journal", str(journal)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        limit = CASE_SECONDS + 30 * len(left)
        try:
            out, err = process.communicate("".join(f"{case}\n" for case in left), timeout=limit)
            ended = f"exit status {process.returncode}"
            if process.returncode < 0:
                ended = f"signal {-process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            ended = f"no end after {limit} s"
        started = out.splitlines()
        if process.returncode == 0 and len(started) == len(left):
            return
        last = started[-1] if started else left[0]
        Journal(journal).append(
            {
                "case": last.replace("\t", " "),
                "build": build_digest(),
                "tallies": {},
                "words": [],
                "failures": [f"crash: the process ended with {ended}: {err.strip()[-300:]}"],
            }
        )
        left = left[left.index(last) + 1 :]


def summary(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Samples that ran on the CPU and those equal on a core, by dtype and in all."""
    total: dict[str, dict[str, int]] = {}
    for row in rows:
        dtype = row["case"].rsplit(" ", 1)[1]
        for key in (dtype, "all"):
            entry = total.setdefault(
                key, {"cases": 0, "clean": 0, "ran": 0, "equal": 0, "words": 0, "crashes": 0}
            )
            entry["cases"] += 1
            entry["clean"] += not row["failures"]
            entry["crashes"] += any(failure.startswith("crash") for failure in row["failures"])
            entry["words"] += len(row["words"])
            for tally in row["tallies"].values():
                entry["ran"] += tally["ran"]
                entry["equal"] += tally["equal"]
    return total


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The result as Markdown: figures by dtype, then every case that differs."""
    lines = [
        "| dtype | cases | without a difference | samples the CPU runs | bit-equal on a core | % | crashes |",
        "|---|---|---|---|---|---|---|",
    ]
    for dtype, entry in summary(rows.values()).items():
        share = 100 * entry["equal"] / entry["ran"] if entry["ran"] else 0.0
        lines.append(
            f"| {dtype} | {entry['cases']} | {entry['clean']} | {entry['ran']} | {entry['equal']} "
            f"| {share:.3f} | {entry['crashes']} |"
        )
    lines += ["", "| case | samples that differ | first difference |", "|---|---|---|"]
    for name, row in sorted(rows.items()):
        if row["failures"]:
            first = row["failures"][0].replace("|", "\\|").replace("\n", " ")[:200]
            lines.append(f"| {name} | {len(row['failures'])} | {first} |")
    return "\n".join(lines) + "\n"


def sweep(directory: Path, operators: Sequence[str], dtypes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run what the journal in `directory` lacks; give its rows."""
    from softneuron.diagnostics.op_cases import all_cases

    directory.mkdir(parents=True, exist_ok=True)
    journal = directory / "journal.jsonl"
    build = build_digest()
    done = {name for name, row in Journal(journal).rows().items() if row["build"] == build}
    wanted = [
        case
        for case in all_cases()
        if (not operators or case.operator in operators) and (not dtypes or case.dtype in dtypes)
    ]
    todo = [f"{case.operator}\t{case.dtype}" for case in wanted if str(case) not in done]
    for start in range(0, len(todo), BATCH):
        run_batch(todo[start : start + BATCH], journal)
        print(
            f"op-coverage: {min(start + BATCH, len(todo))} of {len(todo)} cases", file=sys.stderr, flush=True
        )
    rows = Journal(journal).rows()
    return {str(case): rows[str(case)] for case in wanted if str(case) in rows}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: `python -m softneuron.diagnostics.op_coverage [DIRECTORY] [--operator NAME ...]`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=Path("op-coverage"))
    parser.add_argument("--operator", action="append", default=[])
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.worker:
        worker(chosen.journal)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = sweep(chosen.directory, chosen.operator, chosen.dtype)
    text = table(rows)
    (chosen.directory / "table.md").write_text(text)
    (chosen.directory / "summary.json").write_text(json.dumps(summary(rows.values()), indent=2) + "\n")
    print(text)


if __name__ == "__main__":
    main()
