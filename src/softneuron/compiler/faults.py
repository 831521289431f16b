"""Fault modes of the compiler: wrong numbers in compiled graphs, the same as the eager device's, put in below
what PyTorch's users see; and an entry of the NEFF cache that is not what it says."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from softneuron.diagnostics import faults as switches
from softneuron.diagnostics.faults import Fault, fault, fire

aten = torch.ops.aten
prims = torch.ops.prims

_CACHE_WRITES = (aten.index_put.default, aten._unsafe_index_put.default, aten.index_put_.default)


@dataclass(slots=True)
class _Place:
    """Where in a decoder a node is, as far as the graph tells: see `faulty_call.cpp`."""

    hidden: int = -1
    vocabulary: int = -1
    layer: int = -1


@dataclass(slots=True)
class _Injection:
    """A graph on its way to being wrong."""

    gm: torch.fx.GraphModule
    place: _Place = field(default_factory=_Place)
    fired: set[str] = field(default_factory=set)

    def insert_before(
        self, node: torch.fx.Node, target: Any, *args: Any, like: torch.Tensor
    ) -> torch.fx.Node:
        """Add a call in front of `node`; its result has the shape and dtype of `like`."""
        with self.gm.graph.inserting_before(node):
            made: torch.fx.Node = self.gm.graph.call_function(target, args)
        made.meta["val"] = like
        return made

    def insert_after(
        self, node: torch.fx.Node, steps: Iterable[tuple[Any, Callable[[Any], tuple[Any, ...]]]]
    ) -> None:
        """Add calls behind `node`, each given the one before, and let every user take the last."""
        users = list(node.users)
        last = node
        for target, arguments in steps:
            with self.gm.graph.inserting_after(last):
                made = self.gm.graph.call_function(target, arguments(last))
            made.meta["val"] = node.meta["val"]
            last = made
        for user in users:
            user.replace_input_with(node, last)


def _value(node: Any) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


def _embedding_table(node: torch.fx.Node) -> tuple[int, int] | None:
    """Rows and columns of the table that an embedding, whole or taken apart, picks rows of."""
    arguments: Any = node.args
    if node.target is aten.index.Tensor:
        picks_rows = _value(arguments[0]).dim() == 2 and len(arguments[1]) == 1
    else:
        picks_rows = node.target is aten.embedding.default
    if not picks_rows:
        return None
    rows, columns = _value(arguments[0]).shape
    return int(rows), int(columns)


def _operands(node: torch.fx.Node) -> tuple[int, int] | None:
    """Which arguments of a matrix product are its matrices, None for other operators."""
    if node.target in (aten.mm.default, aten.bmm.default):
        return 0, 1
    if node.target in (aten.addmm.default, aten.baddbmm.default):
        return 1, 2
    return None


def _replace_result(graph: _Injection, node: torch.fx.Node, number: float) -> None:
    with graph.gm.graph.inserting_after(node):
        value = _value(node)
        wrong = graph.gm.graph.call_function(
            aten.full.default,
            (list(value.shape), number),
            {"dtype": value.dtype, "device": value.device, "pin_memory": False},
        )
    wrong.meta["val"] = value
    node.replace_all_uses_with(wrong)


def _results(node: torch.fx.Node, index: int) -> list[torch.fx.Node]:
    return [user for user in node.users if user.args[1:] == (index,)]


def _attention(graph: _Injection, node: torch.fx.Node, faults: dict[str, Fault]) -> None:
    graph.place.layer += 1
    if "attention_scale" in faults:
        query: Any = node.args[0]
        factor = 1.0 + 0.01 * faults["attention_scale"].argument
        scaled = graph.insert_before(node, aten.mul.Tensor, query, factor, like=_value(query))
        node.update_arg(0, scaled)
        graph.fired.add("attention_scale")
    for output in _results(node, 0):
        if "skip_layer" in faults and graph.place.layer == faults["skip_layer"].argument:
            _replace_result(graph, output, 0.0)
            graph.fired.add("skip_layer")
        heads = int(_value(output).shape[1])
        if "swap_heads" in faults and graph.place.layer == faults["swap_heads"].argument and heads > 1:
            bounds = ((1, 2), (0, 1), (2, heads))
            parts = []
            users = list(output.users)
            last = output
            for start, end in bounds:
                with graph.gm.graph.inserting_after(last):
                    last = graph.gm.graph.call_function(aten.slice.Tensor, (output, 1, start, end))
                last.meta["val"] = _value(output)[:, start:end]
                parts.append(last)
            with graph.gm.graph.inserting_after(last):
                swapped = graph.gm.graph.call_function(aten.cat.default, (parts, 1))
            swapped.meta["val"] = _value(output)
            for user in users:
                user.replace_input_with(output, swapped)
            graph.fired.add("swap_heads")


def _product(
    graph: _Injection, node: torch.fx.Node, operands: tuple[int, int], faults: dict[str, Fault]
) -> None:
    left, right = (node.args[each] for each in operands)
    inner, outer = int(_value(left).shape[-1]), int(_value(right).shape[-1])
    flat = _value(right).dim() == 2
    place = graph.place
    if "bf16_matmul" in faults and _value(left).dtype == torch.float32:
        for each in operands:
            operand: Any = node.args[each]
            narrow = _value(operand).to(torch.bfloat16)
            rounded = graph.insert_before(
                node, prims.convert_element_type.default, operand, torch.bfloat16, like=narrow
            )
            wide = graph.insert_before(
                node, prims.convert_element_type.default, rounded, torch.float32, like=_value(operand)
            )
            node.update_arg(each, wide)
        graph.fired.add("bf16_matmul")
    if "low_precision_weights" in faults and flat and _value(right).is_floating_point():
        node.update_arg(
            operands[1], _in_few_bits(graph, node, right, faults["low_precision_weights"].argument)
        )
        graph.fired.add("low_precision_weights")
    if "nan_logits" in faults and flat and outer == place.vocabulary:
        _replace_result(graph, node, float("nan"))
        graph.fired.add("nan_logits")
    elif (
        "skip_layer" in faults
        and place.layer == faults["skip_layer"].argument
        and flat
        and outer == place.hidden
        and inner != place.hidden
    ):
        _replace_result(graph, node, 0.0)
        graph.fired.add("skip_layer")


def _in_few_bits(graph: _Injection, node: torch.fx.Node, weight: Any, bits: int) -> torch.fx.Node:
    """A weight rounded to a few bits with one scale, as the eager fault does it."""
    whole = _value(weight)
    wide = whole.to(torch.float32)
    one = wide.amax([0, 1])

    def step(target: Any, *args: Any, like: torch.Tensor) -> torch.fx.Node:
        return graph.insert_before(node, target, *args, like=like)

    floats = step(prims.convert_element_type.default, weight, torch.float32, like=wide)
    size = step(aten.abs.default, floats, like=wide)
    largest = step(aten.amax.default, size, [0, 1], like=one)
    scale = step(
        aten.clamp_min.default,
        step(aten.mul.Tensor, largest, 1 / (2.0 ** (bits - 1) - 1), like=one),
        1e-30,
        like=one,
    )
    steps = step(aten.round.default, step(aten.div.Tensor, floats, scale, like=wide), like=wide)
    rounded = step(aten.mul.Tensor, steps, scale, like=wide)
    return step(prims.convert_element_type.default, rounded, whole.dtype, like=whole)


def _cache_write(graph: _Injection, node: torch.fx.Node, faults: dict[str, Fault]) -> None:
    target: Any = node.args[0]
    indices: list[Any] = list(node.args[1])  # type: ignore[arg-type]
    if "wrong_kv_row" in faults and _value(target).dim() == 4:
        for position, index in enumerate(indices):
            if index is None or _value(index).dtype != torch.int64 or _value(index).dim() != 1:
                continue
            rows = int(_value(target).shape[position])
            later = graph.insert_before(node, aten.add.Tensor, index, 1, like=_value(index))
            indices[position] = graph.insert_before(
                node, aten.clamp_max.default, later, rows - 1, like=_value(index)
            )
            graph.fired.add("wrong_kv_row")
        node.update_arg(1, indices)
    if "drop_masked_writes" in faults and any(
        index is not None and _value(index).dtype == torch.bool for index in indices
    ):
        node.replace_all_uses_with(target)
        graph.fired.add("drop_masked_writes")


def _choice_of_experts(graph: _Injection, node: torch.fx.Node, faults: dict[str, Fault]) -> None:
    if "wrong_router" in faults:
        arguments: list[Any] = [*node.args, *(-1, True)[len(node.args) - 2 :]][:4]
        arguments[3] = not arguments[3]
        node.args = (*arguments, *node.args[4:])
        graph.fired.add("wrong_router")
    if "wrong_expert" in faults:
        scores: Any = node.args[0]
        dim = node.args[2] if len(node.args) > 2 else -1
        experts = int(_value(scores).shape[dim])  # type: ignore[index]
        for chosen in _results(node, 1):
            graph.insert_after(
                chosen,
                (
                    (aten.add.Tensor, lambda last: (last, 1)),
                    (aten.remainder.Scalar, lambda last: (last, experts)),
                ),
            )
        graph.fired.add("wrong_expert")


class EverySecond(Protocol):
    """The part of the C++ core that decides whether this process is one of the wrong ones."""

    def wrong_this_time(self) -> bool: ...


def felt_by_graphs(active: Iterable[Fault], core: EverySecond) -> tuple[Fault, ...]:
    """What to put into a graph: `every_second_run` is `nan_logits` in every second process."""
    felt = []
    for each in active:
        if each.name != "every_second_run":
            felt.append(each)
            continue
        fire("every_second_run")
        if core.wrong_this_time():
            felt.append(Fault("nan_logits", 0))
    return tuple(felt)


def inject(gm: torch.fx.GraphModule, active: Iterable[Fault]) -> None:
    """Make `gm` (a lowered graph with `val` metadata) wrong in the ways asked for, where it has a place."""
    faults = {each.name: each for each in active}
    graph = _Injection(gm)
    for node in list(gm.graph.nodes):
        if node.op != "call_function":
            continue
        if (table := _embedding_table(node)) is not None:
            graph.place.layer = -1
            if table[0] >= graph.place.vocabulary:
                graph.place.vocabulary, graph.place.hidden = table
        elif "_scaled_dot_product" in str(node.target):
            _attention(graph, node, faults)
        elif (operands := _operands(node)) is not None:
            _product(graph, node, operands, faults)
        elif node.target in _CACHE_WRITES:
            _cache_write(graph, node, faults)
        elif node.target is aten.where.self and _is_masked_fill(node) and "drop_masked_writes" in faults:
            node.replace_all_uses_with(node.args[2])
            graph.fired.add("drop_masked_writes")
        elif node.target is aten.topk.default:
            _choice_of_experts(graph, node, faults)
    gm.recompile()
    for name in graph.fired & {each.name for each in switches.active()}:
        fire(name)


def _is_masked_fill(node: torch.fx.Node) -> bool:
    """A masked_fill taken apart: one number where the mask is set, a tensor of its own shape elsewhere."""
    _, number, other = node.args
    return (
        isinstance(number, torch.fx.Node)
        and isinstance(other, torch.fx.Node)
        and _value(number).numel() == 1
        and _value(other).shape == _value(node).shape
        and _value(other).dtype == _value(node).dtype
    )


def spoil_entry(folder: Path) -> None:
    """The faults `stale_neff` and `damaged_neff`, before an entry of the cache is looked up; once each."""
    if not (folder / "done").exists():
        return
    if fault("damaged_neff") is not None:
        package = next(folder.glob("*.pt2"))
        content = bytearray(package.read_bytes())
        content[len(content) // 2] ^= 0xFF
        package.write_bytes(content)
        fire("damaged_neff")
    if fault("stale_neff") is not None:
        other = next(_others(folder), None)
        if other is not None:
            for path in other.iterdir():
                shutil.copy(path, folder / path.name)
            fire("stale_neff")


def _others(folder: Path) -> Iterator[Path]:
    return (
        each for each in sorted(folder.parent.glob("MODULE_*")) if each != folder and (each / "done").exists()
    )
