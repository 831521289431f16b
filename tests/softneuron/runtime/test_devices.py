"""Cores by number, and what PyTorch's own device interface says of them."""

from __future__ import annotations

import pytest
import torch


def test_current_core_is_set_and_restored():
    assert torch.neuron.current_device() == 0
    with torch.neuron.device(2):
        assert torch.neuron.current_device() == 2
        assert torch.ones(1, device="neuron").device == torch.device("neuron:2")
    assert torch.neuron.current_device() == 0


def test_a_core_that_does_not_exist_is_named():
    with pytest.raises(RuntimeError, match=r"neuron:4 does not exist: this process has 4 NeuronCores"):
        torch.ones(1, device="neuron:4")


def test_properties_say_family_memory_and_software():
    properties = torch.neuron.get_device_properties(1)
    assert (properties.name, properties.total_memory, properties.instance) == (
        "trn2",
        24 * 2**30,
        "trn2.3xlarge",
    )
    assert torch.neuron.get_device_name() == "neuron (trn2, software NeuronCore)"


def test_another_device_type_is_refused():
    with pytest.raises(ValueError, match="Expected a neuron device, but got: cpu"):
        torch.neuron.memory_allocated("cpu")


def test_local_rank_is_the_current_core(run_python):
    assert run_python("import torch; print(torch.neuron.current_device())", LOCAL_RANK="3") == "3"


def test_events_measure():
    first, second = torch.neuron.Event(enable_timing=True), torch.neuron.Event(enable_timing=True)
    first.record()
    second.record()
    assert 0 <= first.elapsed_time(second) < 60_000
    assert second.query()


def test_streams_can_be_made_current():
    stream = torch.neuron.Stream()
    assert torch.neuron.current_stream().stream_id == 0
    with torch.neuron.stream(stream):
        assert torch.neuron.current_stream().stream_id == stream.stream_id
    assert torch.neuron.current_stream() == torch.neuron.default_stream()


def test_a_seed_gives_the_numbers_of_the_cpu():
    torch.manual_seed(7)
    on_cpu = [torch.randn(5), torch.nn.functional.dropout(torch.ones(50)), torch.randint(9, (4,))]
    torch.manual_seed(7)
    on_core = [
        torch.randn(5, device="neuron"),
        torch.nn.functional.dropout(torch.ones(50, device="neuron")),
        torch.randint(9, (4,), device="neuron"),
    ]
    for expected, got in zip(on_cpu, on_core, strict=True):
        assert torch.equal(got.cpu(), expected)


def test_random_state_is_saved_and_restored_for_each_core():
    states = torch.neuron.get_rng_state_all()
    first = torch.rand(3, device="neuron:1")
    torch.neuron.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device="neuron:1"), first)


def test_a_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match="Expected a 'neuron' device type for generator but found 'cpu'"):
        torch.empty(3, device="neuron").normal_(generator=torch.Generator())


def test_a_generator_of_the_device_repeats():
    generator = torch.Generator(device="neuron").manual_seed(3)
    first = torch.rand(4, device="neuron", generator=generator)
    generator.manual_seed(3)
    assert torch.equal(torch.rand(4, device="neuron", generator=generator), first)


def test_autocast_multiplies_in_bfloat16_and_normalises_in_float32():
    x = torch.randn(4, 8, device="neuron")
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert (x @ x.T).dtype == torch.bfloat16
        assert torch.softmax((x @ x.T), -1).dtype == torch.float32
