"""What callers import as `torch_neuronx`: the names of AWS's package that code in the field uses."""

from __future__ import annotations

from softneuron import COMPILER_VERSION
from softneuron.diagnostics.faults import active
from softneuron.diagnostics.metrics import (
    clear_op_tracking,
    get_dynamo_metrics,
    get_executed_ops,
    get_fallback_graphs,
    get_fallback_ops,
    reset_dynamo_metrics,
)
from softneuron.runtime.devices import device_count, is_available, synchronize
from softneuron.runtime.memory import (
    empty_cache,
    max_memory_allocated,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_peak_memory_stats,
)
from softneuron.runtime.streams import Event, Stream, current_stream, stream

__all__ = [
    "Event",
    "Stream",
    "clear_op_tracking",
    "current_stream",
    "device_count",
    "empty_cache",
    "get_dynamo_metrics",
    "get_executed_ops",
    "get_fallback_graphs",
    "get_fallback_ops",
    "is_available",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_dynamo_metrics",
    "reset_peak_memory_stats",
    "stream",
    "synchronize",
]


def __getattr__(name: str) -> str:
    # What a device that is wrong on purpose gave is never filed beside what a right one gave.
    if name == "__version__":
        return f"{COMPILER_VERSION}+faults" if active() else COMPILER_VERSION
    raise AttributeError(f"module 'torch_neuronx' has no attribute {name!r}")
