"""What one rank does in a test of the collectives: a call on neuron tensors, checked through Gloo on the CPU.

Run by `worker.py` in every rank; each function raises when the two differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

Tensors = list[torch.Tensor]


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Small whole numbers, different on every rank, exact in every dtype and order of summing."""
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    low, high = (0, 2) if dtype == torch.bool else (1, 4)
    drawn = torch.randint(low, high, shape, generator=generator)
    if dtype.is_complex:
        other = torch.randint(low, high, shape, generator=generator)
        return torch.complex(drawn.double(), other.double()).to(dtype)
    return drawn.to(dtype)


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    host = tensor.cpu()
    return host.to(torch.complex128) if host.is_complex() else host.to(torch.float64)


def same(neuron: torch.Tensor, cpu: torch.Tensor) -> None:
    assert neuron.device.type == "neuron"
    assert neuron.dtype == cpu.dtype
    torch.testing.assert_close(comparable(neuron), comparable(cpu), rtol=0, atol=0)


def arranged(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in neuron memory laid out as `layout` says."""
    device = tensor.to("neuron")
    if layout == "transposed":
        return device.t().contiguous().t()
    if layout == "strided":
        wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype, device="neuron")
        wide[..., 1] = device
        return wide[..., 1]
    if layout == "offset":
        room = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype, device="neuron")
        room[3:] = device.reshape(-1)
        return room[3:].view(tensor.shape)
    assert layout == "contiguous"
    return device


def gloo() -> dist.ProcessGroup:
    group = GROUPS["gloo"]
    assert group is not None
    return group


GROUPS: dict[str, dist.ProcessGroup | None] = {"gloo": None}


def wire_dtype(dtype: torch.dtype) -> torch.dtype:
    """What the Gloo side of the comparison computes in where Gloo does not know the dtype."""
    if dtype in (torch.int16, torch.uint16, torch.uint32, torch.uint64):
        return torch.int64
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return torch.float32
    return dtype


def expected_reduction(values: torch.Tensor, op: str) -> torch.Tensor:
    """The reduction over all ranks, worked out by hand from everybody's values."""
    wide = values.to(wire_dtype(values.dtype))
    gathered = [torch.empty_like(wide) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, wide, group=gloo())
    stacked = torch.stack(gathered)
    size = dist.get_world_size()
    if op in ("SUM", "AVG") and values.dtype == torch.bool:
        return stacked.any(0)
    if op == "PRODUCT" and values.dtype == torch.bool:
        return stacked.all(0)
    if op == "SUM":
        result = stacked.sum(0)
    elif op == "AVG":
        total = stacked.sum(0)
        whole = not (total.is_floating_point() or total.is_complex())
        result = total.div(size, rounding_mode="trunc") if whole else total / size
    elif op == "PRODUCT":
        result = stacked.prod(0)
    elif op in ("MIN", "MAX"):
        result = stacked.amin(0) if op == "MIN" else stacked.amax(0)
    else:
        combine: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
            "BAND": torch.bitwise_and,
            "BOR": torch.bitwise_or,
            "BXOR": torch.bitwise_xor,
        }
        result = stacked[0]
        for part in stacked[1:]:
            result = combine[op](result, part)
    return result.to(values.dtype)


def all_reduce(dtype: str, op: str, layout: str = "contiguous") -> None:
    values = numbers((4, 6), dtype_of(dtype))
    tensor = arranged(values, layout)
    strides = tensor.stride()
    dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
    same(tensor, expected_reduction(values, op))
    assert tensor.stride() == strides


def all_reduce_like_gloo(dtype: str, op: str) -> None:
    values = torch.randn(257, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype_of(dtype))
    mine, theirs = values.to("neuron"), values.clone()
    dist.all_reduce(mine, op=getattr(dist.ReduceOp, op))
    dist.all_reduce(theirs, op=getattr(dist.ReduceOp, op), group=gloo())
    same(mine, theirs)


def all_reduce_scaled(dtype: str) -> None:
    values = numbers((5,), dtype_of(dtype))
    tensor = values.to("neuron")
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
    same(tensor, expected_reduction(values * 0.5, "SUM"))


def reduce(dtype: str, op: str, layout: str = "contiguous") -> None:
    for root in range(dist.get_world_size()):
        values = numbers((4, 6), dtype_of(dtype), root)
        tensor = arranged(values, layout)
        dist.reduce(tensor, root, op=getattr(dist.ReduceOp, op))
        wanted = expected_reduction(values, op)
        same(tensor, wanted if dist.get_rank() == root else values)


def broadcast(dtype: str, layout: str = "contiguous") -> None:
    for root in range(dist.get_world_size()):
        values = numbers((4, 6), dtype_of(dtype), root)
        tensor = arranged(values, layout)
        dist.broadcast(tensor, root)
        wide = values.to(wire_dtype(values.dtype))
        dist.broadcast(wide, root, group=gloo())
        same(tensor, wide.to(values.dtype))


def everybodys(values: torch.Tensor) -> Tensors:
    wide = values.to(wire_dtype(values.dtype))
    gathered = [torch.empty_like(wide) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, wide, group=gloo())
    return [part.to(values.dtype) for part in gathered]


def all_gather(dtype: str, layout: str = "contiguous") -> None:
    values = numbers((4, 6), dtype_of(dtype))
    outputs = [arranged(torch.zeros_like(values), layout) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, arranged(values, layout))
    for output, wanted in zip(outputs, everybodys(values), strict=True):
        same(output, wanted)


def all_gather_uneven(dtype: str) -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    values = torch.full((rank + 1, 2), rank + 1).to(dtype_of(dtype))
    outputs = [torch.zeros((other + 1, 2), dtype=values.dtype, device="neuron") for other in range(size)]
    dist.all_gather(outputs, values.to("neuron"))
    for other, output in enumerate(outputs):
        same(output, torch.full((other + 1, 2), other + 1).to(values.dtype))


def all_gather_single(dtype: str, layout: str = "contiguous") -> None:
    values = numbers((4, 6), dtype_of(dtype))
    size = dist.get_world_size()
    wanted = everybodys(values)
    joined = arranged(torch.zeros((4 * size, 6), dtype=values.dtype), layout)
    dist.all_gather_single(joined, arranged(values, layout))
    same(joined, torch.cat(wanted))
    stacked = torch.zeros((size, 4, 6), dtype=values.dtype, device="neuron")
    dist.all_gather_single(stacked, arranged(values, layout))
    same(stacked, torch.stack(wanted))


def gather(dtype: str, layout: str = "contiguous") -> None:
    for root in range(dist.get_world_size()):
        values = numbers((4, 6), dtype_of(dtype), root)
        outputs = None
        if dist.get_rank() == root:
            outputs = [arranged(torch.zeros_like(values), layout) for _ in range(dist.get_world_size())]
        dist.gather(arranged(values, layout), outputs, root)
        wanted = everybodys(values)
        for index, output in enumerate(outputs or []):
            same(output, wanted[index])


def scatter(dtype: str, layout: str = "contiguous") -> None:
    size = dist.get_world_size()
    for root in range(size):
        parts = [numbers((4, 6), dtype_of(dtype), part) for part in range(size)]
        output = arranged(torch.zeros_like(parts[0]), layout)
        inputs = [arranged(part, layout) for part in parts] if dist.get_rank() == root else None
        dist.scatter(output, inputs, root)
        wide = parts[dist.get_rank()].to(wire_dtype(parts[0].dtype))
        everyone = [everybodys(part)[root] for part in parts]
        assert wide.shape == output.shape
        same(output, everyone[dist.get_rank()])


def reduce_scatter(dtype: str, op: str, layout: str = "contiguous") -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    parts = [numbers((4, 6), dtype_of(dtype), part) for part in range(size)]
    output = arranged(torch.zeros_like(parts[0]), layout)
    dist.reduce_scatter(output, [arranged(part, layout) for part in parts], op=getattr(dist.ReduceOp, op))
    wanted = [expected_reduction(part, op) for part in parts]
    same(output, wanted[rank])


def reduce_scatter_uneven(dtype: str) -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    parts = [numbers((part + 1, 2), dtype_of(dtype), part) for part in range(size)]
    output = torch.zeros_like(parts[rank], device="neuron")
    dist.reduce_scatter(output, [part.to("neuron") for part in parts])
    wanted = [expected_reduction(part, "SUM") for part in parts]
    same(output, wanted[rank])


def reduce_scatter_single(dtype: str, op: str, layout: str = "contiguous") -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    values = numbers((2 * size, 6), dtype_of(dtype))
    output = arranged(torch.zeros((2, 6), dtype=values.dtype), layout)
    source = arranged(values, layout)
    dist.reduce_scatter_single(output, source, op=getattr(dist.ReduceOp, op))
    same(output, expected_reduction(values, op)[2 * rank : 2 * rank + 2])
    same(source, values)


def all_to_all(dtype: str, layout: str = "contiguous") -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    parts = [numbers((3, 2), dtype_of(dtype), part) for part in range(size)]
    outputs = [arranged(torch.zeros_like(parts[0]), layout) for _ in range(size)]
    dist.all_to_all(outputs, [arranged(part, layout) for part in parts])
    wanted = [everybodys(part) for part in parts]
    for sender, output in enumerate(outputs):
        same(output, wanted[rank][sender])


def all_to_all_single(dtype: str, layout: str = "contiguous") -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    values = numbers((2 * size, 3), dtype_of(dtype))
    output = arranged(torch.zeros_like(values), layout)
    dist.all_to_all_single(output, arranged(values, layout))
    wanted = torch.cat([sent[2 * rank : 2 * rank + 2] for sent in everybodys(values)])
    same(output, wanted)


def all_to_all_single_uneven(dtype: str) -> None:
    """Rank r sends r + s rows to rank s; rank 0 sends itself nothing."""
    size, rank = dist.get_world_size(), dist.get_rank()
    sends = [rank + other for other in range(size)]
    values = torch.cat([torch.full((count, 2), 10 * rank + to) for to, count in enumerate(sends)])
    tensor = values.to(dtype_of(dtype)).to("neuron")
    output = torch.zeros((sum(sends), 2), dtype=tensor.dtype, device="neuron")
    dist.all_to_all_single(output, tensor, output_split_sizes=sends, input_split_sizes=sends)
    wanted = torch.cat([torch.full((other + rank, 2), 10 * other + rank) for other in range(size)])
    same(output, wanted.to(tensor.dtype))


def send_and_receive(dtype: str, layout: str = "contiguous") -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    values = numbers((4, 6), dtype_of(dtype))
    wanted = everybodys(values)[(rank - 1) % size]
    output = arranged(torch.zeros_like(values), layout)
    sending = dist.isend(arranged(values, layout), (rank + 1) % size)
    receiving = dist.irecv(output, (rank - 1) % size)
    assert sending is not None
    assert receiving is not None
    receiving.wait()
    sending.wait()
    same(output, wanted)


def receive_from_anyone() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            tensor = torch.zeros(2, device="neuron")
            sender = dist.recv(tensor)
            same(tensor, torch.full((2,), float(sender)))
            seen.add(sender)
        assert seen == set(range(1, size))
    else:
        dist.send(torch.full((2,), float(rank), device="neuron"), 0)


def batched_point_to_point() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    sent = torch.full((3,), float(rank), device="neuron")
    received = torch.zeros(3, device="neuron")
    operations = [
        dist.P2POp(dist.isend, sent, (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(received, torch.full((3,), float((rank - 1) % size)))


def futures() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    tensor = torch.full((4,), float(rank), device="neuron")
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    doubled = work.get_future().then(lambda future: future.value()[0] * 2)
    result = doubled.wait()
    total = float(sum(range(size)))
    same(result, torch.full((4,), 2 * total))
    work.wait()
    assert work.is_completed()
    assert_bare(work.result(), [tensor])
    output = [torch.zeros(1, device="neuron") for _ in range(size)]
    gathered = dist.all_gather(output, torch.ones(1, device="neuron"), async_op=True)
    assert gathered is not None
    values = gathered.get_future().wait()
    assert_bare(gathered.result(), output)
    assert [value.device.type for value in values] == ["neuron"] * size
    receiving = dist.irecv(tensor, (rank - 1) % size)
    sending = dist.isend(torch.ones(4, device="neuron"), (rank + 1) % size)
    assert receiving is not None
    assert sending is not None
    same(receiving.get_future().wait()[0], torch.ones(4))
    assert_bare(receiving.result(), [tensor])
    sending.wait()
    several = dist.all_reduce_coalesced([tensor], async_op=True)
    assert several is not None
    assert_bare(several.wait(), [tensor])


def assert_bare(held: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    """Work holds the bytes of `tensors`, but no Python object: its thread lets go of them without the lock.

    A thread that waits for the interpreter's lock while the interpreter shuts
    down takes the process with it (SIGABRT).
    """
    assert [one.data_ptr() for one in held] == [tensor.data_ptr() for tensor in tensors]
    assert not any(one is tensor for one in held for tensor in tensors)


def coalesced(kind: str) -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    inputs = [torch.full((n * size,), float(rank + n), device="neuron") for n in (1, 2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        if kind == "all_reduce":
            for tensor in inputs:
                dist.all_reduce(tensor)
        elif kind == "all_gather":
            outputs = [torch.zeros(len(tensor) * size, device="neuron") for tensor in inputs]
            for output, tensor in zip(outputs, inputs, strict=True):
                dist.all_gather_single(output, tensor)
        else:
            outputs = [torch.zeros(n, device="neuron") for n in (1, 2)]
            for output, tensor in zip(outputs, inputs, strict=True):
                dist.reduce_scatter_single(output, tensor)
    manager.wait()
    for n, tensor in zip((1, 2), inputs, strict=True):
        total = float(sum(range(size)) + n * size)
        if kind == "all_reduce":
            same(tensor, torch.full((n * size,), total))
        elif kind == "all_gather":
            wanted = torch.cat([torch.full((n * size,), float(other + n)) for other in range(size)])
            same(outputs[n - 1], wanted)
        else:
            same(outputs[n - 1], torch.full((n,), total))


def objects() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": other} for other in range(size)]
    sent = ["from 0", 7] if rank == 0 else [None, None]
    dist.broadcast_object_list(sent, src=0)
    assert sent == ["from 0", 7]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"to {other}" for other in range(size)] if rank == 0 else None, src=0)
    assert mine == [f"to {rank}"]
    collected: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank, collected, dst=0)
    assert collected is None or collected == list(range(size))


def zero_sized() -> None:
    size = dist.get_world_size()
    empty = torch.zeros(0, 3, device="neuron")
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    dist.all_gather([torch.zeros(0, 3, device="neuron") for _ in range(size)], empty)
    dist.all_gather_single(torch.zeros(0, 3, device="neuron"), empty)
    dist.reduce_scatter_single(torch.zeros(0, 3, device="neuron"), empty)
    dist.all_to_all_single(torch.zeros(0, 3, device="neuron"), empty)
    if dist.get_rank() == 0:
        dist.send(empty, 1)
    elif dist.get_rank() == 1:
        dist.recv(empty, 0)
    one = torch.ones(1, device="neuron")
    dist.all_reduce(one)
    same(one, torch.full((1,), float(size)))


def scalar() -> None:
    size = dist.get_world_size()
    tensor = torch.tensor(2.0, device="neuron")
    dist.all_reduce(tensor)
    same(tensor, torch.tensor(2.0 * size))
    dist.broadcast(tensor, 0)
    gathered = torch.zeros(size, device="neuron")
    dist.all_gather_single(gathered, tensor)
    same(gathered, torch.full((size,), 2.0 * size))


def cpu_tensors() -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.device.type == "cpu"
    assert tensor.tolist() == [float(dist.get_world_size())] * 3


def sub_groups() -> None:
    rank = dist.get_rank()
    first = dist.new_group([0, 1])
    alone = dist.new_group([dist.get_world_size() - 1])
    tensor = torch.full((2,), float(rank + 1), device="neuron")
    if rank in (0, 1):
        dist.all_reduce(tensor, group=first)
        same(tensor, torch.full((2,), 3.0))
        dist.destroy_process_group(first)
    if rank == dist.get_world_size() - 1:
        dist.all_reduce(tensor, group=alone)
        dist.destroy_process_group(alone)


def mesh() -> None:
    size = dist.get_world_size()
    device_mesh = dist.init_device_mesh("neuron", (size, 1), mesh_dim_names=("tp", "dp"))
    tensor = torch.ones(2, device="neuron")
    dist.all_reduce(tensor, group=device_mesh.get_group("tp"))
    same(tensor, torch.full((2,), float(size)))
    assert dist.get_backend(device_mesh.get_group("tp")) == "neuron"


def wrong_calls() -> None:
    """Mistakes are refused before anything is sent, so the group goes on working."""

    def refused(call: Callable[[], Any], text: str) -> None:
        with pytest.raises((ValueError, RuntimeError, NotImplementedError), match=text):
            call()

    size = dist.get_world_size()
    floats = torch.ones(4, device="neuron")
    refused(lambda: dist.all_reduce(floats, op=dist.ReduceOp.BAND), "whole numbers")
    flags = torch.ones(4, dtype=torch.bool, device="neuron")
    refused(lambda: dist.all_reduce(flags, op=dist.ReduceOp.AVG), "booleans")
    small = torch.ones(1, device="neuron")
    refused(lambda: dist.all_gather_single(small, floats), f"{size} times")
    refused(lambda: dist.all_to_all_single(torch.ones(1, device="neuron"), small), "does not divide")
    dist.all_reduce(floats)
    same(floats, torch.full((4,), float(size)))


def functional() -> None:
    import torch.distributed._functional_collectives as funcol

    size, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    assert group is not None
    tensor = torch.full((size, 2), float(rank), device="neuron")
    total = float(sum(range(size)))
    same(funcol.all_reduce(tensor, "sum", group), torch.full((size, 2), total))
    wanted = torch.cat([torch.full((size, 2), float(other)) for other in range(size)])
    same(funcol.all_gather_tensor(tensor, 0, group), wanted)
    same(funcol.reduce_scatter_tensor(tensor, "sum", 0, group), torch.full((1, 2), total))
    same(funcol.broadcast(tensor, 0, group), torch.zeros(size, 2))
    exchanged = funcol.all_to_all_single(tensor, None, None, group)
    same(exchanged, torch.arange(size).float()[:, None].expand(size, 2))
    for reduced in funcol.all_reduce_coalesced([tensor, tensor], "sum", group):
        same(reduced, torch.full((size, 2), total))


def given_back(core: int, bytes_in_use: int) -> None:
    """Gloo's thread drops its scratch after the caller has its result."""
    deadline = time.monotonic() + 60
    while torch.neuron.memory_allocated(core) != bytes_in_use and time.monotonic() < deadline:
        time.sleep(0.01)
    assert torch.neuron.memory_allocated(core) == bytes_in_use


def scratch_is_charged_to_the_ranks_core() -> None:
    """Gloo gathers into one piece in a thread of its own; that piece, too, is the core's memory meanwhile."""
    core, size, world = dist.get_rank(), 2**20, dist.get_world_size()
    mine = torch.ones(size, dtype=torch.uint8, device="neuron")
    parts = [torch.empty_like(mine) for _ in range(world)]
    others = [torch.neuron.memory_allocated(other) for other in range(4) if other != core]
    before = torch.neuron.memory_allocated(core)
    torch.neuron.reset_peak_memory_stats(core)
    dist.all_gather(parts, mine)
    assert torch.neuron.max_memory_allocated(core) == before + world * size
    given_back(core, before)
    # A whole number of 16 bits travels as one of 32, and comes back in Gloo's thread.
    small = torch.ones(size, dtype=torch.int16, device="neuron")
    before = torch.neuron.memory_allocated(core)
    torch.neuron.reset_peak_memory_stats(core)
    dist.all_reduce(small, op=dist.ReduceOp.AVG)
    assert torch.neuron.max_memory_allocated(core) >= before + 4 * size
    given_back(core, before)
    assert [torch.neuron.memory_allocated(other) for other in range(4) if other != core] == others
