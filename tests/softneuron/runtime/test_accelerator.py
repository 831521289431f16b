"""`torch.accelerator` in full, streams, events, generators and initialisation."""

from __future__ import annotations

import copy
import pickle
import time

import pytest
import torch

accelerator = torch.accelerator


@pytest.fixture(autouse=True)
def _core_0():
    yield
    torch.neuron.set_device(0)


def test_cores_are_counted_and_chosen():
    assert accelerator.is_available()
    assert accelerator.current_accelerator() == torch.device("neuron")
    assert accelerator.device_count() == 4
    accelerator.set_device_index(1)
    assert accelerator.current_device_index() == torch.neuron.current_device() == 1
    with accelerator.device_index(2):
        assert torch.empty(1, device="neuron").device == torch.device("neuron:2")
    assert torch.neuron.current_device() == 1
    assert torch.device(3) == torch.device("neuron:3")


@pytest.mark.parametrize("device", [None, 2, "neuron:2", torch.device("neuron:2")])
def test_memory_is_that_of_the_module(device):
    kept = torch.empty(1000, device=device if isinstance(device, int) else device or "neuron")
    assert accelerator.memory_allocated(device) == torch.neuron.memory_allocated(device) >= kept.nbytes
    assert accelerator.memory_reserved(device) == torch.neuron.memory_reserved(device)
    accelerator.reset_peak_memory_stats(device)
    accelerator.reset_accumulated_memory_stats(device)
    assert accelerator.max_memory_allocated(device) == torch.neuron.max_memory_allocated(device)
    assert accelerator.max_memory_reserved(device) == torch.neuron.max_memory_reserved(device)
    stats = accelerator.memory_stats(device)
    assert stats == torch.neuron.memory_stats(device)
    assert stats["allocated_bytes.all.freed"] == 0
    assert accelerator.get_memory_info(device) == torch.neuron.mem_get_info(device)
    assert torch.neuron.device_memory_used(device) == accelerator.memory_allocated(device)


def test_caches_are_emptied_and_work_is_waited_for():
    pinned = torch.ones(3).pin_memory()
    accelerator.empty_cache()
    accelerator.empty_host_cache()
    accelerator.synchronize()
    accelerator.synchronize("neuron:1")
    assert pinned.tolist() == [1, 1, 1]


def test_capability_lists_the_dtypes():
    dtypes = accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.bfloat16, torch.float32, torch.int64, torch.float8_e4m3fn} <= dtypes


def test_graphs_are_refused_in_pytorchs_words():
    with pytest.raises(RuntimeError, match="Graph is not supported on device type: neuron"):
        accelerator.Graph()
    assert torch.neuron.is_current_stream_capturing() is False


def test_a_stream_makes_its_core_current_and_gives_it_back():
    stream = torch.neuron.Stream(device="neuron:2")
    for context in (torch.neuron.stream(stream), stream):
        with context:
            assert torch.neuron.current_device() == 2
            assert torch.neuron.current_stream() == stream
        assert torch.neuron.current_device() == 0
    torch.neuron.set_stream(stream)
    assert accelerator.current_stream("neuron:2") == stream
    accelerator.set_stream(torch.neuron.default_stream("neuron:2"))
    assert torch.neuron.current_stream("neuron:2") == torch.neuron.default_stream("neuron:2")
    with torch.neuron.stream(None):
        assert torch.neuron.current_device() == 2


def test_streams_wait_for_events_and_each_other():
    stream, tensor = torch.neuron.Stream(), torch.ones(3, device="neuron")
    stream.wait_stream(torch.neuron.current_stream())
    event = stream.record_event()
    assert isinstance(event, torch.Event)
    stream.wait_event(event)
    tensor.record_stream(stream)
    stream.synchronize()
    assert stream.query()
    assert event.query()


def test_elapsed_time_measures():
    start, end = (torch.neuron.Event(enable_timing=True) for _ in range(2))
    assert isinstance(start, torch.neuron.Event)
    assert not isinstance(torch.Event("cpu"), torch.neuron.Event)
    clock = time.perf_counter()
    start.record()
    time.sleep(0.02)
    end.record()
    clock = 1000 * (time.perf_counter() - clock)
    assert 20 <= start.elapsed_time(end) <= clock


def test_elapsed_time_needs_timing_and_records():
    start, end = torch.neuron.Event(), torch.neuron.Event()
    start.record()
    end.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(end)
    with pytest.raises(ValueError, match="must be recorded"):
        torch.neuron.Event(enable_timing=True).elapsed_time(torch.neuron.Event(enable_timing=True))


def test_devices_of_tensors_and_numbers_are_contexts():
    with torch.neuron.device("neuron:1"):
        assert torch.neuron.current_device() == 1
        with torch.neuron.device_of(torch.empty(1, device="neuron:3")):
            assert torch.neuron.current_device() == 3
        with torch.neuron.device_of(torch.empty(1)):
            assert torch.neuron.current_device() == 1
    with torch.device("neuron:2"):
        assert torch.nn.Linear(2, 2).weight.device == torch.device("neuron:2")


def test_the_default_device_can_be_a_core():
    torch.set_default_device("neuron:1")
    try:
        assert torch.get_default_device() == torch.zeros(2).device == torch.device("neuron:1")
        generator = torch.Generator("neuron:1").manual_seed(1)
        assert torch.randperm(4, generator=generator).device == torch.device("neuron:1")
    finally:
        torch.set_default_device(None)


def test_generators_are_saved_copied_and_sent():
    generator = torch.Generator("neuron:1").manual_seed(5)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
    state = generator.get_state()
    for other in (generator.clone_state(), pickle.loads(pickle.dumps(generator))):
        assert other.device == torch.device("neuron:1")
        assert torch.equal(torch.rand(3, device="neuron:1", generator=other).cpu(), expected)
    torch.rand(9, device="neuron:1", generator=generator)
    generator.set_state(state)
    assert torch.equal(torch.rand(3, device="neuron:1", generator=generator).cpu(), expected)
    assert generator.initial_seed() == 5
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"


def test_seeds_reach_every_core_and_states_are_restored():
    torch.manual_seed(3)
    drawn = [torch.randn(3, device=f"neuron:{core}").cpu() for core in range(4)]
    assert all(torch.equal(numbers, drawn[0]) for numbers in drawn)
    torch.neuron.manual_seed(4)
    first = torch.randn(3, device="neuron")
    torch.neuron.manual_seed_all(4)
    assert torch.equal(torch.randn(3, device="neuron"), first)
    assert torch.neuron.initial_seed() == 4
    states = torch.neuron.get_rng_state_all()
    with torch.random.fork_rng(devices=range(4), device_type="neuron"):
        torch.rand(3, device="neuron:2")
        torch.neuron.seed_all()
    assert all(map(torch.equal, torch.neuron.get_rng_state_all(), states))
    torch.neuron.set_rng_state(states[1], "neuron:1")
    assert torch.neuron.seed() == torch.neuron.initial_seed()
    assert len(torch.neuron.default_generators) == 4
    assert torch.neuron.default_generators[2].device == torch.neuron.default_generator(2).device


def test_a_fraction_of_a_core_can_be_the_limit():
    whole = torch.neuron.mem_get_info(3)[1]
    torch.neuron.set_per_process_memory_fraction(0.5, 3)
    try:
        assert torch.neuron.mem_get_info(3)[1] == whole // 2
        assert torch.neuron.get_per_process_memory_fraction(3) == 0.5
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(whole // 2 + 1, dtype=torch.uint8, device="neuron:3")
    finally:
        torch.neuron.set_per_process_memory_fraction(1.0, 3)
    with pytest.raises(ValueError, match="Allowed range: 0~1"):
        torch.neuron.set_per_process_memory_fraction(1.5)
    with pytest.raises(TypeError, match="must be `float`"):
        torch.neuron.set_per_process_memory_fraction(1)


def test_it_is_initialised_by_use():
    torch.neuron.init()
    assert torch.neuron.is_initialized()
    assert torch.neuron._initialized
    assert not torch.neuron._is_in_bad_fork()
    assert copy.deepcopy(torch.neuron.get_device_properties(2)) == torch.neuron.get_device_properties(
        "neuron:2"
    )
    assert torch.neuron.get_device_capability() is None
    assert torch.neuron.is_bf16_supported()
    assert torch.neuron.get_amp_supported_dtype() == [torch.bfloat16, torch.float16]


FORKS = """
import os, sys, torch
def forked(what):
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        try: print(what())
        except RuntimeError as error: print(str(error)[:45])
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(process, 0)
print(torch.neuron.is_initialized())
torch.manual_seed(1)
forked(lambda: torch.ones(2, device='neuron').sum().item())
os.environ['LOCAL_RANK'] = '2'
forked(torch.neuron.current_device)
del os.environ['LOCAL_RANK']
kept = torch.ones(3, device='neuron')
forked(lambda: torch.ones(2, device='neuron'))
forked(lambda: kept.add_(1))
forked(lambda: kept.cpu())
forked(lambda: torch.neuron.set_device(1))
forked(lambda: [torch.manual_seed(1) and torch.ones(2).tolist(), torch.neuron._is_in_bad_fork()])
from torch.utils.data import DataLoader
print(sum(batch.sum().item() for batch in DataLoader(torch.arange(6.), batch_size=2, num_workers=2)))
print(kept.tolist())
"""


def test_a_fork_after_use_gives_the_usual_error_and_a_fork_before_use_works(run_python):
    refused = "Cannot re-initialize neuron in forked subpro"
    lines = [line[: len(refused)] for line in run_python(FORKS).splitlines()]
    assert lines == [
        *("False", "2.0", "2"),
        *[refused] * 4,
        "[[1.0, 1.0], True]",
        "15.0",
        "[1.0, 1.0, 1.0]",
    ]
