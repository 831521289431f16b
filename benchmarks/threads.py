"""Eight threads that allocate, compute and free on four cores: no crash, and no byte left over.

    python benchmarks/threads.py --seconds 60

Every result is checked; the exit status is 1 when one is wrong or a counter has drifted.
"""

from __future__ import annotations

import argparse
import gc
import random
import threading
import time

import torch

THREADS, CORES = 8, 4


class Worker(threading.Thread):
    """Random work on one core, and on tensors that other threads of the core have made."""

    def __init__(self, number: int, shelf: list[torch.Tensor], until: float) -> None:
        super().__init__()
        self.device = f"neuron:{number % CORES}"
        self.choose = random.Random(number)
        self.shelf = shelf
        self.until = until
        self.rounds = 0
        self.refused = 0
        self.error: str | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self.until:
                self.round()
                self.rounds += 1
        except BaseException as error:
            self.error = repr(error)

    def round(self) -> None:
        size = self.choose.randint(1, 96)
        tensor = torch.full((size, size), 2.0, device=self.device)
        assert (tensor @ tensor).sum().item() == 4.0 * size**3
        work = self.choose.randrange(5)
        if work == 0:
            self.shelf.append(tensor)
        elif work == 1:
            with_gradient = tensor.requires_grad_()
            (with_gradient * with_gradient).sum().backward()
            assert with_gradient.grad is not None
            assert with_gradient.grad[0, 0].item() == 4.0
        elif work == 2:
            assert tensor.cpu().sum().item() == 2.0 * size * size
        elif work == 3 and self.rounds % 50 == 0:
            _, total = torch.neuron.mem_get_info(self.device)
            try:
                torch.empty(total + 1, dtype=torch.uint8, device=self.device)
            except torch.OutOfMemoryError:
                self.refused += 1
        try:
            while len(self.shelf) > 20:
                assert self.shelf.pop(0)[0, 0].item() == 2.0
        except IndexError:
            pass


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    gc.collect()
    before = [torch.neuron.memory_stats(core) for core in range(CORES)]
    shelves: list[list[torch.Tensor]] = [[] for _ in range(CORES)]
    until = time.monotonic() + seconds
    workers = [Worker(number, shelves[number % CORES], until) for number in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for shelf in shelves:
        shelf.clear()
    gc.collect()
    errors = [worker.error for worker in workers if worker.error is not None]
    after = [torch.neuron.memory_stats(core) for core in range(CORES)]
    drift = [
        (core, key)
        for core in range(CORES)
        for key in ("allocated_bytes.all.current", "allocation.all.current")
        if after[core][key] != before[core][key]
    ]
    refused = sum(worker.refused for worker in workers)
    counted = sum(after[core]["num_ooms"] - before[core]["num_ooms"] for core in range(CORES))
    rounds = sum(worker.rounds for worker in workers)
    print(f"{THREADS} threads on {CORES} cores for {seconds:g} s: {rounds} rounds, {refused} refused")
    print(f"errors: {errors or 'none'}; counters that drifted: {drift or 'none'}")
    return int(bool(errors or drift or refused != counted))


if __name__ == "__main__":
    raise SystemExit(main())
