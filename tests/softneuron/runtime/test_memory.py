"""A core's memory: exact, limited, and given back."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

MIB = 1024**2


@pytest.fixture
def in_use():
    """Bytes in use on core 3 beyond those at the start of the test."""
    gc.collect()
    before = torch.neuron.memory_allocated(3)
    return lambda: torch.neuron.memory_allocated(3) - before


def test_a_tensor_costs_its_bytes_and_deleting_it_gives_them_back(in_use):
    tensor = torch.empty(1000, 3, dtype=torch.bfloat16, device="neuron:3")
    assert in_use() == 6000
    view = tensor[10:]
    del tensor
    assert in_use() == 6000
    del view
    assert in_use() == 0


def test_results_and_scratch_of_kernels_are_charged_and_host_tensors_are_not(in_use):
    left = torch.randn(256, 256, device="neuron:3")
    product = left @ left
    assert in_use() == 2 * 256 * 256 * 4
    back = product.cpu()
    assert in_use() == 2 * 256 * 256 * 4
    del left, product, back
    assert in_use() == 0


def test_the_peak_remembers_and_can_be_reset():
    torch.neuron.reset_peak_memory_stats(3)
    start = torch.neuron.max_memory_allocated(3)
    big = torch.empty(10 * MIB, dtype=torch.uint8, device="neuron:3")
    del big
    assert torch.neuron.max_memory_allocated(3) == start + 10 * MIB
    torch.neuron.reset_peak_memory_stats(3)
    assert torch.neuron.max_memory_allocated(3) == torch.neuron.memory_allocated(3)


def test_passing_the_limit_is_an_out_of_memory_error_and_the_program_goes_on(in_use):
    free, total = torch.neuron.mem_get_info(3)
    with pytest.raises(torch.OutOfMemoryError) as error:
        torch.empty(free + 1, dtype=torch.uint8, device="neuron:3")
    assert "neuron:3 out of memory" in str(error.value)
    assert "24.00 GiB" in str(error.value)
    assert in_use() == 0
    assert torch.ones(3, device="neuron:3").sum().item() == 3
    assert torch.neuron.mem_get_info(3)[1] == total


def test_the_limit_comes_from_the_environment_and_kernels_meet_it_too(run_python):
    program = (
        "import torch\n"
        "x = torch.ones(8 * 2**20, dtype=torch.uint8, device='neuron')\n"
        "print(torch.neuron.mem_get_info())\n"
        "try: x.to(torch.float64)\n"
        "except torch.OutOfMemoryError as error: print('conversion:', str(error)[:23])\n"
        "try: torch.nn.functional.pad(x, (0, 60 * 2**20))\n"
        "except torch.OutOfMemoryError as error: print('padding:', str(error)[:23])\n"
    )
    output = run_python(program, SOFTNEURON_HBM_PER_CORE="64MiB").splitlines()
    assert output[0] == str((56 * MIB, 64 * MIB))
    assert output[1] == "conversion: neuron:0 out of memory."
    assert output[2] == "padding: neuron:0 out of memory."


def test_statistics_have_the_flat_keys_of_torch_accelerator():
    kept = torch.empty(123, device="neuron:3")
    stats = torch.neuron.memory_stats(3)
    assert stats["allocated_bytes.all.current"] == torch.neuron.memory_allocated(3)
    assert stats["active_bytes.all.peak"] >= kept.nbytes
    assert stats["num_ooms"] >= 0
    assert torch.accelerator.memory_allocated(3) == torch.neuron.memory_allocated(3)


def test_growing_a_storage_moves_the_charge(in_use):
    tensor = torch.ones(10, device="neuron:3")
    tensor.resize_(1000)
    assert in_use() == 4000
    assert tensor[:10].cpu().tolist() == [1.0] * 10
    tensor.untyped_storage().resize_(0)
    assert in_use() == 0


def test_threads_on_four_cores_leave_no_drift():
    before = [torch.neuron.memory_allocated(core) for core in range(4)]

    def work(core: int) -> None:
        for size in range(1, 200):
            tensor = torch.ones(size, size, device=f"neuron:{core}")
            assert (tensor @ tensor).sum().item() == size**3

    threads = [threading.Thread(target=work, args=(core % 4,)) for core in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [torch.neuron.memory_allocated(core) for core in range(4)] == before


def test_fresh_memory_is_poisoned_on_request(run_python):
    program = "import torch; print(torch.empty(1000, device='neuron').isnan().all().item())"
    assert run_python(program, SOFTNEURON_POISON="1") == "True"
