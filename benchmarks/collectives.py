"""Collectives on neuron tensors against Gloo on CPU tensors, taking turns in one run of two ranks.

    python benchmarks/collectives.py

Starts its own ranks. A round calls both sides often enough to last a few
milliseconds; the ratio shown is the median over the rounds, as rank 0 saw it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
SIZES = [1 << exponent for exponent in range(10, 27, 2)]
ROUNDS = 101


def calls(name: str, device: str, group: dist.ProcessGroup, size: int) -> Callable[[], object]:
    """One collective on tensors of `size` bytes per rank."""
    tensor = torch.ones(size // 4, device=device)
    if name == "all_reduce":
        return lambda: dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
    joined = torch.zeros(RANKS * size // 4, device=device)
    return lambda: dist.all_gather_single(joined, tensor, group=group)


def seconds_of(call: Callable[[], object], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


def compare(name: str, size: int, groups: dict[str, dist.ProcessGroup]) -> None:
    sides = {device: calls(name, device, group, size) for device, group in groups.items()}
    repeats = max(1, min(200, (1 << 22) // size))
    for call in sides.values():
        seconds_of(call, 2)
    rounds: dict[str, list[float]] = {device: [] for device in sides}
    for number in range(ROUNDS):
        # Whoever goes first pays for what the other left in the caches.
        for device in sorted(sides, reverse=bool(number % 2)):
            dist.barrier(group=groups["cpu"])
            rounds[device].append(seconds_of(sides[device], repeats))
    if dist.get_rank() == 0:
        ratio = statistics.median(n / c for n, c in zip(rounds["neuron"], rounds["cpu"], strict=True))
        cpu, neuron = (statistics.median(rounds[device]) * 1e6 for device in ("cpu", "neuron"))
        print(f"{name:14}{size >> 10:>8} KiB{cpu:>14.1f} µs{neuron:>14.1f} µs{ratio:>10.3f}", flush=True)


def rank_main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "cpu:gloo,neuron:neuron", init_method=f"file://{store}", rank=rank, world_size=RANKS
    )
    groups = {"cpu": dist.new_group(backend="gloo"), "neuron": dist.new_group(backend="neuron")}
    if rank == 0:
        print(f"{RANKS} ranks, torch {torch.__version__}")
        print(f"{'':26}{'gloo, cpu':>17}{'neuron':>17}{'ratio':>10}")
    for name in ("all_reduce", "all_gather"):
        for size in SIZES:
            compare(name, size, groups)
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, args=(os.path.join(folder, "store"),), nprocs=RANKS)


if __name__ == "__main__":
    main()
