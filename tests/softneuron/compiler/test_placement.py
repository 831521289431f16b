"""Compiled code and where its inputs lie: views at other places, inputs that overlap, `as_strided`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch_neuronx
from torch._dynamo.exc import BackendCompilerFailed

from softneuron.compiler.placement import PlacementRefused, find_overlaps

O0 = {"opt_level": "-O0"}


def count(device: str, length: int = 24) -> torch.Tensor:
    return torch.arange(float(length), device=device)


def same_as_eager(
    run: Callable[..., torch.Tensor],
    make: Callable[[str, int], Sequence[torch.Tensor]],
    calls: Sequence[int],
    options: dict[str, object] = O0,
) -> None:
    """`run`, compiled once, gives eager's result and leaves eager's memory at each of `calls`."""
    compiled = torch.compile(run, backend="neuron", options=options)
    for call in calls:
        on_cpu, on_neuron = make("cpu", call), make("neuron", call)
        expected, got = run(*on_cpu), compiled(*on_neuron)
        assert got.cpu().tolist() == expected.tolist()
        assert [value.cpu().tolist() for value in on_neuron] == [value.tolist() for value in on_cpu]


def read_at_two(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((3,), (1,), 2) + 1


def add_and_double(x: torch.Tensor, y: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    y.mul_(2)
    return x + y


def two_views(device: str, start: int) -> list[torch.Tensor]:
    memory = count(device)
    return [memory[start : start + 4], memory[start + 2 : start + 6], memory]


def two_views_of_what_starts_later(device: str, start: int) -> list[torch.Tensor]:
    memory = count(device)[2:].detach()
    return [memory[start : start + 4], memory[start + 2 : start + 6], memory]


def test_as_strided_counts_from_the_start_of_the_memory_at_every_place(fresh_dynamo):
    same_as_eager(read_at_two, lambda device, start: [count(device)[start:20]], [4])
    torch._dynamo.reset()
    same_as_eager(read_at_two, lambda device, start: [count(device)[start : start + 10]], [4, 5, 0])


def test_a_graph_without_as_strided_is_one_for_views_at_all_places(fresh_dynamo):
    def write_one(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[1].copy_(x)
        return cache.sum() + x

    same_as_eager(
        write_one,
        lambda device, start: [count(device)[start : start + 6].view(2, 3), count(device)[start : start + 3]],
        [0, 3, 6, 9],
    )
    assert len(torch_neuronx.get_dynamo_metrics()) == 1
    assert torch_neuronx.get_fallback_graphs() == []


@pytest.mark.parametrize("make", [two_views, two_views_of_what_starts_later])
def test_inputs_that_overlap_may_move_together(make, fresh_dynamo):
    same_as_eager(add_and_double, make, [1, 2, 0, 1])
    assert torch_neuronx.get_fallback_graphs() == []


def test_changed_inputs_that_overlap_in_a_tensor_with_gaps_are_refused(fresh_dynamo):
    memory = count("neuron")[1::2].detach()
    with pytest.raises(BackendCompilerFailed, match="covers only a part of its memory") as failed:
        torch.compile(add_and_double, backend="neuron", options=O0)(memory[1:5], memory[3:7], memory)
    assert isinstance(failed.value.inner_exception, PlacementRefused)


def test_inputs_that_came_to_overlap_run_operator_by_operator_and_are_counted(fresh_dynamo):
    def make(device: str, distance: int) -> list[torch.Tensor]:
        memory = count(device)
        return [memory[:4], memory[distance : distance + 4], memory[20:]]

    same_as_eager(add_and_double, make, [4, 2, 2, 6, 1])
    graphs = torch_neuronx.get_fallback_graphs()
    assert [graph["reason"] for graph in graphs] == 2 * [
        "its inputs share memory in another way than when it was compiled"
    ]


def test_inputs_that_are_only_read_may_come_to_overlap(fresh_dynamo):
    def make(device: str, distance: int) -> list[torch.Tensor]:
        memory = count(device)
        return [memory[:4], memory[distance : distance + 4]]

    same_as_eager(lambda x, y: x * y, make, [4, 2, 0, 7])
    assert torch_neuronx.get_fallback_graphs() == []
    assert len(torch_neuronx.get_dynamo_metrics()) == 1


def write_and_read(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.as_strided((3,), (1,), 5) * 1


def test_as_strided_on_a_changed_input_is_refused_with_its_line(fresh_dynamo):
    with pytest.raises(BackendCompilerFailed) as failed:
        torch.compile(write_and_read, backend="neuron", options=O0)(count("neuron")[4:])
    assert isinstance(failed.value.inner_exception, PlacementRefused)
    message = str(failed.value.inner_exception)
    assert message.startswith("as_strided (")
    assert "test_placement.py" in message
    assert "x.as_strided((3,), (1,), 5) * 1" in message


def test_a_refused_graph_runs_operator_by_operator_on_request(fresh_dynamo):
    same_as_eager(
        write_and_read,
        lambda device, start: [count(device)[start : start + 10]],
        [4, 5],
        O0 | {"fallback_execution": True},
    )
    assert "as_strided" in str(torch_neuronx.get_fallback_graphs()[0]["reason"])
    assert torch_neuronx.get_dynamo_metrics() == []


def test_as_strided_on_a_changed_input_that_starts_its_memory(fresh_dynamo):
    same_as_eager(write_and_read, lambda device, start: [count(device)], [0])


def test_training_with_as_strided_on_a_view(fresh_dynamo):
    weight = count("neuron")

    def gradient(run: Callable[[torch.Tensor], torch.Tensor], start: int) -> list[float]:
        x = weight[start : start + 10].detach().requires_grad_()
        (gradient,) = torch.autograd.grad((run(x) * x.as_strided((3,), (2,), start)).sum(), x)
        return gradient.tolist()

    def square(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((3,), (1,), 6).square()

    compiled = torch.compile(square, backend="neuron", options=O0)
    for start in (4, 5):
        assert gradient(compiled, start) == gradient(square, start)


def test_which_inputs_overlap():
    memory = torch.arange(12)
    square = torch.arange(16).view(4, 4)
    tensors = [memory[:4], memory[3:5], square[:, :2], square[:, 2:], torch.arange(3), memory[2:2], 7]
    assert find_overlaps(tensors) == {(0, 1, 3 * 8)}
    assert find_overlaps([memory, memory[:0], memory]) == {(0, 2, 0)}


def test_what_a_graph_was_compiled_for_is_not_kept_alive(fresh_dynamo, no_garbage):
    memory = torch.neuron.memory_allocated()
    compiled = torch.compile(lambda x, y: x.as_strided((3,), (1,), 2) * y[0], backend="neuron", options=O0)
    x, y = count("neuron"), count("neuron")
    compiled(x, y)
    assert torch.neuron.memory_allocated() > memory
    del x, y
    assert torch.neuron.memory_allocated() == memory


@pytest.mark.slow
def test_generated_code_reads_conjugates_and_negatives(neff_cache, fresh_dynamo):
    def change(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.mul_(3)
        x.add_(1)
        return x * y

    def make(device: str, offset: int) -> list[torch.Tensor]:
        memory = torch.complex(count(device), count(device).flip(0))
        conjugate, negative = memory[offset : offset + 3].conj(), memory[10:13].conj().imag
        assert (conjugate.is_conj(), negative.is_neg()) == (True, True)
        return [conjugate, negative, memory[10:13]]

    same_as_eager(lambda x, y, memory: change(x, y), make, [0, 4], {})


@pytest.mark.slow
def test_generated_code_counts_from_the_start_of_the_memory(neff_cache, fresh_dynamo):
    def read(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        double = y * 2
        double.as_strided((2,), (1,), 3).add_(100)
        return x.as_strided((3,), (1,), 2) + x[0] + double[2:].as_strided((3,), (2,), 1)

    same_as_eager(
        read, lambda device, start: [count(device)[start : start + 10], count(device)], [4, 0, 4], {}
    )
    assert len(list(neff_cache.glob("MODULE_*"))) == 2
    torch._dynamo.reset()
    same_as_eager(add_and_double, two_views_of_what_starts_later, [1, 2], {})
