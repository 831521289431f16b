"""Memory of a core, by the names of `torch.cuda.memory`."""

from __future__ import annotations

import os
from typing import Any

import torch

from softneuron import _C
from softneuron.diagnostics.metrics import refuse_if_off
from softneuron.runtime import instances
from softneuron.runtime.devices import Device, core_index


def memory_allocated(device: Device = None) -> int:
    """Bytes of the core's memory in use now."""
    return int(_C.core_memory(core_index(device))["allocated"])


def max_memory_allocated(device: Device = None) -> int:
    """Most bytes in use at once since the start or the last `reset_peak_memory_stats`."""
    refuse_if_off()
    return int(_C.core_memory(core_index(device))["peak"])


def memory_reserved(device: Device = None) -> int:
    """Bytes held by the allocator; a software core holds none in reserve, so those in use."""
    return memory_allocated(device)


def max_memory_reserved(device: Device = None) -> int:
    """Peak of `memory_reserved`, in bytes."""
    return max_memory_allocated(device)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of the core."""
    memory = _C.core_memory(core_index(device))
    return int(memory["limit"] - memory["allocated"]), int(memory["limit"])


def memory_stats(device: Device = None) -> dict[str, int]:
    """The statistics of `torch.accelerator.memory_stats`: flat keys such as `allocated_bytes.all.current`."""
    stats: dict[str, int] = torch.accelerator.memory_stats(core_index(device))
    return stats


def reset_peak_memory_stats(device: Device = None) -> None:
    """Let the peak start again from what is in use now."""
    _C.reset_core_peak(core_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Let the totals of allocated and freed bytes start again."""
    _C.reset_core_totals(core_index(device))


def empty_cache() -> None:
    """Give unused memory back; a software core keeps none."""


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """The statistics of `memory_stats` as nested dictionaries: `["allocated_bytes"]["all"]["current"]`."""
    nested: dict[str, Any] = {}
    for key, value in memory_stats(device).items():
        *parents, last = key.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return nested


def device_memory_used(device: Device = None) -> int:
    """Bytes of the core's memory in use; a core belongs to one process, so what `memory_allocated` says."""
    return memory_allocated(device)


def memory_snapshot(device: Device = None) -> list[dict[str, Any]]:
    """What is allocated on a core now, the newest first, in the form of `torch.cuda.memory_snapshot`.

    A software core has no caching allocator: each segment is one block, and each block a tensor's memory
    or a kernel's scratch.
    """
    core = core_index(device)
    return [
        {
            "device": core,
            "address": address,
            "total_size": size,
            "allocated_size": size,
            "active_size": size,
            "requested_size": size,
            "stream": 0,
            "segment_type": "large" if size >= 2**20 else "small",
            "blocks": [
                {"address": address, "size": size, "requested_size": size, "state": "active_allocated"}
            ],
        }
        for address, size in _C.live_blocks(core)
    ]


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limit this process to a part, from 0 to 1, of the core's memory.

    Raises:
        TypeError: when `fraction` is no float.
        ValueError: when it is below 0 or above 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C.set_core_limit(core_index(device), int(_whole_core() * fraction))


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The part, from 0 to 1, of the core's memory that this process may use."""
    return float(_C.core_memory(core_index(device))["limit"] / _whole_core())


def _whole_core() -> int:
    return instances.read_configuration(os.environ).bytes_per_core


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A table for people of the core's memory: in use, peak, limit, allocations."""
    index = core_index(device)
    memory = _C.core_memory(index)
    rows = {
        "in use": f"{memory['allocated']:,} bytes",
        "peak": f"{memory['peak']:,} bytes",
        "limit": f"{memory['limit']:,} bytes",
    }
    if not abbreviated:
        rows |= {
            "blocks in use": f"{memory['blocks']:,}",
            "blocks ever": f"{memory['blocks_total']:,}",
            "bytes ever": f"{memory['allocated_total']:,}",
            "refused": f"{memory['out_of_memory']:,}",
        }
    width = max(map(len, rows))
    lines = [f"neuron:{index} (software NeuronCore)"]
    lines += [f"  {name:<{width}}  {value:>24}" for name, value in rows.items()]
    return "\n".join(lines)
