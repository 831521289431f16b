"""What `run.py --report DIR` left in its folder, checked on the way in. `trnready.check` reads it, the
verdict judges it; nothing else reads the files themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError

from trnready.errors import TrnreadyError
from trnready.script.task import Output

Rows = npt.NDArray[np.float32]
"""What a model computed, one row for each token, sentence or denoising step: [rows, width]."""

Logits = Rows
"""Logits before any processing, one row for each generated token: [steps, vocabulary]."""

OUTPUTS_FILE = "outputs.safetensors"
REPORT_FILE = "report.json"

ARRAYS: dict[Output, tuple[str, ...]] = {
    "logits": ("logits",),
    "embeddings": ("embeddings",),
    "latents": ("latents", "image"),
}
"""The arrays of a report, the one with the most rows first."""


class BadReport(TrnreadyError):
    """The report is missing, incomplete, or contradicts itself: nothing may be concluded from it."""


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph that the device compiled or loaded, as far as it says. `interpreted` says that it ran
    operator by operator all the same."""

    name: str | None
    nodes: int | None
    compile_s: float | None
    cache_hit: bool | None
    neff_module: str | None
    interpreted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What every task's `run.py` reports. Counters are None where the device offers none, never 0; times are
    in seconds. `text` is the result in words, `ended_text` what a person reads of it. `imported_later` holds
    the packages that loading and running this model imported beyond the script's own imports, with their
    versions. Of a run on several cores, `graphs` are those of the first, and what ends in `per_core` has one
    number for each."""

    device: str
    dtypes: tuple[str, ...]
    cores: int
    text: str
    ended_text: str | None = None
    load_s: float
    first_call_s: float
    later_call_s: float | None
    parameter_devices: tuple[str, ...]
    parameter_bytes: int
    parameters: int | None = None
    graphs_first_call: tuple[Graph, ...] | None
    graphs: tuple[Graph, ...] | None
    graph_breaks: int | None
    fallback_ops: tuple[str, ...] | None
    instance: str | None
    peak_bytes: tuple[int, ...] | None
    versions: dict[str, str]
    imported_later: dict[str, str] | None = None
    parameter_bytes_per_core: tuple[int, ...] | None = None
    graphs_per_core: tuple[int, ...] | None = None

    @property
    def shown(self) -> str:
        """What a person reads: the text up to where the model would have ended by itself, where that is
        known."""
        return self.text if self.ended_text is None else self.ended_text

    @property
    def has_interpreted_graphs(self) -> bool:
        """Whether a graph was captured but not compiled, and ran operator by operator, decomposed all the
        same."""
        return bool(self._lost) or any(each.interpreted for each in self.graphs or ())

    @property
    def compiled_graphs(self) -> tuple[Graph, ...] | None:
        """The graphs that ran as compiled code: empty ones, and those that were interpreted or could not be
        compiled, are left out. The device lists the latter among its fallbacks."""
        if self.graphs is None:
            return None
        lost = self._lost
        return tuple(
            each for each in self.graphs if each.name not in lost and not each.interpreted and each.nodes != 0
        )

    @property
    def _lost(self) -> set[str]:
        """The names of the graphs that could not be compiled."""
        return {each.removeprefix(_LOST) for each in self.fallback_ops or () if each.startswith(_LOST)}

    @property
    def ran_eagerly(self) -> bool:
        """Whether no graph took part: the model's own operators ran, one by one."""
        return not self.compiled_graphs and not self.has_interpreted_graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Evidence):
    """One run of a `run.py` that generates tokens.

    `end_tokens` were held back: they are never chosen, whatever their logits.
    """

    input_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    first_call_tokens: tuple[int, ...]
    end_tokens: tuple[int, ...]
    logits: Logits
    step_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayReport(Evidence):
    """One run of a `run.py` that computes numbers without choosing tokens: `arrays` by the names of `ARRAYS`.
    `repeats` says that a second call gave the same bits as the first."""

    arrays: dict[str, Rows]
    repeats: bool


_LOST = "graph:"


def read(folder: Path) -> Report:
    """Read the report of a `run.py` that generates. Raises `BadReport`."""
    return from_facts(_facts(folder), _read_arrays(folder / OUTPUTS_FILE, ARRAYS["logits"])["logits"])


def read_arrays(folder: Path, output: Output) -> ArrayReport:
    """Read the report of a `run.py` whose output is embeddings or latents. Raises `BadReport`."""
    facts = _facts(folder)
    arrays = _read_arrays(folder / OUTPUTS_FILE, ARRAYS[output])
    try:
        return _array_report(facts, arrays)
    except KeyError as error:
        raise BadReport(f"the report of run.py lacks {error.args[0]!r}.") from error


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / REPORT_FILE).read_bytes())
    except FileNotFoundError:
        raise BadReport("run.py ended without writing its report.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadReport(f"the report of run.py cannot be read: {error}") from error
    if not isinstance(facts, dict):
        raise BadReport("the report of run.py is no JSON object.")
    return facts


def from_facts(facts: dict[str, Any], logits: Logits) -> Report:
    """Check a report of generation: the facts as `report.json` holds them. Raises `BadReport`."""
    try:
        return _report(facts, logits)
    except KeyError as error:
        raise BadReport(f"the report of run.py lacks {error.args[0]!r}.") from error


def _report(facts: dict[str, Any], logits: Logits) -> Report:
    return Report(
        **_evidence(facts),
        input_tokens=_counts("input_tokens", facts["input_tokens"]),
        tokens=_counts("tokens", facts["tokens"]),
        first_call_tokens=_counts("first_call_tokens", facts["first_call_tokens"]),
        end_tokens=_end_tokens(facts["end_tokens"]),
        logits=logits,
        step_s=tuple(_seconds("step_seconds", each) for each in _list("step_seconds", facts["step_seconds"])),
    )


def _array_report(facts: dict[str, Any], arrays: dict[str, Rows]) -> ArrayReport:
    repeats = facts["repeats"]
    if not isinstance(repeats, bool):
        raise BadReport("repeats in the report of run.py is neither true nor false.")
    return ArrayReport(**_evidence(facts), arrays=arrays, repeats=repeats)


def _evidence(facts: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Evidence`."""
    seconds = facts["seconds"]
    if not isinstance(seconds, dict):
        raise BadReport("the report of run.py has no table of seconds.")
    later, imported = seconds.get("later_call"), facts.get("imported_later")
    return {
        "device": _text("device", facts["device"]),
        "dtypes": _texts("dtype", facts["dtype"]),
        "cores": _count("cores", facts["cores"]),
        "text": _text("text", facts["text"]),
        "ended_text": None if facts.get("ended_text") is None else _text("ended_text", facts["ended_text"]),
        "load_s": _seconds("load", seconds["load"]),
        "first_call_s": _seconds("first_call", seconds["first_call"]),
        "later_call_s": None if later is None else _seconds("later_call", later),
        "parameter_devices": _texts("parameter_devices", facts["parameter_devices"]),
        "parameter_bytes": _count("parameter_bytes", facts["parameter_bytes"]),
        "parameters": _known_count(facts.get("parameters")),
        "graphs_first_call": _graphs(facts["graphs_first_call"]),
        "graphs": _graphs(facts["graphs"]),
        "graph_breaks": _breaks(facts["graph_breaks"]),
        "fallback_ops": _known_texts(facts["fallback_ops"]),
        "instance": facts["instance"] if isinstance(facts["instance"], str) else None,
        "peak_bytes": _known_counts(facts["peak_bytes"]),
        "versions": _versions(facts["versions"]),
        "imported_later": None if imported is None else _versions(imported),
        "parameter_bytes_per_core": _known_counts(facts.get("parameter_bytes_per_core")),
        "graphs_per_core": _known_counts(facts.get("graphs_per_core")),
    }


def _read_arrays(path: Path, names: tuple[str, ...]) -> dict[str, Rows]:
    """Read exactly these arrays, and nothing but a whole file of the right kind."""
    try:
        found = safetensors.numpy.load(path.read_bytes())
    except FileNotFoundError:
        raise BadReport("run.py wrote no outputs.") from None
    except OSError as error:
        raise BadReport(f"the outputs of run.py cannot be read: {error}") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise BadReport(f"the outputs file of run.py is damaged: {error}.") from error
    if set(found) != set(names):
        raise BadReport(f"run.py wrote {', '.join(sorted(found)) or 'nothing'}, not {', '.join(names)}.")
    for name, array in found.items():
        if array.dtype != np.float32 or array.ndim != 2:
            raise BadReport(f"the {name} of run.py are no table of float32 numbers.")
    return found


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
    tokens = value if isinstance(value, list) else [value]
    # Some checkpoints say -1 for "none".
    return _counts("end_tokens", [each for each in tokens if each != -1])


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
        interpreted=entry.get("interpreted") is True,
    )
