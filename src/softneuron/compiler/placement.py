"""Where a graph's inputs lie in memory, as far as compiled code depends on it. Called by `backend`.

AOTAutograd restates a captured graph without views and writes. The result holds for inputs that overlap as
they did at the first call, and, where `as_strided` counts from the start of an input's memory, for inputs
that start where they did. Dynamo's guards see neither. Here is what checks both, and what refuses the graphs
that cannot be restated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._C._dynamo.guards import compute_overlapping_tensors
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._guards import Guard, TracingContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from softneuron.compiler import strides
from softneuron.compiler.errors import HOW_TO_RUN_ANYWAY, GraphRefused
from softneuron.compiler.lower import users_line

Overlaps = frozenset[tuple[int, int, int]]
"""Pairs of inputs with elements in common, and how many bytes the second starts after the first."""

_REMEMBERED = 64


class PlacementRefused(GraphRefused):
    """A graph that would give wrong numbers because of how its inputs lie in memory. Names what it can."""


def _parts(value: object) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """The tensors with elements that `value` consists of, each with the attributes that lead to it."""
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return
    if is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        for name in names:
            for path, tensor in _parts(getattr(value, name)):
                yield (name, *path), tensor
    elif value.layout == torch.strided and torch._C._has_storage(value) and value.numel():
        yield (), value


def _follow(value: Any, path: tuple[str, ...]) -> torch.Tensor:
    for name in path:
        value = getattr(value, name)
    found: torch.Tensor = value
    return found


def _end(tensor: torch.Tensor) -> int:
    """The address after the last element of `tensor`."""
    return tensor.data_ptr() + strides.end(tensor.shape, tensor.stride(), 0) * tensor.element_size()


def _have_common_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of two tensors whose first and last elements lie between each other's."""
    if one.untyped_storage()._cdata != other.untyped_storage()._cdata or one.dtype != other.dtype:
        return True
    return len(compute_overlapping_tensors([one, other], symbolic=False)) > 0


def find_overlaps(inputs: Iterable[object]) -> Overlaps:
    """Which of `inputs` have elements in common; positions are those in `inputs`."""
    parts = [
        (tensor.data_ptr(), position, tensor)
        for position, value in enumerate(inputs)
        for _, tensor in _parts(value)
    ]
    # Memory that was given back, as FSDP does with parameters, starts nowhere.
    tensors = sorted((part for part in parts if part[0]), key=lambda part: part[:2])
    found = set()
    reaching: list[tuple[int, int, torch.Tensor]] = []
    for start, position, tensor in tensors:
        reaching = [entry for entry in reaching if _end(entry[2]) > start]
        for other_start, other_position, other in reaching:
            if position != other_position and _have_common_elements(tensor, other):
                pair = sorted(((other_position, other_start), (position, start)))
                found.add((pair[0][0], pair[1][0], pair[1][1] - pair[0][1]))
        reaching.append((start, position, tensor))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class _Stride:
    """One call of `as_strided` by `node`: on which storage, whether it counts from the start of that storage,
    and the byte of the storage after the last one that it reaches."""

    storage: int
    node: torch.fx.Node
    absolute: bool
    reach: int


@dataclass
class _Uses:
    """What a graph does with memory: which storages it writes to and where, and its calls of `as_strided`.

    `opaque` holds a node whose inside could not be looked into.
    """

    written: dict[int, torch.fx.Node] = field(default_factory=dict)
    strides: list[_Stride] = field(default_factory=list)
    opaque: torch.fx.Node | None = None


class _Watch(TorchDispatchMode):
    """Notes the uses of memory by each operator that runs below it."""

    supports_higher_order_operators = True

    def __init__(self, uses: _Uses) -> None:
        super().__init__()
        self.uses = uses
        self.node: torch.fx.Node | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        assert self.node is not None
        if isinstance(func, torch._ops.OpOverload):
            self._note_writes(func, args, given)
            if func.overloadpacket in (torch.ops.aten.as_strided, torch.ops.aten.as_strided_):
                self._note_stride(*args, **given)
        else:
            self.uses.opaque = self.node
        return func(*args, **given)

    def _note_writes(self, func: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        for tensor in strides.written_arguments(func, args, kwargs):
            if isinstance(tensor, torch.Tensor):
                assert self.node is not None
                self.uses.written.setdefault(tensor.untyped_storage()._cdata, self.node)

    def _note_stride(
        self,
        tensor: torch.Tensor,
        size: Sequence[int],
        stride: Sequence[int],
        storage_offset: int | None = None,
    ) -> None:
        start = tensor.storage_offset() if storage_offset is None else storage_offset
        assert self.node is not None
        self.uses.strides.append(
            _Stride(
                storage=tensor.untyped_storage()._cdata,
                node=self.node,
                absolute=storage_offset is not None,
                reach=0 if 0 in size else strides.end(size, stride, int(start)) * tensor.element_size(),
            )
        )


class _Walk(torch.fx.Interpreter):
    """Runs a captured graph node by node, telling `watch` which one."""

    def __init__(self, gm: torch.fx.GraphModule, watch: _Watch) -> None:
        super().__init__(gm)
        self._watch = watch

    def run_node(self, n: torch.fx.Node) -> Any:
        self._watch.node = n
        return super().run_node(n)


def _observe(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> tuple[_Uses, list[int | None]]:
    """The uses of memory in `gm`, seen on fake tensors, and the storage of each input that is plain."""
    uses = _Uses()
    if any(isinstance(value, FakeTensor) for value in inputs):
        # A part of a graph that PyTorch splits; running it would change the inputs that it is traced with.
        return replace(uses, opaque=next(iter(gm.graph.nodes))), [_storage(value) for value in inputs]
    with unset_fake_temporarily():
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [
            mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value
            for value in inputs
        ]
        places = [_storage(value) for value in fakes]
        watch = _Watch(uses)
        try:
            with mode, watch:
                _Walk(gm, watch).run(*fakes)
        except Exception:
            # What cannot be watched may do anything.
            uses.opaque = watch.node
    if any(isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value) for value in inputs):
        uses.opaque = uses.opaque or watch.node
    return uses, places


def _storage(value: object) -> int | None:
    if not isinstance(value, torch.Tensor) or is_traceable_wrapper_subclass(value):
        return None
    return value.untyped_storage()._cdata if torch._C._has_storage(value) else None


def _calls_as_strided(gm: torch.fx.GraphModule) -> bool:
    return any(
        "as_strided" in str(getattr(node.target, "__name__", node.target))
        for module in gm.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if node.op in ("call_function", "call_method")
    )


def _base(tensor: torch.Tensor) -> torch.Tensor | None:
    return None if tensor.is_inference() else tensor._base


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    """Where `tensor` starts, and the tensor it is a view of: what AOTAutograd makes constants of."""
    base = _base(tensor)
    return tensor.storage_offset(), None if base is None else _layout(base)


def _guard_place(builder: GuardBuilder, guard: Guard) -> None:
    """The guard itself: the tensor of `guard` is where it is now."""
    tensor = builder.get(guard)
    place, offset = _place(tensor), tensor.storage_offset()
    text = f"{guard.name}.storage_offset() == {offset}"
    builder.get_guard_manager(guard).add_lambda_guard(lambda value: _place(value) == place, [text], None)


def _sources(gm: torch.fx.GraphModule) -> list[Any]:
    placeholders = (node for node in gm.graph.nodes if node.op == "placeholder")
    return [getattr(node.meta.get("grapharg"), "source", None) for node in placeholders]


def _refusal(node: torch.fx.Node, reason: str) -> PlacementRefused:
    return PlacementRefused(
        f"{node.name} ({users_line(node)}): {reason}. Give the compiled function a clone() of the tensor, or "
        f"leave the line out of it.\n{HOW_TO_RUN_ANYWAY}"
    )


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.storage_offset() == 0 and tensor.is_contiguous()


@dataclass(frozen=True, slots=True)
class Placement:
    """What a graph's compiled form depends on: `overlaps` as they were, and the places of inputs `fixed`."""

    overlaps: Overlaps
    fixed: frozenset[int]

    @property
    def is_anywhere(self) -> bool:
        """Whether the compiled form holds wherever the inputs lie, as long as they overlap as they do."""
        return not self.fixed

    def install_guards(self, gm: torch.fx.GraphModule) -> None:
        """Have Dynamo capture the graph again when one of the `fixed` inputs lies elsewhere."""
        if TracingContext.try_get() is None:
            return
        sources = _sources(gm)
        for position in sorted(self.fixed):
            if sources[position] is not None:
                install_guard(sources[position].make_guard(_guard_place))


def inspect(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> Placement:
    """How the compiled form of `gm` will depend on where `inputs` lie.

    Raises:
        PlacementRefused: when AOTAutograd would give wrong numbers for them.
    """
    overlaps = find_overlaps(inputs)
    if not overlaps and not _calls_as_strided(gm):
        return Placement(overlaps, frozenset())
    uses, places = _observe(gm, inputs)
    fixed: set[int] = set()
    together = {position for first, second, _ in overlaps for position in (first, second)}
    for storage in {place for place in places if place is not None}:
        group = [position for position, place in enumerate(places) if place == storage]
        tensors = [value for position in group if isinstance(value := inputs[position], torch.Tensor)]
        writer = uses.written.get(storage, uses.opaque)
        if writer is not None and together.intersection(group):
            _refuse_unmergeable(tensors, writer)
            fixed.update(group)
        for stride in uses.strides:
            if stride.storage == storage and writer is not None:
                _refuse_strided(tensors, stride)
            if stride.storage == storage and (writer is not None or stride.absolute):
                fixed.update(group)
    if uses.opaque is not None:
        _refuse_hidden(gm, uses, places)
        fixed.update(position for position, place in enumerate(places) if place is not None)
    return Placement(overlaps, frozenset(fixed))


def _refuse_unmergeable(tensors: Sequence[torch.Tensor], writer: torch.fx.Node) -> None:
    """AOTAutograd makes one input of those that overlap, and knows them by size, stride and offset alone."""
    if any(tensor.is_conj() or tensor.is_neg() for tensor in tensors):
        raise _refusal(writer, "a compiled graph cannot change inputs that overlap when one is a conjugate")
    if any(
        step == 0 and size > 1
        for tensor in tensors
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        raise _refusal(writer, "a compiled graph cannot change inputs that overlap when one is expanded")


def _refuse_hidden(gm: torch.fx.GraphModule, uses: _Uses, places: Sequence[int | None]) -> None:
    """Of a graph in a graph, as of a checkpoint, it is not known on what `as_strided` works."""
    inner = [
        module for module in gm.modules() if module is not gm and isinstance(module, torch.fx.GraphModule)
    ]
    writes = any(place in uses.written for place in places) or any(
        isinstance(node.target, str) and node.target.endswith("_") and node.op == "call_method"
        for module in inner
        for node in module.graph.nodes
    )
    if uses.opaque is not None and writes and any(map(_calls_as_strided, inner)):
        raise _refusal(
            uses.opaque, "a part of a compiled graph cannot use as_strided when it changes an input"
        )


def _refuse_strided(tensors: Sequence[torch.Tensor], stride: _Stride) -> None:
    """A changed input becomes a tensor of its own, without what lies around it."""
    alone = len(tensors) == 1 and _plain(tensors[0])
    if not alone or stride.reach > tensors[0].numel() * tensors[0].element_size():
        raise _refusal(
            stride.node,
            "a compiled graph cannot use as_strided on the memory of an input that it also changes, unless "
            "the input is contiguous and starts its memory",
        )


class Placed:
    """A compiled graph that is run only on inputs that overlap as they did when it was compiled.

    On others the captured graph runs operator by operator, unless it changes none of those inputs.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        gm: torch.fx.GraphModule,
        inputs: Sequence[object],
        overlaps: Overlaps,
        on_mismatch: Callable[[], None],
    ) -> None:
        self._run = run
        self._gm = gm
        parts = [(position, *part) for position, value in enumerate(inputs) for part in _parts(value)]
        self._plain = [position for position, path, _ in parts if not path]
        self._wrapped = [(position, path) for position, path, _ in parts if path]
        self._bytes = [
            _end(tensor) - tensor.data_ptr()
            for _, path, tensor in sorted(parts, key=lambda part: bool(part[1]))
        ]
        self._compiled_for = overlaps
        self._right = {overlaps}
        self._wrong: set[Overlaps] = set()
        self._seen: set[tuple[int, ...]] = set()
        self._on_mismatch = on_mismatch

    def __call__(self, *arguments: Any) -> Any:
        places = tuple(
            [arguments[position].data_ptr() for position in self._plain]
            + [_follow(arguments[position], path).data_ptr() for position, path in self._wrapped]
        )
        if places in self._seen:
            return self._run(*arguments)
        if not (self._are_apart(places) and not self._compiled_for) and not self._as_compiled(arguments):
            return self._gm(*arguments)
        if len(self._seen) == _REMEMBERED:
            self._seen.clear()
        self._seen.add(places)
        return self._run(*arguments)

    def _are_apart(self, places: Sequence[int]) -> bool:
        """Whether no two inputs reach into each other: what is nearly always so, and quickly seen."""
        reached = 0
        for start, size in sorted(zip(places, self._bytes, strict=True)):
            if start and start < reached:
                return False
            reached = start + size
        return True

    def _as_compiled(self, arguments: Sequence[Any]) -> bool:
        overlaps = find_overlaps(arguments)
        if overlaps in self._right:
            return True
        if overlaps not in self._wrong:
            if not self._changes_any(arguments, overlaps ^ self._compiled_for):
                self._right.add(overlaps)
                return True
            self._wrong.add(overlaps)
            self._on_mismatch()
        return False

    def _changes_any(self, arguments: Sequence[Any], pairs: Overlaps) -> bool:
        uses, places = _observe(self._gm, arguments)
        touched = {place for first, second, _ in pairs for place in (places[first], places[second])}
        return uses.opaque is not None or any(place in uses.written for place in touched)
