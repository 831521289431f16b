"""Counters of compiled graphs and executed operators, by the names of `torch_neuronx`."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from softneuron import _C
from softneuron.diagnostics.faults import fault, fire


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """One graph that this process compiled or loaded.

    `compile_us` is wall time in microseconds to have it ready; `cache_hit` says
    that no code was generated; `neff_module` is its folder in the NEFF cache, None
    when it is not there; `interpreted` says that it runs operator by operator (`-O0`).
    """

    graph_name: str
    graph_node_count: int
    compile_us: int
    cache_hit: bool
    neff_module: str | None
    role: str
    shapes: tuple[str, ...]
    interpreted: bool = False


_lock = threading.Lock()
_graphs: list[GraphRecord] = []
_fallback_graphs: list[tuple[GraphRecord, str]] = []
_fallbacks: dict[str, int] = {}


class CountersOff(RuntimeError):
    """The fault `counters_off`: the device does not say what it did."""


def refuse_if_off() -> None:
    """Raise `CountersOff` when the counters are switched off."""
    if fault("counters_off") is not None:
        fire("counters_off")
        raise CountersOff("the device's counters are switched off")


def record_graph(record: GraphRecord) -> None:
    """Remember a graph that is ready to run."""
    with _lock:
        _graphs.append(record)


def record_fallback_graph(record: GraphRecord, reason: str) -> None:
    """Remember a graph that could not be compiled, because of `reason`, and runs operator by operator."""
    with _lock:
        _fallback_graphs.append((record, reason))
    record_fallback(f"graph:{record.graph_name}")


def record_fallback(operator: str) -> None:
    """Remember that `operator` ran on the host instead of a core."""
    with _lock:
        _fallbacks[operator] = _fallbacks.get(operator, 0) + 1


def get_dynamo_metrics() -> list[dict[str, object]]:
    """One dict per graph compiled or loaded since the last `reset_dynamo_metrics`, in order.

    Keys: `graph_name`, `graph_node_count`, `torch_neuronx_compile_us`
    (microseconds), and, on software cores, `cache_hit`, `neff_module`, `role`
    (`inference`, `forward` or `backward`), `shapes` and `interpreted`.
    """
    refuse_if_off()
    with _lock:
        return [_as_dict(graph) for graph in _graphs]


def get_fallback_graphs() -> list[dict[str, object]]:
    """One dict per graph that could not be compiled and runs operator by operator, since the last reset.

    The keys of `get_dynamo_metrics`, where these graphs do not count, and `reason`.
    """
    with _lock:
        return [_as_dict(graph) | {"reason": reason} for graph, reason in _fallback_graphs]


def _as_dict(graph: GraphRecord) -> dict[str, object]:
    return {
        "graph_name": graph.graph_name,
        "graph_node_count": graph.graph_node_count,
        "torch_neuronx_compile_us": graph.compile_us,
        "cache_hit": graph.cache_hit,
        "neff_module": graph.neff_module,
        "role": graph.role,
        "shapes": list(graph.shapes),
        "interpreted": graph.interpreted,
    }


def reset_dynamo_metrics() -> None:
    """Forget the graphs counted so far."""
    with _lock:
        _graphs.clear()
        _fallback_graphs.clear()


def get_executed_ops() -> list[str]:
    """Names of the operators that ran on a core, one by one, since the last `clear_op_tracking`."""
    refuse_if_off()
    return sorted(name for name, _ in _C.executed_operators())


def get_fallback_ops() -> list[str]:
    """Names of the operators that ran on the host instead, since the last `clear_op_tracking`."""
    refuse_if_off()
    with _lock:
        return sorted({*_fallbacks, *_C.operators_on_host()})


def clear_op_tracking() -> None:
    """Forget the operators counted so far."""
    _C.clear_executed_operators()
    with _lock:
        _fallbacks.clear()
