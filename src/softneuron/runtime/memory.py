"""Memory of a core, by the names of `torch.cuda.memory`."""

from __future__ import annotations

import torch

from softneuron import _C
from softneuron.runtime.devices import Device, core_index


def memory_allocated(device: Device = None) -> int:
    """Bytes of the core's memory in use now."""
    return int(_C.core_memory(core_index(device))["allocated"])


def max_memory_allocated(device: Device = None) -> int:
    """Most bytes in use at once since the start or the last `reset_peak_memory_stats`."""
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
