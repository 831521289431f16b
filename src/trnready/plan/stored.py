"""What a checkpoint's files hold beside what Transformers builds of it: the difference said, and headers that
disagree with the configuration found. `trnready.plan.read` asks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trnready.hub.description import Stored

if TYPE_CHECKING:
    # It imports PyTorch, which the command line does without until it is needed.
    from trnready.plan.blueprint import Blueprint

MISSING_SHARE = 0.01
"""As much of a model as its files may lack; more is no checkpoint of it."""

_SCALE = re.compile(r"(_scale|_scale_inv|_scales|\.scales?|_zero_point)$")
_BUFFER = re.compile(r"(inv_freq|masked_bias|attn\.bias|attention\.bias|position_ids|causal_mask)$")
_MTP = re.compile(r"(^|\.)(mtp|nextn)")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


class Contradiction(ValueError):
    """The files do not hold what the configuration describes. The message is a clause for a sentence."""


def differences(tensors: Mapping[str, Stored], drawn: Blueprint, *, dequantized: bool) -> list[str]:
    """Give sentences that say what the files hold more or less than the built model. Raises
    `Contradiction`."""
    kinds = {"stored copies of tied weights": 0, "quantization scales": 0, "buffers": 0, "layers of MTP": 0}
    core = 0
    shapes = {piece.name: piece.shape for piece in drawn.plain.pieces}
    # Of tied weights a file may hold either name; Transformers ties what is there to what is not.
    absent = [shape for name, shape in shapes.items() if name not in tensors]
    last = max((int(found[1]) for name in shapes if (found := _LAYER.search(name))), default=-1)
    for name, tensor in tensors.items():
        elements = math.prod(tensor.shape)
        layer = _LAYER.search(name)
        if name in drawn.tied and tensor.shape in absent:
            absent.remove(tensor.shape)
            core += elements
        elif name in drawn.tied:
            kinds["stored copies of tied weights"] += elements
        elif _SCALE.search(name):
            kinds["quantization scales"] += elements
        elif name in drawn.buffers or (_BUFFER.search(name) and name not in shapes):
            kinds["buffers"] += elements
        elif _MTP.search(name) or (layer is not None and last >= 0 and int(layer[1]) > last):
            kinds["layers of MTP"] += elements
        else:
            core += elements
            if not dequantized and name in shapes and shapes[name] != tensor.shape:
                raise Contradiction(
                    f"{name} has the shape {_shape(tensor.shape)} in its file, and {_shape(shapes[name])} "
                    "by config.json"
                )
    notes = [f"The files hold {count:,} elements in {kind}." for kind, count in kinds.items() if count]
    if dequantized:
        return notes
    if core < drawn.parameters * (1 - MISSING_SHARE):
        raise Contradiction(
            f"its files hold {core:,} parameters, and config.json describes {drawn.parameters:,}"
        )
    if core != drawn.parameters:
        more = core - drawn.parameters
        notes.append(
            f"The files hold {abs(more):,} elements {'more' if more > 0 else 'fewer'} than are built."
        )
    return notes


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(each) for each in shape) or "()"
