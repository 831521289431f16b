"""What one rank does in a test of PyTorch's own parallel training on neuron. Run by `worker.py`.

Every case trains or runs the same small model on the CPU in one piece and compares.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

STEPS = 3


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def stack(depth: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(depth)), nn.Linear(16, 4))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    rows = 4 * dist.get_world_size()
    return torch.randn(rows, 16, generator=generator), torch.randn(rows, 4, generator=generator)


def part(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def losses_of_one(model: nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(step)
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def losses_of_data_parallel(model: nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        inputs, targets = (part(tensor).to("neuron") for tensor in batch(step))
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses


def close(mine: list[float], theirs: list[float], tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), rtol=tolerance, atol=tolerance)


def data_parallel() -> None:
    reference = stack()
    model = nn.parallel.DistributedDataParallel(copy.deepcopy(reference).to("neuron"))
    close(losses_of_data_parallel(model), losses_of_one(reference))


def data_parallel_with_hook() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    reference = stack()
    model = nn.parallel.DistributedDataParallel(copy.deepcopy(reference).to("neuron"))
    model.register_comm_hook(None, fp16_compress_hook)
    close(losses_of_data_parallel(model), losses_of_one(reference), 2e-2)


def fully_sharded(precision: str = "full", offload: bool = False) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    reference = stack()
    model = copy.deepcopy(reference) if offload else copy.deepcopy(reference).to("neuron")
    mesh = dist.init_device_mesh("neuron", (dist.get_world_size(),))
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policies: dict[str, Any] = {
        "mp_policy": mixed if precision == "bf16" else MixedPrecisionPolicy(),
        "offload_policy": CPUOffloadPolicy(pin_memory=False) if offload else OffloadPolicy(),
    }
    for block in model[:-1]:
        fully_shard(block, mesh=mesh, **policies)
    fully_shard(model, mesh=mesh, **policies)
    kept = {parameter.device.type for parameter in model.parameters()}
    assert kept == {"cpu" if offload else "neuron"}
    mine = losses_of_data_parallel(model)
    close(mine, losses_of_one(reference), 5e-2 if precision == "bf16" else 1e-4)


def tensor_parallel(sequence: bool = False) -> None:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    reference = Block()
    model = copy.deepcopy(reference).to("neuron")
    mesh = dist.init_device_mesh("neuron", (dist.get_world_size(),))
    plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if sequence:
        plan = {
            "": PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Shard(0)),
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        }
    parallelize_module(model, mesh, plan)
    inputs, _ = batch(0)
    wanted = reference(inputs)
    wanted.pow(2).sum().backward()
    result = model((part(inputs) if sequence else inputs).to("neuron"))
    full = result.full_tensor() if hasattr(result, "full_tensor") else result
    torch.testing.assert_close(full.cpu(), wanted, rtol=1e-4, atol=1e-5)
    loss = result.pow(2).sum()
    (loss.full_tensor() if hasattr(loss, "full_tensor") else loss).backward()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        gradient = mine.grad.full_tensor() if hasattr(mine.grad, "full_tensor") else mine.grad
        torch.testing.assert_close(gradient.cpu(), theirs.grad, rtol=1e-4, atol=1e-4)


def distributed_tensor() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    size = dist.get_world_size()
    mesh = dist.init_device_mesh("neuron", (size,))
    torch.manual_seed(0)
    left, right = torch.randn(5, 7), torch.randn(7, 3)
    for placements in ((Shard(0), Replicate()), (Replicate(), Shard(1)), (Shard(1), Shard(0))):
        product = distribute_tensor(left, mesh, placements[:1]) @ distribute_tensor(
            right, mesh, placements[1:]
        )
        assert product.device.type == "neuron"
        torch.testing.assert_close(product.full_tensor().cpu(), left @ right, rtol=1e-4, atol=1e-5)
    moved = distribute_tensor(left, mesh, [Shard(0)]).redistribute(placements=[Shard(1)])
    torch.testing.assert_close(moved.full_tensor().cpu(), left)


def checkpoint() -> None:
    """A sharded model saved with torch.distributed.checkpoint, loaded into another sharded one and whole."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    folder = [tempfile.mkdtemp(prefix="softneuron-dcp-") if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    path = Path(folder[0])
    mesh = dist.init_device_mesh("neuron", (dist.get_world_size(),))
    saved = stack()
    sharded = fully_shard(copy.deepcopy(saved).to("neuron"), mesh=mesh)
    dcp.save(get_model_state_dict(sharded), checkpoint_id=path)
    torch.manual_seed(1)
    other = nn.Sequential(Block(), Block(), nn.Linear(16, 4)).to("neuron")
    fully_shard(other, mesh=mesh)
    state = get_model_state_dict(other)
    dcp.load(state, checkpoint_id=path)
    set_model_state_dict(other, state)
    for mine, theirs in zip(other.parameters(), saved.parameters(), strict=True):
        torch.testing.assert_close(mine.full_tensor().cpu(), theirs)
    whole = {name: torch.zeros_like(value) for name, value in saved.state_dict().items()}
    dcp.load(whole, checkpoint_id=path)
    for name, value in saved.state_dict().items():
        torch.testing.assert_close(whole[name], value)


def pipeline(schedule: str) -> None:
    from torch.distributed import pipelining

    size, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    stages = [Block() for _ in range(size)]
    reference = nn.Sequential(*copy.deepcopy(stages))
    device = torch.device("neuron", torch.neuron.current_device())
    stage = pipelining.PipelineStage(stages[rank].to(device), rank, size, device)
    plan = getattr(pipelining, f"Schedule{schedule}")(
        stage, n_microbatches=4, loss_fn=lambda output, target: nn.functional.mse_loss(output, target)
    )
    inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(5))
    targets = torch.randn(8, 16, generator=torch.Generator().manual_seed(6))
    losses: list[torch.Tensor] = []
    if rank == 0:
        plan.step(inputs.to(device))
    elif rank == size - 1:
        output = plan.step(target=targets.to(device), losses=losses)
        torch.testing.assert_close(output.cpu(), reference(inputs), rtol=1e-4, atol=1e-5)
    else:
        plan.step()
    for mine, theirs in zip(inputs.chunk(4), targets.chunk(4), strict=True):
        (nn.functional.mse_loss(reference(mine), theirs) / 4).backward()
    for parameter, wanted in zip(stages[rank].parameters(), reference[rank].parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.cpu(), wanted.grad, rtol=1e-4, atol=1e-5)


def split() -> None:
    """A group that is split gives working halves."""
    default = dist.group.WORLD
    assert default is not None
    size, rank = dist.get_world_size(), dist.get_rank()
    bound = default.bound_device_id
    default.bound_device_id = torch.device("neuron", torch.neuron.current_device())
    try:
        halves = [list(range(1)), list(range(1, size))]
        mine = dist.split_group(split_ranks=halves)
        assert mine is not None
        tensor = torch.full((2,), float(rank), device="neuron")
        dist.all_reduce(tensor, group=mine)
        wanted = 0.0 if rank == 0 else float(sum(range(1, size)))
        assert tensor.tolist() == [wanted] * 2
    finally:
        default.bound_device_id = bound


def context_parallel(causal: bool) -> None:
    """PyTorch balances the load of a causal mask, and only there."""
    from torch.distributed.tensor.experimental import _attention, context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard

    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(2, 4, 24, 8, generator=generator) for _ in range(3)]
    reference = [tensor.clone().requires_grad_() for tensor in whole]
    expected = nn.functional.scaled_dot_product_attention(*reference, is_causal=causal, scale=0.3)
    expected.square().sum().backward()

    _attention._cp_options.enable_load_balance = causal
    mesh = dist.device_mesh.init_device_mesh("neuron", (dist.get_world_size(),))
    local = [tensor.to("neuron") for tensor in whole]
    with context_parallel(mesh, buffers=local, buffer_seq_dims=[2, 2, 2]):
        for tensor in local:
            tensor.requires_grad_()
        output = nn.functional.scaled_dot_product_attention(*local, is_causal=causal, scale=0.3)
        output.square().sum().backward()
        sliced = [output.detach(), *(tensor.grad for tensor in local)]
        assert {tensor.device.type for tensor in sliced} == {"neuron"}
        assert {tensor.shape[2] for tensor in sliced} == {24 // dist.get_world_size()}
        gathered = context_parallel_unshard(mesh, sliced, [2] * 4)
        for tensor in local:
            tensor.requires_grad_(False)
    for mine, theirs in zip(gathered, [expected, *(tensor.grad for tensor in reference)], strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.detach(), rtol=1e-5, atol=1e-5)


def context_parallel_by_heads() -> None:
    """Ring attention is for sequences; other layouts and dropout are refused, not computed wrongly."""
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.experimental import context_parallel

    mesh = dist.device_mesh.init_device_mesh("neuron", (dist.get_world_size(),))
    tensor = torch.ones(1, 4, 8, 8, device="neuron")
    by_heads = distribute_tensor(tensor, mesh, [Shard(1)])
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with context_parallel(mesh, buffers=[tensor.clone()], buffer_seq_dims=[2]):
        with pytest.raises(NotImplementedError, match="sharded along the sequence"):
            operator(by_heads, by_heads, by_heads)
        sliced = distribute_tensor(tensor, mesh, [Shard(2)])
        with pytest.raises(NotImplementedError, match="no attention mask and no dropout"):
            operator(sliced, sliced, sliced, 0.5)
