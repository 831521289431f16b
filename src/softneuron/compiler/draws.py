"""Random draws that AOTAutograd restates as others. Called by `graph` and `build`.

A seed gives a compiled graph the numbers of eager, unless the restated graph draws more of them or in
another order.
"""

from __future__ import annotations

from typing import Any

import torch

from softneuron.compiler.errors import HOW_TO_RUN_ANYWAY, GraphRefused
from softneuron.compiler.lower import users_line

_BERNOULLI = torch.ops.aten.bernoulli.p


def refuse_another_order(gm: torch.fx.GraphModule) -> None:
    """Raise `GraphRefused` for a `bernoulli_(p)` that may have filled a tensor that is not row-major.

    In place, eager draws in the order of memory. The graph has it out of place, which draws row by row.
    """
    for node in gm.graph.find_nodes(op="call_function", target=_BERNOULLI):
        filled = node.args[0].meta["val"]
        if not filled.is_contiguous():
            raise GraphRefused(
                f"{node.name} ({users_line(node)}): a compiled graph cannot draw bernoulli_(p), or dropout "
                "in place, into a tensor that is not contiguous. Give it a contiguous() one.\n"
                f"{HOW_TO_RUN_ANYWAY}"
            )


def drop_everything(values: torch.Tensor, p: float, train: bool | None) -> Any:
    """`native_dropout` of probability 1, as eager's `dropout` does it: it draws nothing."""
    if p != 1 or train is False:
        return NotImplemented
    return values * 0, torch.zeros_like(values, dtype=torch.bool)
