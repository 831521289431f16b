"""Random programs on cores against a model of their cost: use, peak and refusals, from many threads."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softneuron import _C
from softneuron.diagnostics.memory import describe_biggest

LIMIT = 1024**2
ELEMENT = 4

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "view", "free", "negate", "product", "grow", "copy", "reset_peak"]),
        st.integers(0, 10**6),
        st.integers(1, 90_000),
    ),
    max_size=40,
)


@pytest.fixture(autouse=True)
def _small_cores():
    """Cores 0 to 3 with 1 MiB each."""
    gc.collect()
    assert [torch.neuron.memory_allocated(core) for core in range(4)] == [0] * 4
    whole = torch.neuron.mem_get_info(0)[1]
    for core in range(4):
        torch.neuron.set_per_process_memory_fraction(LIMIT / whole, core)
    # The text of an error names the biggest tensors, and holds on to every tensor while it looks for them;
    # what another thread frees in that moment would be given back later than its model says.
    _C.set_describer(lambda core, blocks: "")
    yield
    _C.set_describer(describe_biggest)
    for core in range(4):
        torch.neuron.set_per_process_memory_fraction(1.0, core)


@dataclass
class Model:
    """What a core must show: bytes of live storages, their peak, refusals."""

    in_use: int = 0
    peak: int = 0
    refused: int = 0

    def fits(self, size: int) -> bool:
        if self.in_use + size > LIMIT:
            self.refused += 1
            return False
        self.in_use += size
        self.peak = max(self.peak, self.in_use)
        return True


class Program:
    """Runs steps on one core, and on the model of it."""

    def __init__(self, core: int) -> None:
        self.device = f"neuron:{core}"
        self.core = core
        self.model = Model()
        self.tensors: list[torch.Tensor] = []
        self.storage_of: list[int] = []
        self.sizes: dict[int, int] = {}
        self.holders: dict[int, int] = {}
        self.next_storage = 0
        torch.neuron.reset_peak_memory_stats(core)
        self.refused_before = torch.neuron.memory_stats(core)["num_ooms"]

    def keep(self, tensor: torch.Tensor, storage: int | None, size: int = 0) -> None:
        if storage is None:
            storage, self.next_storage = self.next_storage, self.next_storage + 1
            self.sizes[storage], self.holders[storage] = size, 0
        self.holders[storage] += 1
        self.tensors.append(tensor)
        self.storage_of.append(storage)

    def drop(self, index: int) -> None:
        storage = self.storage_of.pop(index)
        del self.tensors[index]
        self.holders[storage] -= 1
        if self.holders[storage] == 0:
            self.model.in_use -= self.sizes.pop(storage)

    def step(self, action: str, choice: int, count: int) -> None:
        if action in ("allocate", "copy"):
            expected = self.model.fits(count * ELEMENT)
            host = torch.ones(count)
            self.make(
                expected,
                lambda: (
                    torch.ones(count, device=self.device) if action == "allocate" else host.to(self.device)
                ),
            )
        elif action == "reset_peak":
            torch.neuron.reset_peak_memory_stats(self.core)
            self.model.peak = self.model.in_use
        elif self.tensors:
            index = choice % len(self.tensors)
            tensor = self.tensors[index]
            if action == "view":
                self.keep(tensor[: tensor.numel() // 2 + 1], self.storage_of[index])
            elif action == "free":
                del tensor
                self.drop(index)
            elif action == "negate":
                expected = self.model.fits(tensor.numel() * ELEMENT)
                self.make(expected, lambda: -tensor)
            elif action == "product":
                square = tensor[: min(tensor.numel(), 150)].view(-1, 1)
                expected = self.model.fits(square.numel() ** 2 * ELEMENT)
                self.make(expected, lambda: square @ square.T)
            elif action == "grow":
                self.grow(tensor, self.storage_of[index], count)

    def grow(self, tensor: torch.Tensor, storage: int, count: int) -> None:
        """`resize_` of a storage holds the old bytes until the new ones are filled."""
        old = self.sizes[storage]
        needed = (count + tensor.storage_offset()) * ELEMENT
        if needed <= old:
            tensor.resize_(count)
            return
        if self.model.fits(needed):
            tensor.resize_(count)
            self.model.in_use -= old
            self.sizes[storage] = needed
        else:
            self.refused(lambda: tensor.resize_(count))

    def make(self, expected: bool, call) -> None:
        if expected:
            made = call()
            self.keep(made, None, made.numel() * ELEMENT)
        else:
            self.refused(call)

    def refused(self, call: Callable[[], object]) -> None:
        """Not with `pytest.raises`, which keeps the frames, and with them the tensors, for a while."""
        try:
            call()
        except torch.OutOfMemoryError as error:
            assert str(error).startswith(f"{self.device} out of memory")  # noqa: PT017
        else:
            raise AssertionError("the core took more than it has")

    def check(self) -> None:
        assert torch.neuron.memory_allocated(self.core) == self.model.in_use
        assert torch.neuron.max_memory_allocated(self.core) == self.model.peak
        refused = torch.neuron.memory_stats(self.core)["num_ooms"] - self.refused_before
        assert refused == self.model.refused
        blocks = torch.neuron.memory_snapshot(self.core)
        assert sorted(block["total_size"] for block in blocks) == sorted(self.sizes.values())

    def run(self, steps: list[Step]) -> None:
        try:
            for step in steps:
                self.step(*step)
                self.check()
        finally:
            self.tensors.clear()
        assert torch.neuron.memory_allocated(self.core) == 0


@settings(max_examples=60)
@given(STEPS)
def test_a_program_costs_what_its_model_says_at_every_step(steps):
    Program(1).run(steps)


@settings(max_examples=12)
@given(st.lists(STEPS, min_size=4, max_size=4))
def test_programs_of_four_threads_on_four_cores_do_not_touch_each_other(programs):
    errors: list[BaseException] = []

    def run(core: int, steps: list[Step]) -> None:
        try:
            Program(core).run(steps)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(programs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@settings(max_examples=4)
@given(st.integers(0, 2**32))
def test_threads_that_share_a_core_leave_it_empty_and_never_pass_its_limit(seed):
    """Three threads hand tensors to each other over one core; what one made another frees."""
    shared: list[torch.Tensor] = []
    errors: list[BaseException] = []
    torch.neuron.reset_peak_memory_stats(2)
    made = torch.neuron.memory_stats(2)

    def run(number: int) -> None:
        choose = random.Random(seed + number)
        for _ in range(30):
            try:
                if choose.random() < 0.55:
                    shared.append(torch.ones(choose.randint(1, 12_000), device="neuron:2"))
                else:
                    shared.pop(choose.randrange(len(shared))).add_(1)
            except (IndexError, ValueError, torch.OutOfMemoryError):
                pass
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert torch.neuron.memory_allocated(2) == sum(tensor.nbytes for tensor in shared)
    assert torch.neuron.max_memory_allocated(2) <= LIMIT
    shared.clear()
    after = torch.neuron.memory_stats(2)
    assert torch.neuron.memory_allocated(2) == 0
    key = "allocated_bytes.all."
    assert after[key + "allocated"] - made[key + "allocated"] == after[key + "freed"] - made[key + "freed"]
