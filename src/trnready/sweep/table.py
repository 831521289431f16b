"""The tables of docs/plan.md, made from the sweeps' files: how many twins came to what, and how many are
missing. `make sweep-tables` writes them; a test holds the page to it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from trnready.plan.architectures import AUTO_CLASSES, Architecture
from trnready.plan.twin_row import TwinRow, read_rows

TASKS = {"text-generation": "text", "image-text-to-text": "images"}
COLUMNS: Mapping[str, str] = {
    "architectures.jsonl": "one core",
    "architectures-2-cores.jsonl": "two cores",
    "architectures-O1.jsonl": "one core, `-O1`",
}
"""The files of the sweeps, and what their columns are called."""
SAMPLES = ("architectures-O1.jsonl",)
"""Files of some architectures of each kind, not of all."""
RESULTS = ("PASS", "FAIL", "SKIPPED")
START, END = "<!-- sweeps: made by `make sweep-tables` -->", "<!-- end of sweeps -->"


def tables(sweeps: Mapping[str, Sequence[TwinRow]], everything: Sequence[Architecture]) -> str:
    """Give the Markdown that says what the sweeps found, by the names of their files; `everything` is what
    there is to sweep."""
    some = {name: rows for name, rows in sweeps.items() if rows}
    parts = [_counts(some, everything), *(_said(COLUMNS[name], rows) for name, rows in some.items())]
    for name, rows in some.items():
        missing = sorted({each.model_type for each in missing_of(rows, everything)})
        if missing and name not in SAMPLES:
            parts.append(f"Not run yet on {COLUMNS[name]}: {_names(missing)}.")
    return "\n\n".join(parts)


def _counts(sweeps: Mapping[str, Sequence[TwinRow]], everything: Sequence[Architecture]) -> str:
    heads = [f"{COLUMNS[name]}: {words}" for name in sweeps for words in TASKS.values()]
    lines = ["| result | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    counts = {
        (name, task): Counter((row.result, row.reason) for row in rows if row.task == task)
        for name, rows in sweeps.items()
        for task in TASKS
    }
    met = Counter[tuple[str, str]]()
    for each in counts.values():
        met.update(each)
    ordered = sorted(met, key=lambda key: (RESULTS.index(key[0]), -met[key], key[1]))
    for result, reason in ordered:
        cells = [str(each[result, reason]) for each in counts.values()]
        lines.append(f"| {result} {reason} | " + " | ".join(cells) + " |")
    missing = [
        "" if name in SAMPLES else str(sum(a.task == task for a in missing_of(sweeps[name], everything)))
        for name, task in counts
    ]
    if any(each not in ("", "0") for each in missing):
        lines.append("| not run yet | " + " | ".join(missing) + " |")
    return "\n".join(lines)


def missing_of(rows: Sequence[TwinRow], everything: Sequence[Architecture]) -> list[Architecture]:
    """Give what a sweep has no row of."""
    there = {(row.model_type, row.task) for row in rows}
    return [each for each in everything if (each.model_type, each.task) not in there]


def _said(where: str, rows: Sequence[TwinRow]) -> str:
    passed = [row for row in rows if row.result == "PASS"]
    shown = sum(bool(row.inputs) for row in passed)
    said = [
        f"**{where[0].upper()}{where[1:]}**: {len(passed)} of {len(rows)} pass, and "
        f"{sum(row.counts for row in passed)} of these would have noticed the loss of any part; {shown} were "
        "shown an image."
    ]
    split = [row for row in passed if row.held_bytes is not None]
    if split:
        exact = sum(max(row.held_bytes or ()) == row.planned_bytes for row in split)
        said.append(f"In {exact} of the {len(split)} the fullest core held what the plan says, to the byte.")
    cleared = sorted({row.model_type for row in rows if row.device_at_fault is False})
    if cleared:
        said.append(
            "What fails otherwise than by recompiling is split over processes of the CPU too, by "
            f"Transformers alone: {_names(cleared)} ended there the same way."
        )
    blamed = sorted({row.model_type for row in rows if row.device_at_fault})
    if blamed:
        said.append(f"Right when split over processes of the CPU: {_names(blamed)}.")
    return " ".join(said)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)


def replaced(page: str, made: str) -> str:
    """Give the page with what was made between its two marks. Raises `ValueError` when it has none."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the page has no {START} … {END}")
    return f"{before}{START}\n\n{made}\n\n{END}{after}"


def read(folder: Path) -> dict[str, list[TwinRow]]:
    """Read the sweeps' files in a folder."""
    return {name: list(read_rows(folder / name).values()) for name in COLUMNS}


def main(folder: Path, page: Path) -> None:
    """Write the tables of the sweeps in a folder into a page. Ends the program when there are none."""
    from trnready.plan.architectures import architectures

    sweeps = read(folder)
    if not any(sweeps.values()):
        raise SystemExit(f"there are no sweeps in {folder}: {page} stays as it is.")
    made = tables(sweeps, architectures(tuple(AUTO_CLASSES)))
    page.write_text(replaced(page.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
