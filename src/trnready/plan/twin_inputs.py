"""What a twin is fed besides token ids: pixel tensors, for those that look at images. A configuration class
brings no processor, so the tensors are made here. `trnready.plan.twin_run` asks."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

SEED = 11
GRID = 4
"""Patches along each side of the image; merging towers need an even number."""
MOST_IMAGE_TOKENS = 300


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a twin is fed: the prompt, with the places of an image in it, and tensors by their names."""

    prompt: tuple[int, ...]
    tensors: dict[str, Any] = field(default_factory=dict)


class NoImage(Exception):
    """The twin takes no image, or not one that can be made here."""


def with_image(model: nn.Module, prompt: Sequence[int]) -> Inputs:
    """Give the inputs with one image. Raises `NoImage`, and whatever the model raises on its pixels."""
    config: Any = model.config
    image_token = getattr(config, "image_token_id", None)
    if image_token is None:
        image_token = getattr(config, "image_token_index", None)
    vision = getattr(config, "vision_config", None)
    features_of = getattr(model, "get_image_features", None)
    if not isinstance(image_token, int) or vision is None or features_of is None:
        raise NoImage
    pixels, found = _seen(model, _pixels(vision, next(model.parameters()).dtype))
    count = _rows(found)
    if not 0 < count <= MOST_IMAGE_TOKENS:
        raise NoImage
    tokens = (*prompt[:2], *[image_token] * count, *prompt[2:])
    is_image = (torch.tensor([tokens]) == image_token).long()
    accepted = inspect.signature(model.forward).parameters
    marks = {name: is_image for name in ("mm_token_type_ids", "token_type_ids") if name in accepted}
    return Inputs(tokens, pixels | marks)


def _seen(model: Any, pixels: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Show the model one image, or one in a list of one; give the tensors it took and what it saw."""
    names = inspect.signature(inspect.unwrap(model.get_image_features)).parameters
    flat = pixels["pixel_values"]
    if "image_sizes" in names:
        pixels = pixels | {"image_sizes": torch.tensor([list(flat.shape[-2:])])}
    errors: list[Exception] = []
    for values in (flat, flat[None]):
        taken = {name: each for name, each in (pixels | {"pixel_values": values}).items() if name in names}
        try:
            with torch.no_grad():
                return taken, model.get_image_features(**taken)
        except Exception as error:
            errors.append(error)
    raise errors[0]


def _pixels(vision: Any, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(SEED)
    patch = getattr(vision, "patch_size", 14)
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    if hasattr(vision, "spatial_merge_size") and hasattr(vision, "temporal_patch_size"):
        width = channels * vision.temporal_patch_size * patch * patch
        return {
            "pixel_values": torch.randn((GRID * GRID, width), generator=generator).to(dtype),
            "image_grid_thw": torch.tensor([[1, GRID, GRID]]),
        }
    size = getattr(vision, "image_size", None) or GRID * patch
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return {"pixel_values": torch.randn((1, channels, height, width), generator=generator).to(dtype)}


def _rows(features: Any) -> int:
    """Give how many tokens an image becomes."""
    found = getattr(features, "pooler_output", None)
    if found is None:
        found = getattr(features, "last_hidden_state", features)
    parts = found if isinstance(found, list | tuple) else [found]
    return sum(each.reshape(-1, each.shape[-1]).shape[0] for each in parts)
