"""What a twin is fed besides token ids: pixel tensors, for those that look at images. A configuration class
brings no processor, so the tensors are made here. `trnready.plan.twin_run` asks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trnready.plan.twin_beside import MOST_PLACES, SEED, image_beside, prompt_beside

GRID = 4
"""Patches along each side of the image; merging towers need an even number."""


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
    # Some classes leave it to the model inside.
    inside = getattr(model, "model", None)
    features_of = getattr(model, "get_image_features", None) or getattr(inside, "get_image_features", None)
    if not isinstance(image_token, int) or vision is None or features_of is None:
        return _beside(model, prompt)
    tensors, found = _seen(features_of, vision, prompt, next(model.parameters()).dtype)
    count = _rows(found)
    if not 0 < count <= MOST_PLACES:
        raise NoImage
    tokens = (*prompt[:2], *[image_token] * count, *prompt[2:])
    is_image = (torch.tensor([tokens]) == image_token).long()
    accepted = inspect.signature(model.forward).parameters
    marks = {name: is_image for name in ("mm_token_type_ids", "token_type_ids") if name in accepted}
    return Inputs(tokens, tensors | marks)


def _beside(model: nn.Module, prompt: Sequence[int]) -> Inputs:
    longer = prompt_beside(model, prompt)
    tensors = image_beside(model, longer)
    if tensors is None:
        raise NoImage
    return Inputs(longer, tensors)


def _seen(
    features_of: Any, vision: Any, prompt: Sequence[int], dtype: torch.dtype
) -> tuple[dict[str, Any], Any]:
    """Show the model one image in each of the forms that there are; give the tensors of the first that it
    took, and what it saw."""
    # What a wrapper passes on is named by the method of the model inside.
    outer = inspect.signature(inspect.unwrap(features_of)).parameters
    inner = getattr(getattr(features_of.__self__, "model", None), "get_image_features", None)
    names = {*outer, *(inspect.signature(inspect.unwrap(inner)).parameters if inner else ())}
    errors: list[Exception] = []
    for form in _forms(vision, names, dtype):
        taken = {name: each for name, each in form.items() if name in names}
        if "high_res_pixel_values" in names:
            taken["high_res_pixel_values"] = _large(features_of.__self__.config, dtype)
        if "qformer_input_ids" in names:
            taken["qformer_input_ids"] = torch.tensor([list(prompt)])
            taken["qformer_attention_mask"] = torch.ones_like(taken["qformer_input_ids"])
        try:
            with torch.no_grad():
                return taken, features_of(**taken)
        except Exception as error:
            errors.append(error)
    raise errors[0]


def _large(config: Any, dtype: torch.dtype) -> torch.Tensor:
    """Give the image for a second tower, which sees more of it."""
    size = config.high_res_vision_config.image_size
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn((1, 3, size, size), generator=generator).to(dtype)


def _forms(vision: Any, names: set[str], dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Give an image as the processors of different models do."""
    generator = torch.Generator().manual_seed(SEED)
    patch = getattr(vision, "patch_size", None) or 14
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    if isinstance(patch, list | tuple):
        patch = patch[0]
    if "image_grid_thw" in names:
        known = getattr(vision, "temporal_patch_size", None)
        grid = {
            "image_grid_thw": torch.tensor([[1, GRID, GRID]]),
            "image_merge_sizes": torch.tensor([getattr(vision, "spatial_merge_size", None) or 2]),
        }
        for depth in (known,) if known else (1, 2):
            width = channels * depth * patch * patch
            patches = torch.randn((GRID * GRID, width), generator=generator).to(dtype)
            yield {"pixel_values": patches} | grid
            yield {"pixel_values": patches.reshape(-1, depth * channels, patch, patch)} | grid
        return
    if "image_position_ids" in names:
        side = 2 * (getattr(vision, "pooling_kernel_size", None) or 1)
        places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(-1)
        yield {
            "pixel_values": torch.rand((1, side * side, channels * patch * patch), generator=generator).to(
                dtype
            ),
            "image_position_ids": places[None],
        }
        return
    if "spatial_shapes" in names:
        patches = torch.randn((1, GRID * GRID, channels * patch * patch), generator=generator).to(dtype)
        yield {
            "pixel_values": patches,
            "spatial_shapes": torch.tensor([[GRID, GRID]]),
            "pixel_attention_mask": torch.ones((1, GRID * GRID), dtype=torch.long),
        }
        return
    size = getattr(vision, "image_size", None) or GRID * patch
    height, width = size if isinstance(size, list | tuple) else (size, size)
    pixels = torch.randn((1, channels, height, width), generator=generator).to(dtype)
    sizes = {"image_sizes": torch.tensor([[height, width]])}
    for values in (pixels, pixels[None]):
        yield {"pixel_values": values}
        yield {"pixel_values": values} | sizes
    yield {
        "pixel_values": pixels[None],
        "pixel_attention_mask": torch.ones((1, 1, height, width), dtype=torch.long),
    }
    # An image cut in tiles comes with itself made small.
    yield {"pixel_values": torch.stack([pixels[0], pixels[0].flip(-1)])[None]} | sizes


def _rows(features: Any) -> int:
    """Give how many tokens an image becomes."""
    found = getattr(features, "pooler_output", None)
    if found is None:
        found = getattr(features, "last_hidden_state", features)
    parts = found if isinstance(found, list | tuple) else [found]
    return sum(each.reshape(-1, each.shape[-1]).shape[0] for each in parts)
