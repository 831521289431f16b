"""Restates a graph captured on `neuron` for the host: same operators, CPU devices. Called by `graph`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from softneuron.compiler import strides

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class FromGraph:
    """Output `index` of the compiled graph; `on_device` says that it is a neuron tensor."""

    index: int
    on_device: bool


@dataclass(frozen=True, slots=True)
class FromInput:
    """Input `index` of the call, handed back as it is."""

    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is no tensor: None, or a number fixed by the shapes."""

    value: Any


Output = FromGraph | FromInput | Constant


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph for the host and how to call it.

    `module` takes the tensors at `inputs` (positions in the original call) and
    gives a list of tensors; `example_inputs` are fake CPU tensors for them, and
    `written` says which of them it changes.
    `core` is the core whose memory it works in, None when the graph names none.
    `starts` are the inputs, by their position in the original call, that must
    start at the given element of their memory, because the code counts from there.
    """

    module: torch.fx.GraphModule
    example_inputs: tuple[torch.Tensor, ...]
    inputs: tuple[int, ...]
    written: tuple[bool, ...]
    outputs: tuple[Output, ...]
    core: int | None
    draws_random: bool
    starts: tuple[tuple[int, int], ...]

    @property
    def nodes(self) -> int:
        """Number of operators in the graph."""
        return sum(node.op == "call_function" for node in self.module.graph.nodes)


class SeveralCores(RuntimeError):
    """One graph touches two cores; a NEFF runs on one."""


class DynamicShapesRefused(RuntimeError):
    """A graph with symbolic sizes; NeuronCores run static shapes only."""


def users_line(node: torch.fx.Node) -> str:
    """The line of the user's program that `node` came from, as `file:line: source`, or that there is none."""
    lines = (node.meta.get("stack_trace") or node.stack_trace or "").strip().splitlines()
    places = [index for index, line in enumerate(lines) if line.lstrip().startswith("File ")]
    if not places:
        return "not from a line of the program"
    file, line, *_ = lines[places[-1]].strip().removeprefix("File ").split(", ")
    source = lines[places[-1] + 1].strip() if len(lines) > places[-1] + 1 else ""
    return f"{file.strip(chr(34))}:{line.removeprefix('line ')}: {source}"


def _refuse_data_dependent_sizes(gm: torch.fx.GraphModule) -> None:
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, torch.Tensor) and any(
                isinstance(size, torch.SymInt) and not size.node.has_hint() for size in one.shape
            ):
                raise DynamicShapesRefused(
                    f"NeuronCores run static shapes only, and {node.target} gives a tensor of data-dependent "
                    f"size ({users_line(node)}). Keep its size fixed, "
                    "with torch.where and a mask for example, or leave it out of the compiled function."
                )


def _cores(gm: torch.fx.GraphModule) -> set[int]:
    cores: set[int] = set()
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "neuron":
                cores.add(tensor.device.index or 0)
    return cores


def _to_cpu(value: Any) -> Any:
    return CPU if isinstance(value, torch.device) and value.type == "neuron" else value


def _fake_on_cpu(tensor: torch.Tensor, mode: FakeTensorMode, offset: int = 0) -> torch.Tensor:
    size, stride = [int(one) for one in tensor.shape], [int(one) for one in tensor.stride()]
    with mode:
        if offset == 0:
            return torch.empty_strided(size, stride, dtype=tensor.dtype, device=CPU)
        memory = torch.empty(strides.end(size, stride, offset), dtype=tensor.dtype, device=CPU)
        return memory.as_strided(size, stride, offset)


def _copied(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy whose graph is its own and whose constants are shared: a constant is a real tensor on a core,
    which cannot be copied deeply while tensors are being faked."""
    return torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))


def _restate_values(gm: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
    """The same for what tracing noted of a subgraph's nodes, which propagation does not reach."""
    for node in gm.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = torch.utils._pytree.tree_map_only(
                torch.Tensor, lambda value: _fake_on_cpu(value, mode), node.meta["val"]
            )


def _restate_devices(gm: torch.fx.GraphModule, mode: FakeTensorMode) -> None:
    for node in gm.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, _to_cpu)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _to_cpu)
        if node.op == "get_attr":
            constant = getattr(gm, node.target)
            if isinstance(constant, torch.Tensor) and constant.device.type == "neuron":
                with unset_fake_temporarily():
                    setattr(gm, node.target, constant.cpu())
            elif isinstance(constant, torch.fx.GraphModule):
                inner = _copied(constant)
                setattr(gm, node.target, inner)
                _restate_devices(inner, mode)
                _restate_values(inner, mode)
                inner.recompile()


def _split_outputs(gm: torch.fx.GraphModule, placeholders: Sequence[torch.fx.Node]) -> tuple[Output, ...]:
    """Leave only distinct computed tensors in the output; say where each original output comes from."""
    node = gm.graph.output_node()
    position = {placeholder: index for index, placeholder in enumerate(placeholders)}
    computed: dict[torch.fx.Node, int] = {}
    outputs: list[Output] = []
    results: Any = node.args[0]
    for result in results:
        if not isinstance(result, torch.fx.Node):
            outputs.append(Constant(result))
            continue
        value = result.meta.get("val")
        if result in position:
            outputs.append(FromInput(position[result]))
        elif isinstance(value, torch.Tensor):
            index = computed.setdefault(result, len(computed))
            outputs.append(FromGraph(index, value.device.type == "neuron"))
        else:
            outputs.append(Constant(None if value is None else int(value)))
    node.args = (tuple(computed),)
    return tuple(outputs)


def is_random(node: torch.fx.Node) -> bool:
    """Whether `node` draws random numbers."""
    return isinstance(node.target, torch._ops.OpOverload) and (
        torch.Tag.nondeterministic_seeded in node.target.tags
    )


def lower(original: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Lowered:
    """The host's form of `original`, an AOTAutograd graph whose inputs are fake tensors of static shape.

    Raises:
        SeveralCores: when the graph's tensors live on more than one core.
        DynamicShapesRefused: when the size of a tensor depends on data.
    """
    _refuse_data_dependent_sizes(original)
    cores = _cores(original)
    if len(cores) > 1:
        names = ", ".join(f"neuron:{core}" for core in sorted(cores))
        raise SeveralCores(f"a compiled graph runs on one core, and this one has tensors on {names}")
    mode = detect_fake_mode(example_inputs) or FakeTensorMode()
    gm = _copied(original)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    outputs = _split_outputs(gm, placeholders)

    kept: list[int] = []
    fakes: list[torch.Tensor] = []
    starts: list[tuple[int, int]] = []
    anchored, changed = strides.restate_scatters(gm), strides.written_in(gm)
    for index, (placeholder, value) in enumerate(zip(placeholders, example_inputs, strict=True)):
        if isinstance(value, torch.Tensor):
            start = int(value.storage_offset()) if placeholder in anchored else 0
            kept.append(index)
            fakes.append(_fake_on_cpu(value, mode, start))
            if placeholder in anchored:
                starts.append((index, start))
        elif isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
            placeholder.replace_all_uses_with(int(value) if isinstance(value, torch.SymInt) else value)
            gm.graph.erase_node(placeholder)
        else:
            gm.graph.erase_node(placeholder)
    _restate_devices(gm, mode)
    gm.recompile()
    with mock.patch.object(mode, "allow_non_fake_inputs", True):
        FakeTensorProp(gm, mode=mode).propagate_dont_convert_inputs(*fakes)
    return Lowered(
        module=gm,
        example_inputs=tuple(fakes),
        inputs=tuple(kept),
        written=tuple(placeholders[index] in changed for index in kept),
        outputs=outputs,
        core=next(iter(cores), None),
        draws_random=any(is_random(node) for node in gm.graph.nodes),
        starts=tuple(starts),
    )
