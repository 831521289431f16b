"""Sparse, quantized and nested tensors on a core."""

from __future__ import annotations

import copy

import pytest
import torch

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

DENSE = torch.tensor([[0.0, 1.5, 0.0], [2.5, 0.0, 0.0], [0.0, 0.0, -3.0]])
LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_tensors_move_convert_and_multiply(layout):
    host = DENSE.to_sparse(layout=layout)
    device = host.to("neuron")
    assert device.device.type == "neuron"
    assert device.layout == layout
    assert device.values().device.type == "neuron" if layout != torch.sparse_coo else True
    assert torch.equal(device.to_dense().cpu(), DENSE)
    assert torch.equal(DENSE.to("neuron").to_sparse(layout=layout).cpu().to_dense(), DENSE)
    right = torch.randn(3, 4)
    assert torch.equal((device @ right.to("neuron")).cpu(), host @ right)
    assert "device='neuron:0'" in repr(device)


def test_coo_arithmetic_coalesces_as_on_the_cpu():
    indices, values = torch.tensor([[0, 0, 2], [1, 1, 0]]), torch.tensor([1.0, 2.0, 4.0])
    host = torch.sparse_coo_tensor(indices, values, (3, 3))
    device = torch.sparse_coo_tensor(indices.to("neuron"), values.to("neuron"), (3, 3))
    assert not device.is_coalesced()
    ours, theirs = host.coalesce(), device.coalesce()
    assert theirs.is_coalesced()
    assert torch.equal(theirs.indices().cpu(), ours.indices())
    assert torch.equal(theirs.values().cpu(), ours.values())
    assert torch.equal((device + device).to_dense().cpu(), (host + host).to_dense())
    device.mul_(2)
    assert torch.equal(device.to_dense().cpu(), host.to_dense() * 2)


def test_values_of_a_sparse_tensor_share_its_memory():
    device = DENSE.to_sparse_csr().to("neuron")
    device.values().fill_(7)
    assert torch.equal(device.to_dense().cpu(), (DENSE != 0) * 7.0)


def test_sparse_gradients_of_an_embedding_feed_an_optimizer():
    torch.manual_seed(0)
    host = torch.nn.Embedding(6, 3, sparse=True)
    device = copy.deepcopy(host).to("neuron")
    for module in (host, device):
        optimizer = torch.optim.SparseAdam(module.parameters(), lr=0.1)
        for tokens in ([1, 2, 2], [5, 1, 0]):
            optimizer.zero_grad()
            module(torch.tensor(tokens, device=module.weight.device)).square().sum().backward()
            assert module.weight.grad.layout == torch.sparse_coo
            optimizer.step()
    assert torch.equal(host.weight, device.weight.cpu())


def test_sparse_and_dense_on_two_cores_are_refused():
    with pytest.raises(RuntimeError, match="same device"):
        torch.mm(DENSE.to_sparse_csr().to("neuron:0"), torch.ones(3, 3, device="neuron:1"))


def test_quantized_tensors():
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    host = torch.quantize_per_tensor(x, 0.1, 2, torch.qint8)
    device = torch.quantize_per_tensor(x.to("neuron"), 0.1, 2, torch.qint8)
    assert device.device.type == "neuron"
    assert (device.q_scale(), device.q_zero_point()) == (0.1, 2)
    assert torch.equal(device.int_repr().cpu(), host.int_repr())
    assert torch.equal(device.dequantize().cpu(), host.dequantize())
    assert torch.equal(host.to("neuron").int_repr().cpu(), host.int_repr())
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=torch.long)
    by_row = [
        torch.quantize_per_channel(x.to(d), scales.to(d), zeros.to(d), 0, torch.qint8).dequantize().cpu()
        for d in ("cpu", "neuron")
    ]
    assert torch.equal(*by_row)


def test_dynamically_quantized_linear():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    x = torch.randn(5, 16)
    expected = model(x)
    assert torch.equal(model.to("neuron")(x.to("neuron")).cpu(), expected)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    torch.manual_seed(0)
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    linear = torch.nn.Linear(4, 5)
    host = torch.nested.nested_tensor(parts, layout=layout)
    device = torch.nested.nested_tensor(parts, layout=layout, device="neuron")
    ours = torch.nested.to_padded_tensor(linear(host), 0.0)
    theirs = torch.nested.to_padded_tensor(linear.to("neuron")(device), 0.0)
    assert theirs.device.type == "neuron"
    assert torch.equal(theirs.cpu(), ours)
    assert [tuple(part.shape) for part in device.unbind()] == [(2, 4), (3, 4)]


def test_a_layout_that_no_device_has_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="neuron"):
        torch.ones(3, 3, device="neuron").to_mkldnn()
