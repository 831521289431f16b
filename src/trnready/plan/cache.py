"""What a model keeps between tokens, measured on the cache itself: the model runs one token on the meta
device with the static cache that a test uses. `trnready.plan.blueprint` calls it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from trnready.plan.layout import CacheLayer


def cache_layers(model: nn.Module, tokens: int, splits_heads: bool) -> tuple[CacheLayer, ...]:
    """Give the layers of a static cache for one sequence of so many tokens. Empty for a model that keeps
    nothing, or whose cache cannot be laid out without its weights."""
    try:
        filled = _filled(model, tokens)
    except Exception:
        # Code that looks at values cannot run on the meta device; the layout is then told from the heads.
        filled = _laid_out(model, tokens)
    return tuple(_layer(each, splits_heads) for each in getattr(filled, "layers", ()))


def _layer(layer: Any, splits_heads: bool) -> CacheLayer:
    tensors = _tensors(layer)
    # States of a recurrence are whole on every core: no plan of Transformers' splits them.
    state = any("state" in name for name, _ in tensors)
    return CacheLayer(
        type(layer).__name__, sum(each.nbytes for _, each in tensors), splits_heads and not state
    )


def _tensors(layer: Any) -> list[tuple[str, torch.Tensor]]:
    """Give the tensors that a layer of a cache keeps, counters left out."""
    found = []
    for name, value in vars(layer).items():
        values: Any = value.values() if isinstance(value, dict) else value
        if isinstance(value, torch.Tensor):
            values = [value]
        elif not isinstance(value, dict | list | tuple):
            continue
        found += [(name, each) for each in values if isinstance(each, torch.Tensor) and each.ndim > 1]
    return found


def _filled(model: Any, tokens: int) -> Any:
    from transformers import StaticCache

    cache = StaticCache(config=model.config.get_text_config(decoder=True), max_cache_len=tokens)
    ids = torch.zeros((1, 1), dtype=torch.long, device="meta")
    changed = _skip_experts(model)
    try:
        with torch.no_grad():
            model(input_ids=ids, use_cache=True, **{_cache_argument(model): cache})
    finally:
        for module in changed:
            del module.forward
    if not any(_tensors(layer) for layer in cache.layers):
        raise RuntimeError("the model did not fill the cache")
    return cache


def _cache_argument(model: nn.Module) -> str:
    """Give the name that this model takes its cache by; it differs with the model and its age."""
    names = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "cache_params") if name in names), "past_key_values")


def _skip_experts(model: nn.Module) -> list[nn.Module]:
    """Which expert a token goes to depends on values, which there are none of; the cache does not."""
    experts: list[nn.Module] = [each for each in model.modules() if type(each).__name__.endswith("Experts")]
    for module in experts:
        module.forward = _same
    return experts


def _same(hidden_states: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
    return hidden_states


def _laid_out(model: Any, tokens: int) -> Any:
    """Lay a cache out by the number and size of the heads, as Transformers does before a chunked prefill."""
    from transformers import StaticCache

    text = model.config.get_text_config(decoder=True)
    try:
        cache = StaticCache(config=text, max_cache_len=tokens)
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        cache.early_initialization(1, heads, head_dim, model.dtype, torch.device("meta"))
    except Exception:
        return None
    return cache
