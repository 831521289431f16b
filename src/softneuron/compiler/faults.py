"""Fault modes in compiled graphs, the same as the eager device's: put in below what PyTorch's users see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from softneuron.diagnostics.faults import Fault

aten = torch.ops.aten


def _embedding_table(node: torch.fx.Node) -> tuple[int, int] | None:
    """Rows and columns of the table that an embedding, whole or taken apart, picks rows of."""
    arguments: Any = node.args
    if node.target is aten.index.Tensor:
        picks_rows = arguments[0].meta["val"].dim() == 2 and len(arguments[1]) == 1
    else:
        picks_rows = node.target is aten.embedding.default
    if not picks_rows:
        return None
    rows, columns = arguments[0].meta["val"].shape
    return int(rows), int(columns)


def _product(node: torch.fx.Node) -> tuple[int, int] | None:
    """Inner and outer width of a matrix product, None for other operators."""
    arguments: Any = node.args
    if node.target is aten.mm.default:
        left, right = arguments
    elif node.target is aten.addmm.default:
        _, left, right = arguments[:3]
    else:
        return None
    left, right = left.meta["val"], right.meta["val"]
    return int(left.shape[1]), int(right.shape[1])


def _replace_result(gm: torch.fx.GraphModule, node: torch.fx.Node, number: float) -> None:
    with gm.graph.inserting_after(node):
        value = node.meta["val"]
        wrong = gm.graph.call_function(
            aten.full.default,
            (list(value.shape), number),
            {"dtype": value.dtype, "device": value.device, "pin_memory": False},
        )
    wrong.meta["val"] = value
    node.replace_all_uses_with(wrong)


def _first_result(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [user for user in node.users if user.args[1:] == (0,)]


def inject(gm: torch.fx.GraphModule, faults: Sequence[Fault]) -> None:
    """Make `gm` (a lowered graph with `val` metadata) wrong in the ways asked for."""
    skipped = {fault.argument for fault in faults if fault.name == "skip_layer"}
    nan_logits = any(fault.name == "nan_logits" for fault in faults)
    hidden = vocabulary = layer = -1
    for node in list(gm.graph.nodes):
        if node.op != "call_function":
            continue
        if (table := _embedding_table(node)) is not None:
            vocabulary, hidden = table
            layer = -1
        elif "_scaled_dot_product" in str(node.target):
            layer += 1
            if layer in skipped:
                for output in _first_result(node):
                    _replace_result(gm, output, 0.0)
        elif (widths := _product(node)) is not None:
            inner, outer = widths
            if nan_logits and outer == vocabulary:
                _replace_result(gm, node, float("nan"))
            elif layer in skipped and outer == hidden and inner != hidden:
                _replace_result(gm, node, 0.0)
    gm.recompile()
