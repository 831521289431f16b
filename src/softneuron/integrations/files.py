"""safetensors straight to a core: its `safe_open` knows devices by a list of names, and any by number."""

from __future__ import annotations

import functools
from typing import Any


def tell_safetensors(safetensors: Any) -> None:
    """Let `safetensors.safe_open` understand `"neuron"`, `"neuron:1"` and `torch.device`s of neuron."""
    stock = safetensors.safe_open

    @functools.wraps(stock, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        return stock(filename, framework, device=_number(device), **options)

    safetensors.safe_open = safe_open


def _number(device: Any) -> Any:
    """The core's number for a device of neuron; anything else as it is."""
    if str(device).partition(":")[0] != "neuron":
        return device
    from softneuron.runtime.devices import core_index

    return core_index(device)
