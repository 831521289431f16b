"""Collectives inside compiled graphs. Called by the compiler before a graph with collectives runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_CPU = torch.device("cpu")
_NEURON = torch.device("neuron")


def _groups(gm: torch.fx.GraphModule) -> Iterator[Any]:
    names = set()
    for node in gm.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "_c10d_functional":
            schema = node.target._schema
            names |= {
                value
                for argument, value in zip(schema.arguments, node.args, strict=False)
                if argument.name == "group_name"
            }
    for name in sorted(names):
        from torch.distributed.distributed_c10d import _resolve_process_group

        yield _resolve_process_group(name)


def serve_host_tensors(gm: torch.fx.GraphModule) -> None:
    """Let the groups that `gm` names carry CPU tensors: compiled code sees a core's memory as such.

    A group that PyTorch chose by itself for device neuron has no backend for
    the CPU; it gets the one it has for neuron, which takes both.
    """
    for group in _groups(gm):
        if _CPU not in group._device_types:
            kind = torch.distributed.ProcessGroup.BackendType.CUSTOM
            group._register_backend(_CPU, kind, group._get_backend(_NEURON))
