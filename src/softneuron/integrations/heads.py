"""Refuses tensor parallelism that would cut attention heads in two, before any weight is loaded. Called when
`transformers.distributed.tensor_parallel` is imported.

Stock Transformers loads such a model and fails in the middle of its first forward pass, with a shape that
names no head.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

_KINDS = {"q_proj": "heads", "k_proj": "KV heads", "v_proj": "KV heads"}
_CUT_BY_OUTPUT = "colwise"


class HeadsDoNotDivide(ValueError):
    """A tensor-parallel size that leaves a core with a part of an attention head."""


def tell_transformers_tensor_parallel(tensor_parallel: Any) -> None:
    """Let `transformers.distributed.tensor_parallel.apply_tensor_parallelism` look at the heads first."""
    stock = tensor_parallel.apply_tensor_parallelism

    @functools.wraps(stock)
    def apply_tensor_parallelism(model: Any, tp_mesh: Any, tp_plan: Mapping[str, str]) -> Any:
        if tp_mesh.device_type == "neuron":
            refuse_cut_heads(model, tp_mesh.size(), tp_plan)
        return stock(model, tp_mesh, tp_plan)

    tensor_parallel.apply_tensor_parallelism = apply_tensor_parallelism


def refuse_cut_heads(model: Any, size: int, tp_plan: Mapping[str, str]) -> None:
    """Raise `HeadsDoNotDivide` unless each of `size` ranks gets whole heads of every attention layer.

    `tp_plan` has a style for each parameter's name, as `apply_tensor_parallelism` takes it.
    """
    found: dict[tuple[str, int], str] = {}
    for name, style in tp_plan.items():
        if style == _CUT_BY_OUTPUT:
            for kind, count, place in _heads(model, name):
                found.setdefault((kind, count), place)
    if all(count % size == 0 for _, count in found):
        return
    counts = [count for _, count in found]
    whole = math.gcd(*counts)
    sizes = [each for each in range(1, whole + 1) if whole % each == 0]
    heads = " and ".join(f"{count} {kind}" for kind, count in found)
    place = next(iter(found.values()))
    raise HeadsDoNotDivide(
        f"tp_size={size} would cut attention heads of {type(model).__name__} in two: {place} has {heads}. "
        f"Sizes that divide them: {', '.join(map(str, sizes))}."
    )


def _heads(model: Any, parameter: str) -> list[tuple[str, int, str]]:
    """The kind and number of the heads that a projection's weight puts out, and its attention module."""
    projection, _, leaf = parameter.rpartition(".")
    place, _, name = projection.rpartition(".")
    if leaf != "weight" or name not in _KINDS:
        return []
    head_dim = getattr(model.get_submodule(place), "head_dim", None)
    width = model.get_parameter(parameter).shape[0]
    if not isinstance(head_dim, int) or head_dim < 1 or width % head_dim:
        return []
    return [(_KINDS[name], width // head_dim, place)]
