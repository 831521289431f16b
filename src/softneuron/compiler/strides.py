"""On which memory a node of a graph works, and `as_strided`, which depends on it. Called by `lower`, `graph`.

The offset of `as_strided` counts from the start of the memory that its argument is a view of. Generated code
knows an input by its first element and a result by memory of its own, so it has to be told.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

_VIEW = torch.ops.aten.as_strided.default
_SCATTER = torch.ops.aten.as_strided_scatter.default
_COPY = torch.ops.aten.as_strided_copy.default


class UnsupportedNode(RuntimeError):
    """A node that code generation would get wrong; the message says why."""

    def __init__(self, node: torch.fx.Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node


def end(size: Sequence[int], stride: Sequence[int], offset: int) -> int:
    """The number of elements, from the start of the memory, that a tensor so laid out reaches."""
    if 0 in size:
        return offset
    return offset + 1 + sum((one - 1) * step for one, step in zip(size, stride, strict=True))


def _value(node: torch.fx.Node) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


def _offset(node: torch.fx.Node) -> int | None:
    """The offset that `node`, one of the above, gives itself."""
    position = 4 if node.target is _SCATTER else 3
    given = node.args[position] if len(node.args) > position else node.kwargs.get("storage_offset")
    return given if isinstance(given, int) else None


def memory_of(node: Any) -> torch.fx.Node:
    """The node whose memory the node `node` is a view of: an input, or an operator's own result."""
    while node.op == "call_function" and node.args:
        first = node.args[0]
        schema = getattr(node.target, "_schema", None)
        is_view = schema is not None and (
            schema.arguments
            and schema.arguments[0].alias_info is not None
            and any(one.alias_info is not None for one in schema.returns)
        )
        if not isinstance(first, torch.fx.Node) or not (is_view or node.target is operator.getitem):
            break
        node = first
    found: torch.fx.Node = node
    return found


def _calls(gm: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for target in (_VIEW, _SCATTER, _COPY):
        yield from gm.graph.find_nodes(op="call_function", target=target)


def written_arguments(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[Any]:
    """What `op`, called so, writes to; the members of a list one by one."""
    if not op._schema.is_mutable:
        return
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        yield from value if isinstance(value, (list, tuple)) else (value,)


def written_in(gm: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """The placeholders of `gm` to whose memory it writes."""
    return {
        memory
        for node in gm.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
        for argument in written_arguments(node.target, node.args, node.kwargs)
        if isinstance(argument, torch.fx.Node) and (memory := memory_of(argument)).op == "placeholder"
    }


def restate_scatters(gm: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """Let every `as_strided_scatter` of `gm` work on a contiguous tensor from the start of the memory.

    Returns:
        The placeholders from the start of whose memory some `as_strided` counts.
    """
    for node in list(gm.graph.find_nodes(op="call_function", target=_SCATTER)):
        into, source, size, stride = node.args[:4]
        value = _value(into)
        given = _offset(node)
        start = int(value.storage_offset()) if given is None else given
        own = end(value.shape, value.stride(), int(value.storage_offset()))
        reach = end(size, stride, start)
        if value.storage_offset() == 0 and value.is_contiguous() and reach <= own:
            continue
        layout = list(map(int, value.shape)), list(map(int, value.stride())), int(value.storage_offset())
        with gm.graph.inserting_before(node):
            whole = gm.graph.call_function(_VIEW, (into, [max(own, reach)], [1], 0))
            changed = gm.graph.call_function(_SCATTER, (whole, source, size, stride, start))
            result = gm.graph.call_function(_VIEW, (changed, *layout))
        for new in (whole, changed, result):
            new.meta = dict(node.meta)
        # It has the layout of what was written into, which tracing does not note.
        result.meta["val"] = value
        node.replace_all_uses_with(result)
        gm.graph.erase_node(node)
    return {
        memory
        for node in _calls(gm)
        if _offset(node) is not None and (memory := memory_of(node.args[0])).op == "placeholder"
    }


def refuse_misread(gm: torch.fx.GraphModule) -> None:
    """Raise `UnsupportedNode` for an `as_strided` that generated code would count from somewhere else."""
    for node in _calls(gm):
        memory = memory_of(node.args[0])
        if _offset(node) is None or node.target is _SCATTER:
            continue
        starts_later = memory.op != "placeholder" and _value(memory).storage_offset() != 0
        if starts_later or (
            _value(memory).storage_offset() != 0
            and _value(memory).element_size() != _value(node).element_size()
        ):
            raise UnsupportedNode(node, "as_strided counts from the start of memory that is not known here")
    for module in gm.modules():
        if module is not gm and isinstance(module, torch.fx.GraphModule):
            for node in _calls(module):
                raise UnsupportedNode(node, "as_strided in a graph within a graph")
