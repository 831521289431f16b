"""Kinds of operators that PyTorch, or its users, route by device: the numbers are the CPU's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "additive mask": {"attn_mask": torch.linspace(-2, 2, 49).reshape(7, 7)},
    "boolean mask": {"attn_mask": torch.ones(7, 7, dtype=torch.bool).tril()},
    "grouped": {"enable_gqa": True},
    "dropout": {"dropout_p": 0.5},
    "scale": {"scale": 0.3},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ATTENTION)
def test_attention(form, dtype):
    options = dict(ATTENTION[form])
    heads = 2 if form == "grouped" else 4
    torch.manual_seed(0)
    inputs = [torch.randn(2, n, 7, 16, dtype=dtype) for n in (4, heads, heads)]
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options["attn_mask"] = mask.to(dtype)
    results = []
    for device in ("cpu", "neuron"):
        here = [x.clone().to(device).requires_grad_() for x in inputs]
        moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        torch.manual_seed(3)
        output = F.scaled_dot_product_attention(*here, **moved)
        output.float().square().sum().backward()
        results.append([output.detach().cpu(), *(x.grad.cpu() for x in here)])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(mode):
    torch.manual_seed(0)
    host = torch.nn.EmbeddingBag(7, 3, mode=mode)
    device = copy.deepcopy(host).to("neuron")
    tokens, offsets = torch.tensor([1, 2, 3, 6, 1]), torch.tensor([0, 2, 2])
    ours, theirs = host(tokens, offsets), device(tokens.to("neuron"), offsets.to("neuron"))
    ours.sum().backward()
    theirs.sum().backward()
    assert torch.equal(ours, theirs.cpu())
    assert torch.equal(host.weight.grad, device.weight.grad.cpu())


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "hfft", "fft2", "ifftn"])
def test_fourier_transforms_forward_and_backward(name):
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float32 if name == "rfft" else torch.complex64)
    results = []
    for device in ("cpu", "neuron"):
        here = x.clone().to(device).requires_grad_()
        output = getattr(torch.fft, name)(here)
        output.abs().sum().backward()
        results.append((output.detach().cpu(), here.grad.cpu()))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_histograms_of_integers_count_experts(dtype):
    experts = torch.tensor([0, 3, 3, 1, 7, 7, 7, 200], dtype=dtype, device="neuron")
    counts = torch.histc(experts, bins=8, min=0, max=7)
    assert counts.dtype == dtype
    assert counts.tolist() == [1, 1, 0, 2, 0, 0, 0, 3]
    out = torch.empty(0, dtype=dtype, device="neuron")
    torch.histc(experts, bins=8, min=0, max=7, out=out)
    assert torch.equal(out, counts)
    assert torch.histc(experts[:3], bins=3).tolist() == [1, 0, 2]


def test_histograms_of_floats_are_the_cpus():
    x = torch.randn(100)
    assert torch.equal(torch.histc(x.to("neuron"), 10).cpu(), torch.histc(x, 10))


def test_a_custom_operator_with_a_cpu_kernel_runs_on_a_core():
    library = torch.library.Library("softneuron_numbers", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: torch.from_numpy(x.numpy() * 2), "CPU")
    x = torch.arange(3.0, device="neuron:1")
    result = torch.ops.softneuron_numbers.double(x)
    assert result.device == torch.device("neuron:1")
    assert result.tolist() == [0, 2, 4]


def test_convolutions_of_every_kind():
    torch.manual_seed(0)
    for dims in (1, 2, 3):
        x = torch.randn(2, 4, *[6] * dims)
        for transposed in ("", "_transpose"):
            call = getattr(F, f"conv{transposed}{dims}d")
            weight = torch.randn(4, 2, *[3] * dims)
            options = {"stride": 2, "padding": 1, "groups": 2}
            ours = call(x, weight, **options)
            theirs = call(x.to("neuron"), weight.to("neuron"), **options)
            assert torch.equal(ours, theirs.cpu())
            assert theirs.stride() == ours.stride()


def test_results_of_a_python_kernel_are_charged_to_the_core():
    library = torch.library.Library("softneuron_charged", "DEF")
    library.define("fresh(Tensor x) -> Tensor")
    kept = torch.ones(1000)
    library.impl("fresh", lambda x: kept, "CPU")
    x = torch.ones(1, device="neuron:3")
    before = torch.neuron.memory_allocated(3)
    result = torch.ops.softneuron_charged.fresh(x)
    assert torch.neuron.memory_allocated(3) - before == result.nbytes
