"""Accelerate's own training loop on a core: precision, and random numbers in its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import accelerate
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from packaging.version import Version

KNOWS_FP16 = Version(accelerate.__version__) >= Version("1.16")


@pytest.fixture(autouse=True)
def _no_state_of_earlier_tests() -> Iterator[None]:
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    return model, optimizer, [torch.randn(4, 8) for _ in range(3)]


def by_accelerate(precision: str) -> tuple[list[float], torch.Tensor]:
    """Losses and trained weights of three steps."""
    model, optimizer, batches = parts()
    accelerator = Accelerator(mixed_precision=precision)
    assert accelerator.device.type == "neuron"
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for batch in batches:
        with accelerator.autocast():
            loss = model(batch.to("neuron")).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, accelerator.unwrap_model(model).weight.detach().cpu()


def by_torch(dtype: torch.dtype) -> tuple[list[float], torch.Tensor]:
    """The same with PyTorch alone."""
    model, optimizer, batches = parts()
    model.to("neuron")
    scaler = torch.amp.GradScaler("neuron", enabled=dtype == torch.float16)
    losses = []
    for batch in batches:
        with torch.autocast("neuron", dtype):
            output = model(batch.to("neuron"))
        loss = output.float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model.weight.detach().cpu()


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("bf16", torch.bfloat16),
        pytest.param(
            "fp16",
            torch.float16,
            marks=pytest.mark.skipif(not KNOWS_FP16, reason="Accelerate 1.15 refuses fp16 on neuron"),
        ),
    ],
)
def test_mixed_precision_trains_as_with_torch_alone(precision, dtype):
    losses, weight = by_accelerate(precision)
    expected_losses, expected_weight = by_torch(dtype)
    assert losses == expected_losses
    assert torch.equal(weight, expected_weight)
    assert not torch.equal(weight, parts()[0].weight)


@pytest.mark.skipif(KNOWS_FP16, reason="Accelerate 1.16 asks torch.neuron, which has fp16")
def test_fp16_is_refused_by_accelerates_own_list():
    with pytest.raises(ValueError, match="fp16 mixed precision requires a device in"):
        Accelerator(mixed_precision="fp16")


def test_a_checkpoint_restores_the_random_numbers_of_the_cores(tmp_path: Path):
    def drawn() -> list[list[float]]:
        return [torch.randn(4, device=device).tolist() for device in ("cpu", "neuron:0", "neuron:1")]

    accelerator = Accelerator()
    model, optimizer, _ = parts()
    accelerator.prepare(model, optimizer)
    accelerator.save_state(str(tmp_path / "state"))
    first, second = drawn(), drawn()
    assert first != second
    accelerator.load_state(str(tmp_path / "state"))
    assert drawn() == first
