"""A core's memory: exact, limited, and given back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

MIB = 1024**2

pytestmark = pytest.mark.usefixtures("no_garbage")


@pytest.fixture
def in_use(no_garbage):
    """Bytes in use on core 3 beyond those at the start of the test."""
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
    for key in ("reserved_bytes.all.peak", "num_alloc_retries", "num_ooms"):
        assert stats[key] >= 0
    assert torch.accelerator.memory_allocated(3) == torch.neuron.memory_allocated(3)


def test_growing_a_storage_moves_the_charge(in_use):
    tensor = torch.ones(10, device="neuron:3")
    tensor.resize_(1000)
    assert in_use() == 4000
    assert tensor[:10].cpu().tolist() == [1.0] * 10
    tensor.untyped_storage().resize_(0)
    assert in_use() == 0


def test_eight_threads_on_four_cores_leave_no_drift():
    """Three seconds of what `make stress` does for a minute."""
    script = Path(__file__).parents[3] / "benchmarks" / "threads.py"
    done = subprocess.run(
        [sys.executable, str(script), "--seconds", "3"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "errors: none; counters that drifted: none" in done.stdout


def test_the_error_names_the_biggest_live_tensors_and_freeing_them_lets_the_program_go_on():
    model = torch.nn.Sequential(torch.nn.Linear(1024, 512), torch.nn.Linear(16, 16)).to("neuron:2")
    big = torch.empty(3 * MIB, dtype=torch.uint8, device="neuron:2")
    x = torch.ones(2048, 1024, device="neuron:2", requires_grad=True)
    loss = x.exp().exp().sum()  # keeps two results of 8 MiB for the backward pass
    free, _ = torch.neuron.mem_get_info(2)
    with pytest.raises(torch.OutOfMemoryError) as error:
        torch.empty(free + 1, dtype=torch.uint8, device="neuron:2")
    text = str(error.value)
    assert text.startswith("neuron:2 out of memory. Tried to allocate ")
    assert "The core has a total capacity of 24.00 GiB of which " in text
    biggest = text.partition("Biggest live tensors: ")[2].rstrip(".").split("; ")
    assert sorted(biggest[:3]) == [
        "8.00 MiB (held by no Python object: saved for the backward pass, or scratch)",
        "8.00 MiB (held by no Python object: saved for the backward pass, or scratch)",
        "8.00 MiB float32[2048, 1024]",
    ]
    assert biggest[3:] == ["3.00 MiB uint8[3145728]", "2.00 MiB float32[512, 1024] Sequential.0.weight"]
    whole = torch.neuron.mem_get_info(2)[1]
    used = torch.neuron.memory_allocated(2)
    torch.neuron.set_per_process_memory_fraction((used + 5 * MIB) / whole, 2)
    with pytest.raises(torch.OutOfMemoryError):
        torch.cat([big, big])
    assert torch.neuron.memory_allocated(2) == used
    del big
    assert torch.ones(7 * MIB, dtype=torch.uint8, device="neuron:2")[-1].item() == 1
    torch.neuron.set_per_process_memory_fraction(1.0, 2)
    big = torch.empty(3 * MIB, dtype=torch.uint8, device="neuron:2")
    assert torch.cat([big, big]).numel() == 6 * MIB
    loss.backward()
    assert model[0](x).shape == (2048, 512)


def test_the_out_of_memory_error_reaches_from_a_thread_of_the_backward_pass(run_python):
    program = (
        "import torch\n"
        "x = torch.ones(2**18, device='neuron', requires_grad=True)\n"
        "loss = (x.exp() * x).sum()\n"
        "plug = torch.empty(torch.neuron.mem_get_info()[0] - 2**19, dtype=torch.uint8, device='neuron')\n"
        "try: loss.backward()\n"
        "except torch.OutOfMemoryError as error: print(str(error)[:22], 'Biggest live' in str(error))\n"
        "del plug\n"
        "x.grad = None\n"
        "(x.exp() * x).sum().backward()\n"
        "print(round(x.grad[0].item(), 3))\n"
    )
    assert run_python(program, SOFTNEURON_HBM_PER_CORE="12MiB").splitlines() == [
        "neuron:0 out of memory True",
        "5.437",
    ]


def test_a_snapshot_and_a_summary_show_every_block(in_use):
    tensors = [torch.empty(size, dtype=torch.uint8, device="neuron:3") for size in (100, 2 * MIB)]
    blocks = {segment["address"]: segment for segment in torch.neuron.memory_snapshot(3)}
    for tensor, kind in zip(tensors, ("small", "large"), strict=True):
        segment = blocks[tensor.data_ptr()]
        assert (segment["device"], segment["total_size"], segment["segment_type"]) == (3, tensor.nbytes, kind)
        assert segment["blocks"][0]["state"] == "active_allocated"
    assert sum(segment["total_size"] for segment in blocks.values()) == torch.neuron.memory_allocated(3)
    summary = torch.neuron.memory_summary(3)
    assert summary.startswith("neuron:3 (software NeuronCore)")
    assert f"{torch.neuron.memory_allocated(3):,} bytes" in summary
    assert len(torch.neuron.memory_summary(3, abbreviated=True).splitlines()) < len(summary.splitlines())
    nested, flat = torch.neuron.memory_stats_as_nested_dict(3), torch.neuron.memory_stats(3)
    assert nested["allocated_bytes"]["all"]["current"] == flat["allocated_bytes.all.current"]
    assert nested["num_ooms"] == flat["num_ooms"]


def test_fresh_memory_is_poisoned_on_request(run_python):
    program = "import torch; print(torch.empty(1000, device='neuron').isnan().all().item())"
    assert run_python(program, SOFTNEURON_POISON="1") == "True"
