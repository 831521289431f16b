"""What `run.py --report DIR` left in its folder, checked on the way in. `trnready.check` reads it, the
verdict judges it; nothing else reads the files themselves."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trnready.errors import TrnreadyError

Logits = npt.NDArray[np.float32]
"""Logits before any processing, one row for each generated token: [steps, vocabulary]."""

_DTYPE_SIZE = 4
_MAX_HEADER_BYTES = 1_000_000


class BadReport(TrnreadyError):
    """The report is missing, incomplete, or contradicts itself: nothing may be concluded from it."""


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph that the device compiled or loaded, as far as it says."""

    name: str | None
    nodes: int | None
    compile_s: float | None
    cache_hit: bool | None
    neff_module: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """One run of `run.py`. Counters are None where the device offers none, never 0; times are in seconds.

    `end_tokens` were held back: they are never chosen, whatever their logits.
    """

    device: str
    dtypes: tuple[str, ...]
    cores: int
    input_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    first_call_tokens: tuple[int, ...]
    end_tokens: tuple[int, ...]
    text: str
    logits: Logits
    load_s: float
    first_call_s: float
    later_call_s: float | None
    step_s: tuple[float, ...]
    parameter_devices: tuple[str, ...]
    parameter_bytes: int
    graphs_first_call: tuple[Graph, ...] | None
    graphs: tuple[Graph, ...] | None
    graph_breaks: int | None
    fallback_ops: tuple[str, ...] | None
    instance: str | None
    peak_bytes: tuple[int, ...] | None
    versions: dict[str, str]


def read(folder: Path) -> Report:
    """Read the report in this folder. Raises `BadReport`."""
    try:
        facts = json.loads((folder / "report.json").read_bytes())
    except FileNotFoundError:
        raise BadReport("run.py ended without writing its report.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadReport(f"the report of run.py cannot be read: {error}") from error
    if not isinstance(facts, dict):
        raise BadReport("the report of run.py is no JSON object.")
    try:
        return _report(facts, _read_logits(folder / "logits.safetensors"))
    except KeyError as error:
        raise BadReport(f"the report of run.py lacks {error.args[0]!r}.") from error


def from_facts(facts: dict[str, Any], logits: Logits) -> Report:
    """Check a report that never was a file: the facts as `report.json` holds them. Raises `BadReport`."""
    try:
        return _report(facts, logits)
    except KeyError as error:
        raise BadReport(f"the report lacks {error.args[0]!r}.") from error


def _report(facts: dict[str, Any], logits: Logits) -> Report:
    seconds = facts["seconds"]
    if not isinstance(seconds, dict):
        raise BadReport("the report of run.py has no table of seconds.")
    later = seconds.get("later_call")
    return Report(
        device=_text("device", facts["device"]),
        dtypes=_texts("dtype", facts["dtype"]),
        cores=_count("cores", facts["cores"]),
        input_tokens=_counts("input_tokens", facts["input_tokens"]),
        tokens=_counts("tokens", facts["tokens"]),
        first_call_tokens=_counts("first_call_tokens", facts["first_call_tokens"]),
        end_tokens=_end_tokens(facts["end_tokens"]),
        text=_text("text", facts["text"]),
        logits=logits,
        load_s=_seconds("load", seconds["load"]),
        first_call_s=_seconds("first_call", seconds["first_call"]),
        later_call_s=None if later is None else _seconds("later_call", later),
        step_s=tuple(_seconds("step_seconds", each) for each in _list("step_seconds", facts["step_seconds"])),
        parameter_devices=_texts("parameter_devices", facts["parameter_devices"]),
        parameter_bytes=_count("parameter_bytes", facts["parameter_bytes"]),
        graphs_first_call=_graphs(facts["graphs_first_call"]),
        graphs=_graphs(facts["graphs"]),
        graph_breaks=_breaks(facts["graph_breaks"]),
        fallback_ops=_known_texts(facts["fallback_ops"]),
        instance=facts["instance"] if isinstance(facts["instance"], str) else None,
        peak_bytes=_known_counts(facts["peak_bytes"]),
        versions=_versions(facts["versions"]),
    )


def _read_logits(path: Path) -> Logits:
    """Read the one tensor of the file, and nothing but a whole file of the right kind."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadReport("run.py wrote no logits.") from None
    except OSError as error:
        raise BadReport(f"the logits of run.py cannot be read: {error}") from error
    try:
        (length,) = struct.unpack_from("<Q", content)
        if length > _MAX_HEADER_BYTES:
            raise ValueError("its header is too long")
        header = json.loads(content[8 : 8 + length])
        entry = header["logits"]
        rows, columns = (int(size) for size in entry["shape"])
        body = content[8 + length :]
        if entry["dtype"] != "F32" or entry["data_offsets"] != [0, len(body)]:
            raise ValueError("its header does not describe its body")
        if rows < 0 or columns < 0 or len(body) != rows * columns * _DTYPE_SIZE:
            raise ValueError("its length is not that of its shape")
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadReport(f"the logits file of run.py is damaged: {error}.") from error
    return np.frombuffer(body, dtype="<f4").reshape(rows, columns)


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise BadReport(f"{name} in the report of run.py is no list.")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadReport(f"{name} in the report of run.py is no text.")
    return value


def _texts(name: str, value: object) -> tuple[str, ...]:
    return tuple(_text(name, each) for each in _list(name, value))


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadReport(f"{name} in the report of run.py is no count.")
    return value


def _counts(name: str, value: object) -> tuple[int, ...]:
    return tuple(_count(name, each) for each in _list(name, value))


def _seconds(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise BadReport(f"the seconds of {name} in the report of run.py are no time.")
    return float(value)


def _end_tokens(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return _counts("end_tokens", value if isinstance(value, list) else [value])


def _versions(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise BadReport("versions in the report of run.py is no table.")
    return {str(name): _text("versions", each) for name, each in value.items() if each is not None}


# What follows comes from the device: an answer of an unexpected kind is no answer, which is not the report's
# fault, so it becomes None here and the verdict decides what may be concluded without it.


def _known_texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return None
    return tuple(value)


def _known_counts(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(_known_count(each) is not None for each in value):
        return None
    return tuple(value)


def _known_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _breaks(value: object) -> int | None:
    if not isinstance(value, dict):
        return None
    counts = [_known_count(each) for each in value.values()]
    return None if None in counts else sum(each for each in counts if each is not None)


def _graphs(value: object) -> tuple[Graph, ...] | None:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        return None
    return tuple(_graph(each) for each in value)


def _graph(entry: dict[str, Any]) -> Graph:
    name, module, hit = entry.get("graph_name"), entry.get("neff_module"), entry.get("cache_hit")
    microseconds = entry.get("torch_neuronx_compile_us")
    timed = isinstance(microseconds, int | float) and 0 <= microseconds < float("inf")
    return Graph(
        name=name if isinstance(name, str) else None,
        nodes=_known_count(entry.get("graph_node_count")),
        compile_s=float(microseconds or 0) / 1e6 if timed else None,
        cache_hit=hit if isinstance(hit, bool) else None,
        neff_module=module if isinstance(module, str) else None,
    )
