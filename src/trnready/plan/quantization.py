"""What a checkpoint's quantization means for a run: Transformers dequantizes FP8 and MXFP4 where no kernel
for them is there, so that the executed type counts; every other kind is refused. `trnready.plan.read`
asks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

DEQUANTIZED = {"fp8": "FP8", "mxfp4": "MXFP4"}
"""Methods whose checkpoints are dequantized while loading, by their names in config.json."""

_IN_NAMES = re.compile(
    r"gptq|awq|gguf|mlx|exl[23]|bnb|bitsandbytes|aqlm|hqq|vptq|eetq|autoround|auto-round|smoothquant|quantized|"
    r"compressed-tensors|(?:nv|mx)?fp[468]|int[48]|w[248]a(?:4|8|16)|[2-8]-?bit|q[2-8]_[0k](?:_[sml])?",
    re.IGNORECASE,
)
"""Words by which the makers of quantized checkpoints name them."""


def stored_as(config: Mapping[str, Any]) -> str | None:
    """Give the name of the type that a checkpoint will be dequantized from, or None for a plain one."""
    return DEQUANTIZED.get(_method(config) or "")


def refusal(config: Mapping[str, Any]) -> str | None:
    """Say why a quantized checkpoint cannot be run, or None where it can."""
    for table in (config, *_inner(config)):
        if "quantization_config" in table and table["quantization_config"] is not None:
            method = _method(config)
            if method is None:
                return "it is quantized, and its quantization_config names no quant_method to undo that with"
            if method not in DEQUANTIZED:
                return f"it is quantized with {method}, which needs a package or device that is not here"
        quantization = table.get("quantization")
        if isinstance(quantization, Mapping) and "bits" in quantization and "group_size" in quantization:
            return f"it is quantized for MLX ({quantization['bits']} bits), which Transformers cannot load"
    return None


def in_name(model_id: str) -> str | None:
    """Give the kind of quantization that a model's name tells of, as it is written there, or None. A name is
    no proof; it is all that a list of models holds."""
    if "unquantized" in model_id.lower():
        return None
    for found in _IN_NAMES.finditer(model_id):
        around = model_id[: found.start()][-1:], model_id[found.end() :][:1]
        if not any(each.isalnum() for each in around):
            return found.group()
    return None


def without(config: Mapping[str, Any]) -> dict[str, Any]:
    """Give the configuration as it is once dequantized."""
    plain = {name: value for name, value in config.items() if name != "quantization_config"}
    for name, value in plain.items():
        if isinstance(value, Mapping) and "quantization_config" in value:
            plain[name] = {key: each for key, each in value.items() if key != "quantization_config"}
    return plain


def _method(config: Mapping[str, Any]) -> str | None:
    for table in (config, *_inner(config)):
        settings = table.get("quantization_config")
        if isinstance(settings, Mapping):
            method = settings.get("quant_method")
            return method if isinstance(method, str) else None
    return None


def _inner(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in config.values() if isinstance(each, Mapping)]
