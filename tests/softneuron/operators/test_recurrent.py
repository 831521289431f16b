"""LSTM, GRU and RNN: the CPU's own path, so the CPU's bits, forward and backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

LAYERS = [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN]
CELLS = [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell]
OPTIONS = [
    {},
    {"num_layers": 2, "bidirectional": True, "dropout": 0.3},
    {"batch_first": True, "bias": False},
]


def pair(make, *args, **options):
    torch.manual_seed(0)
    host = make(*args, **options)
    return host, copy.deepcopy(host).to("neuron")


def assert_same_gradients(host, device):
    for (name, ours), theirs in zip(host.named_parameters(), device.parameters(), strict=True):
        assert theirs.grad.device.type == "neuron"
        assert torch.equal(ours.grad, theirs.grad.cpu()), name


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "deep", "no_bias"])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_train_bit_equal(layer, options):
    host, device = pair(layer, 8, 16, **options)
    x = torch.randn(5, 3, 8)
    results = []
    for module, here in ((host, x.clone().requires_grad_()), (device, x.to("neuron").requires_grad_())):
        torch.manual_seed(1)
        output, state = module(here)
        output.square().sum().backward()
        results.append((output, state[0], here.grad))
    for ours, theirs in zip(*results, strict=True):
        assert theirs.device.type == "neuron"
        assert torch.equal(ours, theirs.cpu())
    assert_same_gradients(host, device)


@pytest.mark.parametrize("layer", LAYERS)
def test_inference_is_bit_equal_in_bfloat16(layer):
    host, device = pair(layer, 8, 16, dtype=torch.bfloat16)
    x = torch.randn(5, 3, 8, dtype=torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(host(x)[0], device(x.to("neuron"))[0].cpu())


@pytest.mark.parametrize("cell", CELLS)
def test_cells_train_bit_equal(cell):
    host, device = pair(cell, 8, 16)
    x = torch.randn(5, 8)
    ours, theirs = host(x), device(x.to("neuron"))
    if isinstance(ours, tuple):
        ours, theirs = ours[0], theirs[0]
    ours.sum().backward()
    theirs.sum().backward()
    assert torch.equal(ours, theirs.cpu())
    assert_same_gradients(host, device)


@pytest.mark.parametrize("layer", LAYERS)
def test_packed_sequences_keep_their_lengths_on_the_host(layer):
    host, device = pair(layer, 8, 16)
    x, lengths = torch.randn(5, 3, 8), torch.tensor([5, 3, 2])
    packed = pack_padded_sequence(x.to("neuron"), lengths)
    assert packed.batch_sizes.device.type == "cpu"
    ours, _ = pad_packed_sequence(host(pack_padded_sequence(x, lengths))[0])
    theirs, _ = pad_packed_sequence(device(packed)[0])
    assert torch.equal(ours, theirs.cpu())


def test_second_derivatives_of_a_gru_are_the_cpus():
    host, device = pair(torch.nn.GRU, 4, 6)
    x = torch.randn(3, 2, 4)
    seconds = []
    for module, here in ((host, x.clone().requires_grad_()), (device, x.to("neuron").requires_grad_())):
        (first,) = torch.autograd.grad(module(here)[0].sum(), here, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), here)
        seconds.append(second.cpu())
    assert torch.equal(*seconds)


def test_what_a_layer_allocates_is_charged_to_its_core_and_given_back():
    before = torch.neuron.memory_allocated(2)
    module = torch.nn.LSTM(32, 64).to("neuron:2")
    output, _ = module(torch.randn(7, 4, 32, device="neuron:2"))
    assert torch.neuron.memory_allocated(2) - before >= output.nbytes
    output.sum().backward()
    del module, output, _
    assert torch.neuron.memory_allocated(2) == before


def test_input_on_another_device_than_the_weights_is_refused():
    module = torch.nn.LSTM(4, 4).to("neuron:0")
    with pytest.raises(RuntimeError, match="same device"):
        module(torch.ones(2, 1, 4, device="neuron:1"))
    with pytest.raises(RuntimeError, match="not at the same device"):
        module(torch.ones(2, 1, 4))
