"""Says in words what fills a core's memory; the C++ core asks when it is out of memory."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch

Block = tuple[int, int]
"""Address and bytes."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def human_bytes(count: int) -> str:
    """`1536` as `1.50 KiB`."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.{2 if unit else 0}f} {_UNITS[unit]}"


def describe_biggest(core: int, blocks: Sequence[Block]) -> str:
    """A sentence that names the biggest blocks of a core, to be put behind an error's text.

    A tensor is named by dtype and shape, a parameter or buffer by its place in its model too. A block that
    no Python object holds is kept by the autograd graph or is a kernel's scratch.

    Meanwhile every object is held: what other threads free in these milliseconds is given back at the end.
    """
    tensors, modules = _living(torch.Tensor, torch.nn.Module)
    shown = _tensors_by_address(tensors, core, {address for address, _ in blocks})
    names = _names_in_modules(modules, shown)
    words = [f"{human_bytes(size)} {_words(shown.get(address), names)}" for address, size in blocks]
    return f" Biggest live tensors: {'; '.join(words)}."


def _living(*kinds: type) -> tuple[list[Any], ...]:
    """The objects of each kind that Python's garbage collector knows, in one walk over all of them."""
    found: tuple[list[Any], ...] = tuple([] for _ in kinds)
    places: dict[type, list[Any] | None] = {}
    for thing in gc.get_objects():
        # By the type alone: asking a proxy for its class may run any code.
        kind = type(thing)
        try:
            place = places[kind]
        except KeyError:
            place = next(
                (list_ for wanted, list_ in zip(kinds, found, strict=True) if wanted in kind.__mro__), None
            )
            places[kind] = place
        if place is not None:
            place.append(thing)
    return found


def _words(tensor: torch.Tensor | None, names: dict[int, str]) -> str:
    if tensor is None:
        return "(held by no Python object: saved for the backward pass, or scratch)"
    place = names.get(id(tensor))
    shape = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    return f"{shape} {place}" if place else shape


def _tensors_by_address(
    tensors: Sequence[torch.Tensor], core: int, addresses: set[int]
) -> dict[int, torch.Tensor]:
    """For each address of a storage the tensor that shows most of it; parameters go first."""
    found: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        try:
            if tensor.device.type != "neuron" or tensor.device.index != core:
                continue
            # Not through `untyped_storage`: a Python object of a storage lives as long as the storage, and a
            # thread of the backward pass that drops it while the interpreter ends would abort the process.
            address = int(tensor.data_ptr() - tensor.storage_offset() * tensor.element_size())
        except (RuntimeError, NotImplementedError, TypeError):  # a fake or wrapped tensor has no storage
            continue
        best = found.get(address)
        if address in addresses and (best is None or _weight(tensor) > _weight(best)):
            found[address] = tensor
    return found


def _weight(tensor: torch.Tensor) -> tuple[bool, int]:
    return isinstance(tensor, torch.nn.Parameter), tensor.numel() * tensor.element_size()


def _names_in_modules(modules: Sequence[torch.nn.Module], tensors: dict[int, torch.Tensor]) -> dict[int, str]:
    """Names such as `Model.layers.0.mlp.up_proj.weight`, by the identity of the tensor."""
    wanted = {id(tensor) for tensor in tensors.values()}
    inner = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    names: dict[int, str] = {}
    for root in modules:
        if id(root) in inner or "_modules" not in root.__dict__:
            continue
        for name, tensor in [*root.named_parameters(), *root.named_buffers()]:
            if id(tensor) in wanted:
                names.setdefault(id(tensor), f"{type(root).__name__}.{name}")
    return names
