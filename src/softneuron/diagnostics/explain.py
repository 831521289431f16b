"""What a program made the device do: graphs, recompiles, breaks, fallbacks, traffic, memory; and hints.

`softneuron explain` runs a script inside `Watched` and prints the explanation.
"""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

import torch

from softneuron import _C
from softneuron.diagnostics import metrics

LIBRARIES = ("torch", "transformers", "accelerate", "softneuron", "safetensors", "contextlib", "functools")
"""Packages whose lines are not the user's."""

LINES_SHOWN = 5


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
        if any(frame.f_code.co_filename.endswith("transformers/generation/utils.py") for frame in frames):
            self._growing.add("generation")
            if operator_and_shapes.startswith("aten::cat "):
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
        if one.recompile_reason
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


def render(found: Explanation) -> str:
    """The explanation as text for a terminal, at most 100 columns but for names and guards."""
    hits = sum(bool(graph["cache_hit"]) for graph in found.graphs)
    out = [
        "",
        "softneuron explain (software NeuronCores)",
        f"  graphs             {len(found.graphs)}, {hits} of them loaded from the NEFF cache",
    ]
    for graph in found.graphs:
        seconds = float(str(graph["torch_neuronx_compile_us"])) / 1e6
        how = "loaded" if graph["cache_hit"] else "compiled" if graph["neff_module"] else "interpreted, ready"
        shapes = [str(shape) for shape in (graph["shapes"] if isinstance(graph["shapes"], list) else [])]
        out.append(f"    {graph['graph_name']}: {graph['graph_node_count']} nodes, {how} in {seconds:.1f} s")
        out.append(f"      {len(shapes)} inputs, the last: {', '.join(shapes[-3:])}")
    if found.fallback_graphs:
        out.append(f"  not compiled       {len(found.fallback_graphs)}, run operator by operator")
        out += [f"    {graph['reason']}" for graph in found.fallback_graphs]
    out.append(f"  recompiles         {len(found.recompiles)}")
    for recompile in found.recompiles:
        out += [f"    {recompile.function} at {recompile.place}", f"      {recompile.guard}"]
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
