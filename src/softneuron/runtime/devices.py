"""Cores by number: count, current one, names and properties."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from types import TracebackType

import torch

from softneuron import _C
from softneuron.runtime import instances

Device = torch.device | int | str | None


def core_index(device: Device) -> int:
    """The core that `device` names, the current one for None or a bare `"neuron"`.

    Raises:
        ValueError: for a device of another type.
        RuntimeError: when the core does not exist.
    """
    if device is None:
        index = -1
    elif isinstance(device, int):
        index = device
    else:
        named = torch.device(device)
        if named.type != "neuron":
            raise ValueError(f"Expected a neuron device, but got: {named}")
        index = -1 if named.index is None else named.index
    return int(_C.checked_core(index))


def is_available() -> bool:
    """Whether this process has a NeuronCore."""
    return device_count() > 0


def device_count() -> int:
    """Number of logical NeuronCores visible to this process.

    0, with a warning that says why, where an environment variable cannot be understood.
    """
    count = int(_C.core_count())
    if count == 0:
        warnings.warn(f"neuron has no cores: {_C.configuration_failure()}", RuntimeWarning, stacklevel=2)
    return count


def current_device() -> int:
    """Number of the current core."""
    return int(_C.current_core())


def set_device(device: Device) -> None:
    """Make `device` the current core of this thread."""
    _C.use_cores()
    _C.exchange_core(core_index(device))


def synchronize(device: Device = None) -> None:
    """Wait for the core's work; a software core works in the caller's thread and is always done."""
    core_index(device)


@dataclass(frozen=True, slots=True)
class NeuronDeviceProperties:
    """`name` is the family (`"trn2"`), `total_memory` the core's memory in bytes."""

    name: str
    total_memory: int
    instance: str
    software: bool = True


def get_device_properties(device: Device = None) -> NeuronDeviceProperties:
    """What a core is: family, memory in bytes, the instance it stands for."""
    index = core_index(device)
    configuration = instances.read_configuration(os.environ)
    return NeuronDeviceProperties(
        name=configuration.family,
        total_memory=int(_C.core_memory(index)["limit"]),
        instance=configuration.instance,
    )


def get_device_name(device: Device = None) -> str:
    """A name for people; says that the core is software."""
    properties = get_device_properties(device)
    return f"neuron ({properties.name}, software NeuronCore)"


def get_device_capability(device: Device = None) -> None:
    """Neuron has no capability numbers."""
    core_index(device)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 works; on every Trainium generation it does."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes for `torch.autocast("neuron")`."""
    return [torch.bfloat16, torch.float16]


class device:
    """Context manager that makes a core current, as `torch.cuda.device` does. None or -1 changes nothing."""

    def __init__(self, device: Device) -> None:
        self._index = -1 if device is None or device == -1 else core_index(device)
        self._previous = -1

    def __enter__(self) -> None:
        self._previous = _C.exchange_core(self._index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C.exchange_core(self._previous)


class device_of(device):
    """Context manager that makes the core of a tensor current; other tensors change nothing."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "neuron" else None)
