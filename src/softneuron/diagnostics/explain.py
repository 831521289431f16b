"""What a program made the device do: graphs, recompiles, breaks, fallbacks, traffic, memory; and hints.

`softneuron explain` runs a script inside `Watched` and prints the explanation.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TypeVar

import torch

from softneuron import _C
from softneuron.diagnostics import metrics

LIBRARIES = ("torch", "transformers", "accelerate", "softneuron", "safetensors", "contextlib", "functools")
"""Packages whose lines are not the user's."""

LINES_SHOWN = 5

T = TypeVar("T")

_VALUES = re.compile(r"^\d+/\d+: |(?<=== )-?\d+|(?<=expected )\d+|(?<=actual )\d+")
"""What differs between failures of the same guard: which graph it guards, and the numbers compared."""


@dataclass(frozen=True, slots=True)
class Recompile:
    """A function that was compiled again: where it is, and the guard that failed."""

    function: str
    place: str
    guard: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the user's program and how many new operator and shape pairs it brought."""

    place: str
    source: str
    pairs: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a program made the device do. Bytes are bytes, seconds wall time."""

    graphs: list[dict[str, object]]
    fallback_graphs: list[dict[str, object]]
    recompiles: list[Recompile]
    given_up: list[str]
    graph_breaks: dict[str, int]
    fallback_ops: list[str]
    operator_shape_pairs: int
    lines: list[Line]
    traffic: dict[str, int]
    peak_bytes_per_core: list[int]
    hints: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """The same as plain lists and dicts."""
        return asdict(self)


class Watched:
    """Counts what happens on the device from `__enter__` on; `explanation()` sums it up."""

    def __init__(self) -> None:
        self._lines: Counter[str] = Counter()
        self._sources: dict[str, str] = {}
        self._growing: set[str] = set()

    def _first_seen(self, operator_and_shapes: str) -> None:
        # In a thread of autograd's nothing of Python is above this function.
        frames = list(_frames(sys._getframe().f_back))
        place, source = _users_line(frames)
        self._lines[place] += 1
        self._sources[place] = source
        generating = [frame for frame in frames if _is_generate(frame)]
        if generating:
            self._growing.add("generation")
            # A model's own layers join tensors too; what generate() itself joins is the sequence.
            joins = operator_and_shapes.startswith("aten::cat ") and generating[0] is frames[0]
            if joins and not _encodes(frames[0]):
                self._growing.add("sequence on the device")

    def __enter__(self) -> Watched:
        metrics.reset_dynamo_metrics()
        metrics.clear_op_tracking()
        for core in range(_C.core_count()):
            _C.reset_core_peak(core)
        _C.start_tracking(self._first_seen)
        return self

    def __exit__(self, *_: object) -> None:
        _C.stop_tracking()

    def explanation(self) -> Explanation:
        """What was counted so far."""
        graphs = metrics.get_dynamo_metrics()
        recompiles = _recompiles()
        fallbacks = metrics.get_fallback_ops()
        breaks = _graph_breaks()
        lines = [
            Line(place, self._sources[place], pairs) for place, pairs in self._lines.most_common(LINES_SHOWN)
        ]
        found = Explanation(
            graphs=graphs,
            fallback_graphs=metrics.get_fallback_graphs(),
            recompiles=recompiles,
            given_up=_given_up(),
            graph_breaks=breaks,
            fallback_ops=fallbacks,
            operator_shape_pairs=sum(self._lines.values()),
            lines=lines,
            traffic=_C.traffic(),
            peak_bytes_per_core=[_C.core_memory(core)["peak"] for core in range(_C.core_count())],
        )
        found.hints.extend(_hints(found, self._growing))
        return found


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_generate(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith("transformers/generation/utils.py")


def _encodes(frame: FrameType) -> bool:
    """Say whether the model of this frame of generate() has an encoder, whose inputs belong on the device."""
    config = getattr(frame.f_locals.get("self"), "config", None)
    return bool(getattr(config, "is_encoder_decoder", False))


def _is_library(filename: str) -> bool:
    parts = Path(filename).parts
    return filename.startswith("<") or any(name in parts or f"{name}.py" == parts[-1] for name in LIBRARIES)


def _users_line(frames: list[FrameType]) -> tuple[str, str]:
    for frame in frames:
        filename = frame.f_code.co_filename
        if not _is_library(filename):
            return f"{filename}:{frame.f_lineno}", linecache.getline(filename, frame.f_lineno).strip()
    return "(backward)", "loss.backward()"


def _recompiles() -> list[Recompile]:
    from torch._dynamo.utils import get_compilation_metrics

    return [
        Recompile(
            function=str(one.co_name),
            place=f"{one.co_filename}:{one.co_firstlineno}",
            guard=str(one.recompile_reason).strip(),
        )
        for one in get_compilation_metrics()
        if one.recompile_reason and one.co_name is not None
    ]


def _given_up() -> list[str]:
    """Give why functions were not compiled again, such as that PyTorch's limit was reached."""
    from torch._dynamo.utils import get_compilation_metrics

    # Of an attempt that came to nothing PyTorch notes the reason, but not the function.
    return [
        str(one.fail_reason).strip().splitlines()[0]
        for one in get_compilation_metrics()
        if one.recompile_reason and one.co_name is None and one.fail_reason
    ]


def _graph_breaks() -> dict[str, int]:
    if "torch._dynamo.utils" not in sys.modules:
        return {}
    counted = torch._dynamo.utils.counters["graph_break"]
    return {str(reason).strip().splitlines()[0]: int(count) for reason, count in counted.items()}


HINTS = {
    "static_cache": 'generate() made new shapes at every token: pass cache_implementation="static".',
    "inputs_on_cpu": "generate() got inputs on the device, where its sequence grows: leave them on the CPU.",
    "pad": 'A sequence length changed and the graph was compiled again: pad with padding="max_length".',
    "drop_last": "A batch size changed and the graph was compiled again: set dataloader_drop_last=True.",
    "sliding_window": "A sliding-window layer counts tokens in Python, so that each step compiled a graph: "
    "pass disable_compile=True.",
    "max_cache_len": "The cache's length changed: fix it with cache_config={'max_cache_len': N}.",
}
"""The hints there are. Each names the line to write."""


def _hints(found: Explanation, growing: set[str]) -> Iterator[str]:
    if "generation" in growing and not found.graphs:
        yield HINTS["static_cache"]
    if "sequence on the device" in growing:
        yield HINTS["inputs_on_cpu"]
    guards = "\n".join(recompile.guard for recompile in found.recompiles)
    if "cumulative_length_int" in guards:
        yield HINTS["sliding_window"]
    if "size mismatch at index 0" in guards:
        yield HINTS["drop_last"]
    if "size mismatch at index 1" in guards:
        yield HINTS["pad"]
    if "size mismatch at index 2" in guards and any(
        "cache" in line or "layers" in line for line in guards.splitlines()
    ):
        yield HINTS["max_cache_len"]


def _alike(them: Iterable[T], what: Callable[[T], object]) -> list[list[T]]:
    """Put together those of which the same is told, in the order of the first of each."""
    groups: dict[object, list[T]] = {}
    for one in them:
        groups.setdefault(what(one), []).append(one)
    return list(groups.values())


def _times(them: list[T]) -> str:
    return f"{len(them)} × " if len(them) > 1 else ""


def _graph_line(graph: dict[str, object]) -> tuple[str, str]:
    """Say what a graph is, and what its inputs are."""
    interpreted = graph["interpreted"] or not graph["graph_node_count"]
    how = "loaded" if graph["cache_hit"] else "interpreted, ready" if interpreted else "compiled"
    shapes = [str(shape) for shape in (graph["shapes"] if isinstance(graph["shapes"], list) else [])]
    return (
        f"{graph['graph_name']}: {graph['graph_node_count']} nodes, {how}",
        f"{len(shapes)} inputs, the last: {', '.join(shapes[-3:])}",
    )


def _cause(recompile: Recompile) -> tuple[str, str, str]:
    """Give what is the same each time that a guard fails: not the values, nor who asked for the guard."""
    guard = recompile.guard.splitlines()[0].partition(" # ")[0].strip()
    return recompile.function, recompile.place, _VALUES.sub("", guard)


def render(found: Explanation) -> str:
    """The explanation as text for a terminal, at most 100 columns but for names and guards."""
    hits = sum(bool(graph["cache_hit"]) for graph in found.graphs)
    out = [
        "",
        "softneuron explain (software NeuronCores)",
        f"  graphs             {len(found.graphs)}, {hits} of them loaded from the NEFF cache",
    ]
    for alike in _alike(found.graphs, _graph_line):
        seconds = sum(float(str(graph["torch_neuronx_compile_us"])) for graph in alike) / 1e6
        name, inputs = _graph_line(alike[0])
        out += [f"    {_times(alike)}{name} in {seconds:.1f} s", f"      {inputs}"]
    if found.fallback_graphs:
        out.append(f"  not compiled       {len(found.fallback_graphs)}, run operator by operator")
        out += [f"    {graph['reason']}" for graph in found.fallback_graphs]
    out.append(f"  recompiles         {len(found.recompiles)}")
    for again in _alike(found.recompiles, _cause):
        out.append(f"    {_times(again)}{again[0].function} at {again[0].place}")
        out += [f"      {line}" for line in again[0].guard.splitlines()]
        if len(again) > 1:
            out.append(f"      the last time: {again[-1].guard.splitlines()[0]}")
    if found.given_up:
        out.append(f"  given up           {len(found.given_up)}, run operator by operator from there on")
        out += [f"    {reason}" for reason in dict.fromkeys(found.given_up)]
    out.append(f"  graph breaks       {sum(found.graph_breaks.values())}")
    out += [f"    {count} × {reason}" for reason, count in found.graph_breaks.items()]
    out.append(f"  operators on host  {', '.join(found.fallback_ops) or 'none'}")
    pairs = found.operator_shape_pairs
    out.append(f"  eager operators    {pairs} pairs of operator and shapes, each a compile on Trainium")
    out += [f"    {line.pairs:>5} from {line.place}  {line.source}" for line in found.lines]
    moved = found.traffic
    out.append(
        f"  host to cores      {moved['to_core_copies']} copies, {moved['to_core_bytes'] / 2**20:.1f} MiB; "
        f"back {moved['to_host_copies']}, {moved['to_host_bytes'] / 2**20:.1f} MiB"
    )
    peaks = ", ".join(f"{peak / 2**20:.1f}" for peak in found.peak_bytes_per_core)
    out.append(f"  peak memory        {peaks} MiB (per core)")
    out += [f"  hint               {hint}" for hint in found.hints]
    return "\n".join(out)
