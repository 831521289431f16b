"""What one rank does in a test of collectives inside compiled graphs. Run by `worker.py`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def reduced(tensor: torch.Tensor) -> torch.Tensor:
    return funcol.all_reduce(tensor * 2, "sum", world()) + 1


def averaged(tensor: torch.Tensor) -> torch.Tensor:
    return funcol.all_reduce(tensor * 2, "avg", world()) + 1


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    return funcol.all_gather_tensor(tensor + 1, 0, world()) * 3


def scattered(tensor: torch.Tensor) -> torch.Tensor:
    return funcol.reduce_scatter_tensor(tensor + 1, "sum", 0, world()) * 3


def exchanged(tensor: torch.Tensor) -> torch.Tensor:
    return funcol.all_to_all_single(tensor + 1, None, None, world()) * 3


def broadcasted(tensor: torch.Tensor) -> torch.Tensor:
    return funcol.broadcast(tensor + 1, 0, world()) * 3


def everything(tensor: torch.Tensor) -> torch.Tensor:
    total = reduced(tensor) + averaged(tensor) + exchanged(tensor) + broadcasted(tensor)
    return funcol.all_gather_tensor(scattered(total), 0, world())


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all_reduce": reduced,
    "average": averaged,
    "all_gather": gathered,
    "reduce_scatter": scattered,
    "all_to_all": exchanged,
    "broadcast": broadcasted,
    "everything": everything,
}


def forward(name: str, level: str) -> None:
    function = FUNCTIONS[name]
    size, rank = dist.get_world_size(), dist.get_rank()
    tensor = torch.arange(2.0 * size * 3).reshape(2 * size, 3).to("neuron") + rank
    wanted = function(tensor)
    compiled = torch.compile(function, backend="neuron", options={"opt_level": level})
    for _ in range(2):
        result = compiled(tensor)
        assert result.device == tensor.device
        torch.testing.assert_close(result.cpu(), wanted.cpu())


def group_without_host_tensors() -> None:
    """Generated code sees a core's memory as the CPU's; a group for neuron tensors alone serves it too."""
    group = dist.new_group(backend="neuron:neuron")
    assert isinstance(group, dist.ProcessGroup)
    assert [device.type for device in group._device_types] == ["neuron"]
    tensor = torch.full((4,), float(dist.get_rank()), device="neuron")
    compiled = torch.compile(lambda x: funcol.all_reduce(x + 1, "sum", group), backend="neuron")
    size = dist.get_world_size()
    torch.testing.assert_close(compiled(tensor).cpu(), torch.full((4,), float(sum(range(size + 1)))))


def backward(level: str) -> None:
    """A column- and row-parallel pair of linear layers, forward and backward, against one core."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    size = dist.get_world_size()
    plain = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 8))
    split = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 8))
    split.load_state_dict(plain.state_dict())
    split.to("neuron")
    mesh = dist.init_device_mesh("neuron", (size,))
    parallelize_module(split, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    compiled = torch.compile(split, backend="neuron", options={"opt_level": level})
    tensor = torch.randn(4, 8)
    wanted = plain(tensor)
    wanted.pow(2).sum().backward()
    result = compiled(tensor.to("neuron"))
    result.pow(2).sum().backward()
    torch.testing.assert_close(result.cpu(), wanted)
    for mine, theirs in zip(split.parameters(), plain.parameters(), strict=True):
        gradient = mine.grad
        assert isinstance(gradient, DTensor)
        full = gradient.full_tensor()
        assert full.device.type == "neuron"
        assert theirs.grad is not None
        torch.testing.assert_close(full.cpu(), theirs.grad)
