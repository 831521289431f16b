"""What the sweep of architectures records of each twin, and the file that keeps it: one JSON object per line,
added to while the sweep goes on, so that a killed sweep loses at most what was running."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from trnready.errors import TrnreadyError
from trnready.results.meanings import THRESHOLD as LIMIT

LEVEL = "NEURON_COMPILER_OPT_LEVEL"
"""The setting by which a twin's process is told the level to compile at."""


class BadRecord(TrnreadyError):
    """The file of a sweep cannot be read or written."""


@dataclass(frozen=True, slots=True)
class TwinRow:
    """One twin on one device. `result`, `reason`, `stage` and `error` are as in a row of the dataset.

    `dtypes` are the types it ran in, the figures of the first; a twin with experts runs in float32 as well,
    where the rule looks at every step, or only there when it is split. `counts` says whether the row may
    count as evidence: it passed, and losing any one part would have changed that. `parts` is how many parts
    were zeroed in turn, `least_part` the smallest score among them, `blind` those whose loss would have
    passed. `cut` maps the name of each number to the original's and the twin's. `parallel` is the kind of
    plan that Transformers has for it: `tp`, `ep` or None. Of a twin that was split, `held_bytes` is what each
    core held after loading, `planned_bytes` what the plan says of the fullest one. Where such a twin failed
    otherwise than by recompiling, `cpu_split_error` and `cpu_split_score` say how the same split ended in
    processes of the CPU, by Transformers alone: an error or a score above 3 clears the device.
    """

    model_type: str
    task: str
    result: str
    reason: str
    stage: str
    error: str | None = None
    cores: int = 1
    dtypes: list[str] = field(default_factory=list)
    model_class: str | None = None
    parameters: int | None = None
    parallel: str | None = None
    inputs: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    score: float | None = None
    worst: float | None = None
    noise: float | None = None
    distinct_tokens: int | None = None
    graphs: int | None = None
    graph_breaks: int | None = None
    fallback_ops: list[str] | None = None
    peak_bytes: int | None = None
    held_bytes: list[int] | None = None
    planned_bytes: int | None = None
    cpu_split_error: str | None = None
    cpu_split_score: float | None = None
    counts: bool = False
    parts: int | None = None
    least_part: float | None = None
    blind: list[str] = field(default_factory=list)
    sensitivity_error: str | None = None
    kept: list[str] = field(default_factory=list)
    cut: dict[str, list[Any]] = field(default_factory=dict)
    seconds: float | None = None
    level: str = "-O1"
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What a newer row must share to take this one's place."""
        return (self.model_type, self.task, self.cores, self.level)

    @property
    def device_at_fault(self) -> bool | None:
        """Say whether the device failed at what the CPU did right; None where the CPU was not asked."""
        if self.cpu_split_error is not None:
            return False
        return None if self.cpu_split_score is None else float(self.cpu_split_score) <= LIMIT

    @property
    def control(self) -> str | None:
        """Say whether the split itself is at fault, by the run on the CPU; None where there was none."""
        if self.device_at_fault is None:
            return None
        if self.device_at_fault:
            return "Split over processes of the CPU it is right, so the device is at fault."
        if self.cpu_split_score is not None:
            ended = f"is as wrong (score {float(self.cpu_split_score):.3g})"
        else:
            ended = f"ends in an error too ({(self.cpu_split_error or '').rstrip(': ')})"
        return f"Split over processes of the CPU, by Transformers alone, it {ended}: not the device's fault."

    def to_line(self) -> str:
        """Give the row as one line of JSON; what is not known is left out."""
        values = {name: _plain(value) for name, value in asdict(self).items() if value not in (None, [], {})}
        return json.dumps(values, ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str) -> TwinRow:
        """Give back the row of a line. Raises `BadRecord`."""
        try:
            values = json.loads(line)
            known = {each.name for each in fields(cls)}
            return cls(**{name: value for name, value in values.items() if name in known})
        except (ValueError, TypeError, AttributeError) as error:
            raise BadRecord(f"a line of the sweep's file is no row ({error}).") from error


def _plain(value: Any) -> Any:
    """Infinities are no JSON: a part whose loss gives no finite logits scores as text."""
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        return float(f"{value:.6g}")
    return value


def read_rows(path: Path) -> dict[tuple[str, str, int, str], TwinRow]:
    """Read a sweep's file: the last row of each key. A last line that was cut short is left out."""
    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRecord(f"{path} cannot be read: {error}.") from error
    lines = text.splitlines()
    whole = lines if text.endswith("\n") else lines[:-1]
    rows = (TwinRow.from_line(line) for line in whole if line.strip())
    return {row.key: row for row in rows}


def append_row(path: Path, row: TwinRow) -> None:
    """Add a row to the file, on the disk when this returns."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(row.to_line() + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise BadRecord(f"cannot write to {path}: {error.strerror or error}.") from error


def _end_last_line(path: Path) -> None:
    """Cut off a line that a killed sweep left unfinished."""
    if not path.exists():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])


def write_sorted(path: Path, rows: Iterable[TwinRow]) -> None:
    """Write the file anew, one row for each key, by name."""
    temporary = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex}")
    ordered = sorted(rows, key=lambda row: row.key)
    try:
        temporary.write_text("".join(row.to_line() + "\n" for row in ordered), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise BadRecord(f"cannot write to {path}: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)
