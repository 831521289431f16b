"""Random numbers in compiled graphs: a seed gives the numbers of eager, which are the CPU's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils.checkpoint import checkpoint


def draw(x: torch.Tensor) -> list[torch.Tensor]:
    """Draws of every kind, some of which nobody uses, and some that depend on others."""
    device = x.device
    uniform = torch.rand_like(x)
    drawn = [F.dropout(x, 0.3, True), uniform, torch.randn(4, 3, device=device), torch.bernoulli(uniform)]
    torch.rand(3, device=device)
    F.dropout(x, 0.1, True)
    drawn += [
        torch.randint(0, 10, (5,), device=device),
        torch.randint_like(x, 5),
        torch.randperm(7, device=device),
        torch.empty_like(x).normal_(2, 3),
        torch.empty_like(x).uniform_(1, 2),
        torch.empty_like(x).exponential_(),
        torch.empty(4, dtype=torch.int64, device=device).random_(0, 9),
        torch.multinomial(uniform.flatten(), 3),
        torch.normal(uniform, uniform + 1),
        torch.poisson(uniform * 4),
        torch.rand(3, device=device, dtype=torch.bfloat16),
        F.alpha_dropout(x, 0.2, True),
        F.rrelu(x - 0.5, training=True),
        F.gumbel_softmax(x),
        torch.native_dropout(x, 0.5, True)[0],
        F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
        F.dropout(x, 1.0),
        F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=1.0),
        x[:, ::2].clone().bernoulli_(0.4),
        F.dropout(x.t(), 0.5),
    ]
    return drawn


@pytest.mark.parametrize("level", ["-O0", pytest.param("-O1", marks=pytest.mark.slow)])
def test_a_seed_gives_the_cpus_numbers(level: str, neff_cache, fresh_dynamo):
    x = torch.linspace(0, 1, 12).reshape(4, 3)
    compiled = torch.compile(draw, backend="neuron", options={"opt_level": level})
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        expected = [*draw(x), torch.rand(2)]
        torch.manual_seed(seed)
        got = [*compiled(x.to("neuron")), torch.rand(2, device="neuron")]
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other)


def test_dropout_of_a_checkpoint_is_drawn_once_as_in_eager(fresh_dynamo):
    def loss(x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(lambda y: F.dropout(y * y, 0.5), x, use_reentrant=False)
        return (hidden + F.dropout(x, 0.5)).square().sum()

    def gradient(run, device: str) -> torch.Tensor:
        torch.manual_seed(7)
        x = torch.linspace(-1, 1, 40, device=device, requires_grad=True)
        return torch.autograd.grad(run(x), x)[0].cpu()

    compiled = torch.compile(loss, backend="neuron", options={"opt_level": "-O0"})
    torch.testing.assert_close(gradient(compiled, "neuron"), gradient(loss, "cpu"))


@pytest.mark.parametrize(
    "draw_in_place",
    [lambda x: x.t().clone().bernoulli_(0.5), lambda x: F.dropout(x.t(), 0.5, inplace=True)],
    ids=["bernoulli_", "dropout"],
)
def test_draws_into_a_transposed_tensor_are_refused_or_eagers(draw_in_place, fresh_dynamo):
    x = torch.linspace(0, 1, 12).reshape(4, 3)
    options = {"opt_level": "-O0"}
    with pytest.raises(BackendCompilerFailed, match="tensor that is not contiguous"):
        torch.compile(draw_in_place, backend="neuron", options=options)(x.to("neuron"))
    torch._dynamo.reset()
    torch.manual_seed(1)
    expected = draw_in_place(x.clone())
    torch.manual_seed(1)
    uncompiled = torch.compile(
        draw_in_place, backend="neuron", options=options | {"fallback_execution": True}
    )
    got = uncompiled(x.to("neuron"))
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got.cpu(), expected)
