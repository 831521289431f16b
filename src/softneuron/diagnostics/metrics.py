"""Counters of compiled graphs and executed operators, by the names of `torch_neuronx`."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from softneuron import _C


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """One graph that this process compiled or loaded.

    `compile_us` is wall time in microseconds to have it ready; `cache_hit` says
    that no code was generated; `neff_module` is its folder in the NEFF cache.
    """

    graph_name: str
    graph_node_count: int
    compile_us: int
    cache_hit: bool
    neff_module: str | None
    role: str
    shapes: tuple[str, ...]


_lock = threading.Lock()
_graphs: list[GraphRecord] = []
_fallbacks: dict[str, int] = {}


def record_graph(record: GraphRecord) -> None:
    """Remember a graph that is ready to run."""
    with _lock:
        _graphs.append(record)


def record_fallback(operator: str) -> None:
    """Remember that `operator` ran on the host instead of a core."""
    with _lock:
        _fallbacks[operator] = _fallbacks.get(operator, 0) + 1


def get_dynamo_metrics() -> list[dict[str, object]]:
    """One dict per graph compiled or loaded since the last `reset_dynamo_metrics`, in order.

    Keys: `graph_name`, `graph_node_count`, `torch_neuronx_compile_us`
    (microseconds), and, on software cores, `cache_hit`, `neff_module`, `role`
    (`inference`, `forward` or `backward`) and `shapes`.
    """
    with _lock:
        return [
            {
                "graph_name": graph.graph_name,
                "graph_node_count": graph.graph_node_count,
                "torch_neuronx_compile_us": graph.compile_us,
                "cache_hit": graph.cache_hit,
                "neff_module": graph.neff_module,
                "role": graph.role,
                "shapes": list(graph.shapes),
            }
            for graph in _graphs
        ]


def reset_dynamo_metrics() -> None:
    """Forget the graphs counted so far."""
    with _lock:
        _graphs.clear()


def get_executed_ops() -> list[str]:
    """Names of the operators that ran on a core, one by one, since the last `clear_op_tracking`."""
    return sorted(name for name, _ in _C.executed_operators())


def get_fallback_ops() -> list[str]:
    """Names of the operators that ran on the host instead, since the last `clear_op_tracking`."""
    with _lock:
        return sorted(_fallbacks)


def clear_op_tracking() -> None:
    """Forget the operators counted so far."""
    _C.clear_executed_operators()
    with _lock:
        _fallbacks.clear()
