"""Modules that move to a core keep their parameters, their ties and their optimizers."""

from __future__ import annotations

import copy
import io
import weakref

import pytest
import torch


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


def test_parameters_keep_identity_ties_and_weak_references():
    module = Tied()
    parameter, reference = module.embed.weight, weakref.ref(module.embed.weight)
    module.to("neuron")
    assert module.embed.weight is parameter is module.head.weight is reference()
    assert type(parameter) is torch.nn.Parameter
    assert parameter.device == torch.device("neuron:0")
    module.to("cpu")
    assert module.embed.weight is parameter is module.head.weight
    assert parameter.device == torch.device("cpu")


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_made_before_the_move_trains_as_on_the_cpu(optimizer):
    torch.manual_seed(0)
    on_cpu = Tied()
    on_core = copy.deepcopy(on_cpu)
    tokens = torch.randint(11, (8, 5))
    losses = []
    for module, device in ((on_cpu, "cpu"), (on_core, "neuron")):
        steps = optimizer(module.parameters(), lr=0.1)
        module.to(device)
        for _ in range(10):
            logits = module(tokens.to(device))
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.to(device).flatten())
            steps.zero_grad()
            loss.backward()
            steps.step()
            losses.append(loss.item())
    assert losses[:10] == losses[10:]
    assert losses[9] < losses[0]


def test_assigning_data_across_devices_works_as_on_cuda():
    tensor = torch.zeros(3)
    tensor.data = torch.ones(3, device="neuron")
    assert tensor.device.type == "neuron"
    assert tensor.cpu().tolist() == [1, 1, 1]


def test_save_and_load_between_cpu_and_core():
    buffer = io.BytesIO()
    torch.save({"weight": torch.arange(4.0, device="neuron:1")}, buffer)
    buffer.seek(0)
    assert torch.load(buffer)["weight"].device == torch.device("neuron:1")
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu")["weight"].tolist() == [0, 1, 2, 3]


def test_tensors_of_two_cores_or_of_core_and_cpu_do_not_mix():
    one, other = torch.ones(2, device="neuron:0"), torch.ones(2, device="neuron:1")
    with pytest.raises(RuntimeError, match=r"found at least two devices, neuron:0 and neuron:1!"):
        one + other
    with pytest.raises(RuntimeError, match=r"found at least two devices, neuron:0 and cpu!"):
        one + torch.ones(2)
    assert (one + torch.tensor(2.0)).tolist() == [3, 3]


def test_views_and_in_place_operators_share_memory():
    base = torch.zeros(4, 4, device="neuron")
    base[1].add_(1)
    base.t()[2].mul_(0).sub_(2)
    assert base.cpu().tolist() == [[0, 0, -2, 0], [1, 1, -2, 1], [0, 0, -2, 0], [0, 0, -2, 0]]
    assert base.data_ptr() == base.view(16).data_ptr()


def test_complex_transforms_match_the_cpu():
    signal = torch.randn(4, 32)
    spectrum = torch.fft.fft(signal.to("neuron"))
    assert torch.equal(spectrum.cpu(), torch.fft.fft(signal))
    assert torch.equal(torch.fft.ifft(spectrum).cpu(), torch.fft.ifft(torch.fft.fft(signal)))
    assert torch.equal(spectrum.conj().resolve_conj().cpu(), torch.fft.fft(signal).conj())
