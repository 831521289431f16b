"""Where Accelerate and Transformers put a model when they are left to choose.

Stock Accelerate 1.15 does not list Neuron, so `device_map="auto"` ends on the CPU, on Trainium too; neither
does stock Transformers, so `pipeline(device=0)` and `pipeline()` do. Here they do as well, with a warning
that says what to write; `SOFTNEURON_AUTO_PLACEMENT=1` lets them use the cores. Accelerate 1.16 takes any
accelerator that PyTorch knows, and its choice is left alone.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from typing import Any

SWITCH = "SOFTNEURON_AUTO_PLACEMENT"
_LIBRARIES = ("accelerate", "softneuron", "transformers", "functools")


class EndsOnCpuWarning(UserWarning):
    """A model was left to a library that does not know neuron, and ends on the CPU."""


def wanted() -> bool:
    """Whether the cores may be chosen. Raises ValueError for a value that is neither 0 nor 1."""
    value = os.environ.get(SWITCH, "").strip()
    if value not in ("", "0", "1"):
        raise ValueError(f"{SWITCH}={value!r} is not understood: it takes 0 or 1")
    return value == "1"


@functools.cache
def _warn_once(what: str, library: str, instead: str) -> None:
    warnings.warn(
        f"{what} puts this model on the CPU: {library} does not choose neuron, on Trainium neither. "
        f"Write {instead} to put it on a core. ({SWITCH}=1 lets software cores be chosen.)",
        EndsOnCpuWarning,
        stacklevel=_levels_to_the_caller(),
    )


def _levels_to_the_caller() -> int:
    """How far up from `_warn_once` the code is that called the library."""
    level, frame = 1, sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    return level


def tell_accelerate(modeling: Any) -> None:
    """Teach `accelerate.utils.modeling` how much memory the cores have, where that is wanted.

    From 1.16 on it knows without: it asks PyTorch for the accelerator.
    """
    if hasattr(modeling, "get_torch_accelerator_backend"):
        return
    stock = modeling.get_max_memory

    @functools.wraps(stock)
    def get_max_memory(max_memory: dict[Any, Any] | None = None) -> Any:
        from softneuron.runtime.devices import device_count, is_available
        from softneuron.runtime.memory import mem_get_info

        if not is_available():
            return stock(max_memory)
        if not wanted():
            if max_memory is None:
                _warn_once('device_map="auto"', "Accelerate 1.15", 'device_map="neuron"')
            return stock(max_memory)
        cores = range(device_count())
        if max_memory is None:
            return {core: mem_get_info(core)[0] for core in cores} | {"cpu": stock(None)["cpu"]}
        # As in the stock function the caller's dictionary is what changes: Transformers compares with it.
        for key, size in max_memory.items():
            if isinstance(size, str):
                max_memory[key] = modeling.convert_file_size_to_int(size)
        # The stock function does not know the cores' numbers; it has the rest.
        here = {key: max_memory[key] for key in sorted(key for key in max_memory if key in cores)}
        rest = {key: size for key, size in max_memory.items() if key not in here}
        return here | (stock(rest) if rest else {})

    modeling.get_max_memory = get_max_memory


def tell_transformers_loading(integration: Any) -> None:
    """Let `device_map="auto"` fill one core after the other, where the cores may be chosen.

    Stock Transformers spreads a model over every device, even one that fits on the first; a model in pieces
    is no faster on cores.
    """
    stock = integration._get_device_map

    @functools.wraps(stock)
    def _get_device_map(model: Any, device_map: Any, *args: Any, **options: Any) -> Any:
        from softneuron.runtime.devices import is_available

        automatic = isinstance(device_map, str) and device_map == "auto"
        if automatic and wanted() and is_available():
            device_map = "sequential"
        return stock(model, device_map, *args, **options)

    integration._get_device_map = _get_device_map


def tell_transformers_pipelines(base: Any) -> None:
    """Let `transformers.pipelines.base.Pipeline` warn, or take a core for a number, where that is wanted."""
    stock = base.Pipeline.__init__

    @functools.wraps(stock)
    def __init__(self: Any, model: Any, *args: Any, device: Any = None, **options: Any) -> None:
        import torch

        from softneuron.runtime.devices import is_available

        placed = getattr(model, "hf_device_map", None) is not None
        left_open = (device is None and not placed) or (type(device) is int and device >= 0)
        if left_open and is_available():
            if wanted():
                at = getattr(model, "device", None)
                stays = device is None and at is not None and at.type == "neuron"
                device = at if stays else torch.device("neuron", device or 0)
            else:
                what = "pipeline() without a device" if device is None else f"pipeline(device={device})"
                line = "neuron" if device is None else f"neuron:{device}"
                _warn_once(what, "Transformers", f'pipeline(..., device="{line}")')
        stock(self, model, *args, device=device, **options)

    base.Pipeline.__init__ = __init__
