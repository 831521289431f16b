"""Images that a twin looks at beside its text: no token of the prompt stands for them, or the places that do
are told by a mask. `trnready.plan.twin_inputs` asks."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

SEED = 11
SIDE = 4
"""Patches along each side of an image that comes in patches."""
START = 2
"""Tokens of the prompt before an image that takes places in it."""

MOST_PLACES = 300
"""Tokens of the prompt that an image may take; more would take most of a sweep's time."""


def prompt_beside(model: nn.Module, prompt: Sequence[int]) -> tuple[int, ...]:
    """Give the prompt with the places, if any, that a mask gives to the image."""
    places = _places(model.config)
    return (*prompt[:START], *[prompt[0]] * places, *prompt[START:])


def image_beside(model: nn.Module, prompt: Sequence[int]) -> dict[str, Any] | None:
    """Give the tensors of one image by their names, in the model's type, for a prompt of `prompt_beside`;
    None when the model takes none of this kind."""
    config: Any = model.config
    vision = _vision(config)
    if vision is None or _places(config) > MOST_PLACES:
        return None
    accepted = inspect.signature(model.forward).parameters
    dtype = next(model.parameters()).dtype
    if config.model_type == "mllama":
        return _tile(vision, dtype)
    if "bbox" in accepted:
        boxes = torch.tensor([[0, 0, 500, 500]]).expand(len(prompt), 4) / 1000
        return {"bbox": boxes[None].contiguous(), "pixel_values": _pixels(vision, dtype)}
    if "flattened_patches" in accepted:
        patches = {"flattened_patches": _patches(vision, dtype)}
        if "image_embeds_position_mask" in accepted:
            return patches | {"image_embeds_position_mask": _marked(config, prompt)}
        return patches | {"attention_mask": torch.ones((1, SIDE * SIDE), dtype=torch.long)}
    if "pixel_values" not in accepted:
        return None
    pixels = _pixels(vision, dtype)
    if "image_embeds_position_mask" in accepted:
        return {"pixel_values": pixels, "image_embeds_position_mask": _marked(config, prompt)}
    if "image_attention_mask" in accepted:
        seen = torch.ones((1, len(prompt), 1), dtype=torch.long)
        return {"pixel_values": pixels[None], "image_attention_mask": seen}
    return {"pixel_values": pixels}


def _vision(config: Any) -> Any:
    """Give the configuration of what sees, wherever the model keeps it."""
    for name in ("vision_config", "encoder"):
        found = getattr(config, name, None)
        if found is not None:
            return found
    return config if hasattr(config, "image_size") else None


def _pixels(vision: Any, dtype: torch.dtype) -> torch.Tensor:
    """Give an image (1, channels, height, width)."""
    size = vision.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    shape = (1, getattr(vision, "num_channels", None) or 3, height, width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED)).to(dtype)


def _patches(vision: Any, dtype: torch.dtype) -> torch.Tensor:
    """Give an image in patches (1, patches, 2 + values), each behind its row and its column."""
    shape = (1, SIDE * SIDE, vision.patch_embed_hidden_size)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(SEED))
    places = torch.cartesian_prod(torch.arange(1, SIDE + 1), torch.arange(1, SIDE + 1)).float()
    return torch.cat([places[None], values], dim=-1).to(dtype)


def _places(config: Any) -> int:
    return int(getattr(config, "latent_query_num", 0))


def _marked(config: Any, prompt: Sequence[int]) -> torch.Tensor:
    """Mark the places of the prompt that the image takes."""
    mask = torch.zeros((1, len(prompt)), dtype=torch.long)
    mask[0, START : START + _places(config)] = 1
    return mask


def _tile(vision: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Give an image of one tile that the language model attends to."""
    generator = torch.Generator().manual_seed(SEED)
    tiles, size = vision.max_num_tiles, vision.image_size
    pixels = torch.zeros((1, 1, tiles, vision.num_channels, size, size))
    pixels[:, :, 0] = torch.randn(pixels[:, :, 0].shape, generator=generator)
    mask = torch.zeros((1, 1, tiles), dtype=torch.long)
    mask[..., 0] = 1
    return {
        "pixel_values": pixels.to(dtype),
        "aspect_ratio_ids": torch.ones((1, 1), dtype=torch.long),
        "aspect_ratio_mask": mask,
    }
