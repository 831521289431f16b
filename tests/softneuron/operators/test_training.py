"""Fifty steps of training: the losses of a core are the CPU's, to the last bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

STEPS = 50


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(6, 12, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


class Convolutional(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Unflatten(1, (1, 8)),
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * 4 * 3, 1),
        )


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.layer(self.embed(x)).mean(1))


IMPLEMENTATIONS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def losses(model, device, optimizer, options):
    model = copy.deepcopy(model).to(device)
    optimizer = optimizer(model.parameters(), lr=0.02, weight_decay=0.01, **options)
    torch.manual_seed(1)
    x = torch.randn(64, 8, 6)
    y = x.mean((1, 2))[:, None]
    torch.manual_seed(2)
    seen = []
    for step in range(STEPS):
        rows = slice(8 * (step % 8), 8 * (step % 8) + 8)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[rows].to(device)), y[rows].to(device))
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen, [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("kind", [Recurrent, Convolutional, Transformer])
def test_losses_and_weights_equal_the_cpus(kind, optimizer, implementation):
    torch.manual_seed(0)
    model = kind()
    options = IMPLEMENTATIONS[implementation]
    expected, weights = losses(model, "cpu", optimizer, options)
    found, weights_there = losses(model, "neuron", optimizer, options)
    assert sum(expected[-8:]) < sum(expected[:8])
    assert found == expected
    for ours, theirs in zip(weights, weights_there, strict=True):
        assert torch.equal(ours, theirs)
