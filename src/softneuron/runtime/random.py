"""Random numbers of a core, by the names of `torch.cuda.random`. A seed gives the CPU's numbers."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from softneuron import _C
from softneuron.runtime.devices import Device, core_index


def default_generator(device: Device = None) -> torch.Generator:
    """The generator that a core's operators draw from."""
    generator: torch.Generator = _C.default_generator(core_index(device))
    return generator


def manual_seed(seed: int) -> None:
    """Seed the current core."""
    default_generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every core."""
    for core in range(_C.core_count()):
        default_generator(core).manual_seed(int(seed))


def seed() -> int:
    """Seed the current core from the system's entropy; the seed."""
    return default_generator().seed()


def seed_all() -> None:
    """Seed every core with one number from the system's entropy."""
    if _C.core_count():
        manual_seed_all(default_generator(0).seed())


def initial_seed() -> int:
    """The seed that the current core's sequence started from."""
    return default_generator().initial_seed()


def get_rng_state(device: Device = "neuron") -> torch.Tensor:
    """State of a core's generator: uint8 CPU tensor of shape [n]."""
    return default_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "neuron") -> None:
    """Restore what `get_rng_state` gave."""
    default_generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all cores, in their order."""
    return [get_rng_state(core) for core in range(_C.core_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore what `get_rng_state_all` gave."""
    for core, state in enumerate(new_states):
        set_rng_state(state, core)
