"""Tests with PyTorch's own helpers for DTensor and FSDP2, as its test suite has them, on device neuron.

Run by `test_torch_helpers.py` as `python -m unittest torch_suite`: the helpers start ranks, which import this
file by its name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.common_fsdp import MLP, FSDPTestContinuous, MLPStack, check_sharded_parity
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorContinuousTestBase,
    ExpertLayer,
    ExpertParallel,
    MLPModule,
    ModelArgs,
    Transformer,
)

F = nn.functional
assert_close = torch.testing.assert_close

OPERATORS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "add": (torch.add, ((4, 6), (4, 6))),
    "mul_broadcast": (torch.mul, ((4, 6), (1, 6))),
    "mm": (torch.mm, ((4, 6), (6, 8))),
    "bmm": (torch.bmm, ((2, 4, 6), (2, 6, 4))),
    "linear": (F.linear, ((4, 6), (8, 6), (8,))),
    "softmax": (lambda x: torch.softmax(x, -1), ((4, 6),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), ((4, 6), (6,), (6,))),
    "gelu": (F.gelu, ((4, 6),)),
    "sum": (lambda x: x.sum(0), ((4, 6),)),
    "mean": (lambda x: x.mean(), ((4, 6),)),
    "max": (lambda x: x.amax(1), ((4, 6),)),
    "transpose": (lambda x: x.transpose(0, 1), ((4, 6),)),
    "view": (lambda x: x.view(4, 2, 3), ((4, 6),)),
    "cat": (lambda x, y: torch.cat([x, y], 0), ((4, 6), (4, 6))),
    "where": (lambda x, y: torch.where(x > y, x, y), ((4, 6), (4, 6))),
    "topk": (lambda x: x.topk(2, -1)[0], ((4, 6),)),
}


def whole_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_same_parameters(split: nn.Module, whole: nn.Module) -> None:
    for mine, theirs in zip(split.parameters(), whole.parameters(), strict=True):
        assert_close(whole_of(mine), theirs, atol=1e-5, rtol=1e-4)


class TestDTensor(DTensorContinuousTestBase):
    world_size = 2

    def test_operators(self) -> None:
        """Each operator in every sharding that the converter makes, against the whole tensors."""
        mesh = self.build_device_mesh()
        assert mesh.device_type == "neuron"
        for name, (operator, shapes) in OPERATORS.items():
            with self.subTest(name):
                tensors = [torch.randn(shape, device="neuron") for shape in shapes]
                for tensor in tensors:
                    dist.broadcast(tensor, src=0)
                self._test_op(mesh, operator, *tensors)

    def test_redistribute(self) -> None:
        mesh = self.build_device_mesh()
        whole = torch.arange(30.0, device="neuron").reshape(5, 6)
        choices = [Shard(0), Shard(1)]
        for before in choices:
            for after in choices:
                moved = DTensor.from_local(
                    whole.tensor_split(2, before.dim)[self.rank] if before.dim else whole.split(3)[self.rank],
                    mesh,
                    [before],
                    run_check=False,
                    shape=whole.shape,
                    stride=whole.stride(),
                ).redistribute(placements=[after])
                assert moved.to_local().device.type == "neuron"
                assert_close(moved.full_tensor(), whole)

    def test_mlp(self) -> None:
        """`MLPModule`, whole and split, three steps of SGD, with and without sequence parallelism."""
        mesh = self.build_device_mesh()
        for sequence in (False, True):
            with self.subTest(sequence=sequence):
                whole = MLPModule("neuron")
                split = parallelize_module(
                    MLPModule("neuron"),
                    mesh,
                    {
                        "net1": ColwiseParallel(input_layouts=Shard(0)) if sequence else ColwiseParallel(),
                        "net2": RowwiseParallel(output_layouts=Shard(0)) if sequence else RowwiseParallel(),
                    },
                )
                optimizers = [torch.optim.SGD(each.parameters(), lr=0.25) for each in (whole, split)]
                for step in range(3):
                    torch.manual_seed(self.rank + 10 * step if sequence else step)
                    mine = torch.rand(20, 10, device="neuron")
                    everything = torch.cat(self.everyones(mine)) if sequence else mine
                    wanted, got = whole(everything), split(mine)
                    assert_close(got, wanted.chunk(2)[self.rank] if sequence else wanted)
                    wanted.sum().backward()
                    got.sum().backward()
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
                assert_same_parameters(split, whole)

    def test_transformer(self) -> None:
        """PyTorch's toy `Transformer`, whole and split, two steps of Adam. The heads are local tensors, since
        PyTorch splits no attention kernel that a CPU has."""
        mesh = self.build_device_mesh()
        for sequence in (False, True):
            with self.subTest(sequence=sequence):
                torch.manual_seed(5)
                whole = Transformer(ModelArgs(dropout_p=0.0)).to("neuron")
                split = Transformer.parallelize(
                    copy.deepcopy(whole), mesh, sequence, local_output_for_attn=True
                )
                # By default PyTorch takes all parameters at once on accelerators, and DTensor refuses others
                # beside its own.
                optimizers = [
                    torch.optim.Adam(each.parameters(), lr=0.25, foreach=False) for each in (whole, split)
                ]
                for _ in range(2):
                    tokens = torch.randint(0, 8, (4, 8), device="neuron")
                    dist.broadcast(tokens, src=0)
                    wanted, got = whole(tokens), split(tokens)
                    assert_close(got, wanted, atol=1e-4, rtol=1e-4)
                    wanted.sum().backward()
                    got.sum().backward()
                    for mine, theirs in zip(split.parameters(), whole.parameters(), strict=True):
                        assert_close(whole_of(mine.grad), theirs.grad, atol=1e-4, rtol=1e-4)
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()

    def test_experts(self) -> None:
        """`ExpertLayer` with two of four experts on each rank, and each rank's own tokens."""
        torch.manual_seed(5)
        whole = ExpertLayer(num_experts=4, dim=16, hidden_dim=32).to("neuron")
        split = copy.deepcopy(whole)
        parallelize_module(split.experts, self.build_device_mesh(), ExpertParallel())
        tokens = torch.randn(2, 3, 16, device="neuron")
        dist.broadcast(tokens, src=0)
        wanted, got = whole(tokens), split(tokens[self.rank : self.rank + 1])
        assert_close(got, wanted[self.rank : self.rank + 1])
        wanted.pow(2).sum().backward()
        got.pow(2).sum().backward()
        for mine, theirs in zip(split.parameters(), whole.parameters(), strict=True):
            assert mine.to_local().shape[0] == 2
            assert_close(whole_of(mine.grad), theirs.grad)

    def test_norm_of_a_sequence(self) -> None:
        mesh = self.build_device_mesh()
        whole = nn.LayerNorm(6).to("neuron")
        split = parallelize_module(copy.deepcopy(whole), mesh, SequenceParallel(sequence_dim=0))
        rows = torch.arange(24.0, device="neuron").reshape(4, 6)
        got = split(rows.chunk(2)[self.rank])
        assert_close(got.full_tensor(), whole(rows))

    def everyones(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor)
        return parts


class TestFullyShard(FSDPTestContinuous):
    world_size = 2

    @classmethod
    def backend_str(cls) -> str:
        return "neuron"

    @classmethod
    def device_type(cls) -> str:
        return "neuron"

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        torch.accelerator.set_device_index(rank)
        super()._init_pg(rank, world_size, rdvz_file)

    def test_sharded_parity(self) -> None:
        """`check_sharded_parity` after each of three steps, resharded after the forward pass and not."""
        for reshard in (True, False):
            with self.subTest(reshard_after_forward=reshard):
                torch.manual_seed(42)
                replicated = nn.Sequential(*(MLP(8, torch.device("neuron")) for _ in range(3)))
                sharded = copy.deepcopy(replicated)
                mesh = init_device_mesh("neuron", (2,))
                for each in (*sharded, sharded):
                    fully_shard(each, mesh=mesh, reshard_after_forward=reshard)
                for _ in self.steps(replicated, sharded, 2, self.rank):
                    check_sharded_parity(self, replicated, sharded)

    def test_stack_of_two_dimensions(self) -> None:
        """`MLPStack` parallelized over tensor- and data-parallel dimensions, of which one is all ranks."""
        for data, tensor in ((2, 1), (1, 2)):
            for checkpointing in (False, True):
                with self.subTest(data=data, tensor=tensor, checkpointing=checkpointing):
                    torch.manual_seed(42)
                    replicated = MLPStack(8).to("neuron")
                    mesh = init_device_mesh("neuron", (data, tensor), mesh_dim_names=("dp", "tp"))
                    sharded = copy.deepcopy(replicated).parallelize(mesh["tp"], mesh["dp"], checkpointing)
                    for _ in self.steps(replicated, sharded, data, mesh["dp"].get_local_rank()):
                        assert_same_parameters(sharded, replicated)

    def steps(self, replicated: nn.Module, sharded: nn.Module, parts: int, mine: int) -> Iterator[int]:
        """Train both on the same rows, `sharded` on part `mine` of them, and stop before and after each
        optimizer's step."""
        optimizers = [torch.optim.Adam(each.parameters(), lr=1e-2) for each in (replicated, sharded)]
        for step in range(3):
            torch.manual_seed(step)
            rows = torch.randn(4 * parts, 8, device="neuron").chunk(parts)
            for optimizer in optimizers:
                optimizer.zero_grad()
            for part in rows:
                (replicated(part).sum() / parts).backward()
            sharded(rows[mine]).sum().backward()
            assert {each.device.type for each in sharded.parameters()} == {"neuron"}
            yield step
            for optimizer in optimizers:
                optimizer.step()
            yield step
