"""Fault modes: `SOFTNEURON_FAULTS=name[:arg],…` makes the device wrong on purpose, for tests."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

VARIABLE = "SOFTNEURON_FAULTS"

FAULTS = {
    "nan_logits": "the product with the vocabulary gives NaN",
    "skip_layer": "attention and MLP of one layer (argument: its number, 0 by default) give zeros",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault mode that is on, with its argument (a layer, a size; 0 when none was given)."""

    name: str
    argument: int

    def __str__(self) -> str:
        return f"{self.name}:{self.argument}"


class UnknownFault(ValueError):
    """`SOFTNEURON_FAULTS` names a fault that does not exist."""


def parse_faults(text: str) -> tuple[Fault, ...]:
    """The faults in `"nan_logits,skip_layer:3"`.

    Raises:
        UnknownFault: for a name that is not in `FAULTS` or an argument that is no whole number.
    """
    faults = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, argument = part.partition(":")
        if name not in FAULTS or (argument and not argument.isdecimal()):
            raise UnknownFault(
                f"{VARIABLE}: {part!r} is no fault mode; there are {', '.join(FAULTS)}, "
                "each with a whole number behind a colon if need be"
            )
        faults.append(Fault(name, int(argument or 0)))
    return tuple(faults)


class FaultyDevice(Protocol):
    """The part of the C++ core that takes faults."""

    def enable_fault(self, name: str, argument: int) -> None: ...
    def configure_failed(self, message: str) -> None: ...


def enable_from_environment(device: FaultyDevice, environment: Mapping[str, str]) -> None:
    """Switch on what the environment asks for, with a warning; an unknown name makes the device unusable."""
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return
    try:
        faults = parse_faults(text)
    except UnknownFault as error:
        device.configure_failed(str(error))
        return
    warnings.warn(
        f"softneuron: this device is wrong on purpose ({VARIABLE}={text}).", RuntimeWarning, stacklevel=2
    )
    for fault in faults:
        device.enable_fault(fault.name, fault.argument)
