"""Runs a row of the dataset again from what it recorded (B9), and says what came out differently. The command
`trnready repeat` calls it."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnready.check import Done, Request, Watch, check
from trnready.errors import TrnreadyError
from trnready.plan.layout import Kind
from trnready.results import dataset, journal
from trnready.results.row import Row
from trnready.verdict import judged

CIRCUMSTANCES = (
    "revision",
    "device_kind",
    "instance",
    "host_cpu",
    "neuronx_cc",
    "library",
    "library_version",
    "versions",
)
"""Columns that say on what a row was run."""

OUTCOME = (
    "result",
    "reason",
    "stage",
    "fingerprint",
    "warnings",
    "neuron_cores",
    "dtype",
    "prompt",
    "text",
    "tokens_device",
    "text_reference",
    "tokens_reference",
    "score",
    "score_steps",
    "noise",
    "first_divergence",
    "margin_at_divergence",
    "graphs",
    "recompiles",
    "graph_breaks",
    "fallback_ops",
    "peak_memory_bytes",
    "bytes_per_core",
)
"""Columns that two runs of the same on the same must share. Times, names of runs and what the NEFF cache
happened to hold are not among them."""


class NotRepeatable(TrnreadyError):
    """The row does not hold what it takes to run it again, or there is no such row."""


@dataclass(frozen=True, slots=True)
class Differs:
    """One column that came out differently; a version is named `versions.torch`."""

    column: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Repeated:
    """The row that was repeated, the new run, and how they differ."""

    before: Row
    done: Done
    circumstances: tuple[Differs, ...]
    outcome: tuple[Differs, ...]


@dataclass(frozen=True, slots=True)
class How:
    """What a row does not hold of how it is run: `python`, `memory_bytes` and `reference_bytes` are those of
    `trnready.check.Request`. `model`, a folder or a Hub id, takes the place of the checkpoint that the row's
    script names."""

    timeout_s: float
    model: str | None = None
    python: Path | None = None
    memory_bytes: int | None = None
    reference_bytes: int | None = None


def repeat(row: Row, results: Path, how: How, watch: Watch) -> Repeated:
    """Run the row's own `run.py` again and record the new run in `results`.

    Raises `NotRepeatable`, and what `trnready.check.check` raises.
    """
    if row.run_py is None:
        raise NotRepeatable(
            f"{row.model_id} ({row.run_id}) was never run ({row.reason}): there is nothing to repeat."
        )
    source, model = row.run_py, how.model
    named = _constant(source, "MODEL")
    if model is not None and model != named:
        checkpoint = str(Path(model).absolute()) if Path(model).is_dir() else model
        source = _with_constants(source, {"MODEL": checkpoint} | _revision(source, checkpoint))
        named = checkpoint
    if named is None:
        raise NotRepeatable(f"the run.py of {row.run_id} does not say which MODEL it loads.")
    if Path(named).is_absolute() and not Path(named).is_dir():
        raise NotRepeatable(
            f"{named}, which the run.py of {row.run_id} loads, is not here; name it with --model."
        )
    request = Request(
        name=named,
        task=row.task,
        results=results,
        timeout_s=how.timeout_s,
        memory_bytes=how.memory_bytes,
        python=how.python,
        reference_bytes=how.reference_bytes,
        prompt=row.prompt,
        dtype=row.dtype,
        source=source,
        long=row.long_tokens,
        cores=row.neuron_cores,
        parallelism=_parallelism(row),
        judge=judged.decide,
    )
    done = check(request, watch)
    return Repeated(row, done, differing(row, done.row, CIRCUMSTANCES), differing(row, done.row, OUTCOME))


def _parallelism(row: Row) -> Kind | None:
    """Give the kind of parallelism that the row's model was split by."""
    match (row.parallelism or "").partition("=")[0]:
        case "tp":
            return "tp"
        case "ep":
            return "ep"
    return None


def find(name: str, results: Path) -> Row:
    """Give the row that is meant: a run's name or the beginning of it, a model's name (its newest run), or a
    file of the journal. Raises `NotRepeatable`."""
    if name.endswith(".json") and Path(name).is_file():
        return journal.load(Path(name))
    if not results.is_dir():
        raise NotRepeatable(f"there is no results folder at {results}.")
    rows = dataset.read(results)
    rows += [
        row for path in dataset.parquet_files(results / dataset.HISTORY) for row in dataset.read_file(path)
    ]
    exact = [row for row in rows if row.run_id == name]
    found = exact or [row for row in rows if row.run_id.startswith(name)]
    if not found:
        found = sorted((row for row in rows if row.model_id == name), key=lambda row: row.tested_at)[-1:]
    if len(found) != 1:
        what = "is the beginning of more than one run" if found else "is no run and no model"
        raise NotRepeatable(f"{name!r} {what} in {results}; `trnready results show` lists what there is.")
    return found[0]


def differing(before: Row, after: Row, columns: Sequence[str]) -> tuple[Differs, ...]:
    """Give the columns that the two rows do not share."""
    found = []
    for column in columns:
        old, new = getattr(before, column), getattr(after, column)
        if isinstance(old, dict):
            names = (name for name in sorted({*old, *new}) if old.get(name) != new.get(name))
            found += [Differs(f"{column}.{name}", old.get(name), new.get(name)) for name in names]
        elif not _same(old, new):
            found.append(Differs(column, old, new))
    return tuple(found)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _assignments(source: str) -> dict[str, ast.Constant]:
    """Give the constants at the top of a script, by name."""
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise NotRepeatable(f"the row's run.py is no Python: {error.msg}.") from error
    return {
        target.id: statement.value
        for statement in body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _constant(source: str, name: str) -> str | None:
    found = _assignments(source).get(name)
    return found.value if found is not None and isinstance(found.value, str) else None


def _revision(source: str, checkpoint: str) -> dict[str, str | None]:
    """A folder has no revision on the Hub."""
    return {"REVISION": None} if Path(checkpoint).is_dir() and "REVISION" in _assignments(source) else {}


def _with_constants(source: str, values: dict[str, Any]) -> str:
    """Give the script with other values for constants at its top; every other line stays as it is."""
    lines = source.splitlines(keepends=True)
    for name, value in values.items():
        node = _assignments("".join(lines)).get(name)
        if node is None or node.end_lineno != node.lineno:
            raise NotRepeatable(f"the row's run.py has no line {name} = … that could be changed.")
        lines[node.lineno - 1] = f"{name} = {value!r}\n"
    return "".join(lines)
