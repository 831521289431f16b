"""What `torch.neuron` is: the names of `torch.cuda` that make sense on Neuron, gathered from their files."""

from __future__ import annotations

from typing import Any

import torch

from softneuron import _C
from softneuron.diagnostics.metrics import get_dynamo_metrics, reset_dynamo_metrics
from softneuron.runtime.devices import (
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    is_available,
    is_bf16_supported,
    set_device,
    synchronize,
)
from softneuron.runtime.memory import (
    device_memory_used,
    empty_cache,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from softneuron.runtime.random import (
    default_generator,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from softneuron.runtime.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    is_current_stream_capturing,
    set_stream,
    stream,
)

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_device",
    "current_stream",
    "default_generator",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_dynamo_metrics",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_dynamo_metrics",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


def init() -> None:
    """Make the cores ready, which their first use does by itself.

    Raises:
        RuntimeError: in a process that was forked from one that had used them, or where an environment
            variable cannot be understood.
    """
    _C.use_cores()
    _C.current_core()


def is_initialized() -> bool:
    """Whether this process has used a core."""
    return bool(_C.cores_used()) and not _is_in_bad_fork()


def _lazy_init() -> None:
    init()


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had used a core, whose threads did not come along."""
    return bool(_C.in_bad_fork())


default_generators: tuple[torch.Generator, ...]
"""The generators of all cores, made when they are asked for."""


def __getattr__(name: str) -> Any:
    # Known at the time of asking: PyTorch's checkpointing asks for the first, CUDA has both.
    if name == "_initialized":
        return is_initialized()
    if name == "default_generators":
        return tuple(default_generator(core) for core in range(device_count()))
    raise AttributeError(f"module 'torch.neuron' has no attribute {name!r}")
