"""Who pays for what other threads allocate: a kernel's pool, two cores at once, backward passes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

MIB = 1024**2
DONE = ctypes.CFUNCTYPE(None)

pytestmark = pytest.mark.usefixtures("no_garbage")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A kernel that allocates in a parallel region, compiled against PyTorch and its OpenMP."""
    folder, root = tmp_path_factory.mktemp("pool"), Path(torch.__file__).parent
    source, target = Path(__file__).with_name("pool_allocations.cpp"), folder / "pool.so"
    command = [os.environ.get("CXX", "c++"), "-shared", "-fPIC", "-O1", "-fopenmp", "-std=c++20"]
    command += [f"-I{root / 'include'}", str(source), "-o", str(target), f"-L{root / 'lib'}", "-lc10"]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(target))


@pytest.fixture(scope="module")
def kernel(library: ctypes.CDLL) -> Iterator[Callable[[torch.Tensor, Callable[[], None]], None]]:
    """Calls the operator `softneuron_test::pool`, which holds 1 MiB in each of three threads of its pool."""
    waiting: dict[int, Callable[[], None]] = {}
    holder = torch.library.Library("softneuron_test", "DEF")
    holder.define("pool(Tensor x) -> Tensor")

    def pool(x: torch.Tensor) -> torch.Tensor:
        threads = library.allocate_in_pool(3, MIB, DONE(waiting[threading.get_ident()]))
        assert threads == 3
        return x.clone()

    holder.impl("pool", pool, "CPU")

    def call(x: torch.Tensor, held: Callable[[], None]) -> None:
        waiting[threading.get_ident()] = held
        torch.ops.softneuron_test.pool(x)

    yield call
    holder._destroy()


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def in_thread(work: Callable[[], None]) -> None:
    """Run `work` in a thread of its own and raise what it raised."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            torch.set_num_threads(3)
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_a_kernels_pool_allocates_on_its_core(kernel, three_threads):
    def work() -> None:
        x = torch.ones(4, device="neuron:2")
        before, seen = torch.neuron.memory_allocated(2), []
        kernel(x, lambda: seen.append(torch.neuron.memory_allocated(2)))
        assert seen == [before + 3 * MIB]
        assert torch.neuron.memory_allocated(2) == before

    work()
    in_thread(work)


def test_the_same_pool_is_the_hosts_between_kernels(kernel, library, three_threads):
    def work() -> None:
        kernel(torch.ones(4, device="neuron:2"), lambda: None)
        before, seen = torch.neuron.memory_allocated(2), []
        held = DONE(lambda: seen.append(torch.neuron.memory_allocated(2)))
        assert library.allocate_in_pool(3, MIB, held) == 3
        assert seen == [before]

    work()
    in_thread(work)


def test_two_cores_that_compute_at_once_pay_for_their_own(kernel):
    """Both kernels are inside their parallel regions at the same time, and end in either order."""
    inside, looked = threading.Barrier(2), threading.Barrier(2)
    before = [torch.neuron.memory_allocated(core) for core in (0, 1)]
    seen: dict[int, list[int]] = {}

    def work(core: int) -> None:
        x = torch.ones(4, device=f"neuron:{core}")
        cost = x.untyped_storage().nbytes()

        def held() -> None:
            inside.wait(30)
            seen.setdefault(core, []).append(torch.neuron.memory_allocated(core) - cost)
            looked.wait(30)

        for _ in range(20):
            kernel(x, held)

    threads = [threading.Thread(target=in_thread, args=(lambda core=core: work(core),)) for core in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {core: [before[core] + 3 * MIB] * 20 for core in (0, 1)}
    assert [torch.neuron.memory_allocated(core) for core in (0, 1)] == before


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU])
def test_scratch_of_the_recurrent_backward_pass_is_charged(layer):
    """Memory of the backward pass that no caller holds is in the peak: the gates' gradients of every step."""
    torch.manual_seed(0)
    steps, width = 50, 64
    layer = layer(width, width, num_layers=2).to("neuron:3")
    x = torch.randn(steps, 8, width, device="neuron:3", requires_grad=True)
    loss = layer(x)[0].sum()
    torch.neuron.reset_peak_memory_stats(3)
    before, totals = torch.neuron.memory_allocated(3), torch.neuron.memory_stats(3)
    loss.backward()
    gradients = x.grad.nbytes + sum(weight.grad.nbytes for weight in layer.parameters())
    after = torch.neuron.memory_stats(3)
    taken = after["allocated_bytes.all.allocated"] - totals["allocated_bytes.all.allocated"]
    assert taken > gradients + x.nbytes
    assert torch.neuron.max_memory_allocated(3) > before
    del loss
    host = torch.neuron.memory_allocated(3)
    kept = torch.zeros(MIB)
    assert torch.neuron.memory_allocated(3) == host
    del kept


def test_a_backward_pass_that_runs_out_of_memory_charges_nothing_later(run_python):
    program = (
        "import torch\n"
        "layer = torch.nn.LSTM(64, 64).to('neuron')\n"
        "x = torch.randn(60, 4, 64, device='neuron', requires_grad=True)\n"
        "loss = layer(x)[0].sum()\n"
        "free = torch.neuron.mem_get_info()[0]\n"
        "plug = torch.empty(free - 4096, dtype=torch.uint8, device='neuron')\n"
        "try: loss.backward()\n"
        "except torch.OutOfMemoryError as error: print(str(error)[:22])\n"
        "before = torch.neuron.memory_allocated()\n"
        "host = torch.ones(2**20)\n"
        "print(torch.neuron.memory_allocated() - before)\n"
    )
    assert run_python(program, SOFTNEURON_HBM_PER_CORE="8MiB").splitlines() == [
        "neuron:0 out of memory",
        "0",
    ]
