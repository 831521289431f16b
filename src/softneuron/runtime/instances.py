"""Which machine the software cores stand for, read from the environment when the device is registered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

GIB = 1024**3


class ConfigurationError(ValueError):
    """An environment variable that cannot be understood. The message names it and what it takes."""


class Instance(NamedTuple):
    """An EC2 size: chips, physical cores per chip and device memory per chip in bytes.

    Sources: AWS's hardware pages for Trainium, Trainium2 and Trainium3.
    """

    name: str
    family: str
    chips: int
    cores_per_chip: int
    bytes_per_chip: int
    logical_config: int

    def cores(self, logical_config: int) -> int:
        """Logical NeuronCores of the whole machine."""
        return self.chips * self.cores_per_chip // logical_config

    def bytes_per_core(self, logical_config: int) -> int:
        """Device memory of one logical NeuronCore, in bytes."""
        return self.bytes_per_chip * logical_config // self.cores_per_chip


INSTANCES = {
    instance.name: instance
    for instance in (
        Instance("trn1.2xlarge", "trn1", 1, 2, 32 * GIB, 1),
        Instance("trn1.32xlarge", "trn1", 16, 2, 32 * GIB, 1),
        Instance("trn1n.32xlarge", "trn1n", 16, 2, 32 * GIB, 1),
        Instance("trn2.3xlarge", "trn2", 1, 8, 96 * GIB, 2),
        Instance("trn2.48xlarge", "trn2", 16, 8, 96 * GIB, 2),
        Instance("trn2u.48xlarge", "trn2u", 16, 8, 96 * GIB, 2),
        Instance("trn3", "trn3", 1, 8, 144 * GIB, 2),
    )
}
DEFAULT_INSTANCE = "trn2.3xlarge"
CUSTOM = "custom"


class Configuration(NamedTuple):
    """The cores of this process: their machine, how many are visible, bytes of memory each.

    `default_core` is the core that `LOCAL_RANK` picks; one that is not there is
    an error at first use.
    """

    instance: str
    family: str
    cores: int
    bytes_per_core: int
    default_core: int


_UNITS = {"": 1, "b": 1, "kib": 1024, "mib": 1024**2, "gib": GIB, "tib": 1024**4}


def parse_bytes(text: str) -> int:
    """`"64MiB"`, `"24 GiB"` or a plain number of bytes, as an int > 0.

    Raises:
        ConfigurationError: for anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigurationError(f"{text!r} is no size; write bytes or a unit, for example 64MiB or 24GiB")
    size = int(float(match[1]) * _UNITS[match[2].lower()])
    if size < 1:
        raise ConfigurationError(f"{text!r} is no size: it must be more than nothing")
    return size


def parse_cores(text: str) -> tuple[int, ...]:
    """Core numbers from `"0"`, `"0-3"` (inclusive), `"3,4,5"` or `"0-1,4"`, in the order given.

    Raises:
        ConfigurationError: for anything else, and for a core named twice.
    """
    cores: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            raise ConfigurationError(f"{text!r} names no cores; write 0, 0-3 or 3,4,5")
        first = int(match[1])
        last = int(match[2]) if match[2] is not None else first
        if last < first or last - first > 4096:
            raise ConfigurationError(f"{text!r} names no cores: {part.strip()} is no range")
        cores.extend(range(first, last + 1))
    if len(set(cores)) != len(cores):
        raise ConfigurationError(f"{text!r} names a core twice")
    return tuple(cores)


def _number(environment: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        raise ConfigurationError(f"{name}={text!r} is not understood: it takes a whole number from {least}")
    return int(text)


def read_configuration(environment: Mapping[str, str]) -> Configuration:
    """The cores that these environment variables ask for.

    Raises:
        ConfigurationError: names the variable, its value and what it takes.
    """
    name = environment.get("SOFTNEURON_INSTANCE", "").strip() or DEFAULT_INSTANCE
    if name == CUSTOM:
        count = _number(environment, "SOFTNEURON_CORES", 4, 1)
        machine = Instance(CUSTOM, "trn2", 1, count, count * 24 * GIB, 1)
        logical = 1
    elif name in INSTANCES:
        machine = INSTANCES[name]
        logical = _number(environment, "NEURON_LOGICAL_NC_CONFIG", machine.logical_config, 1)
        allowed = (1,) if machine.family.startswith("trn1") else (1, 2)
        if logical not in allowed:
            raise ConfigurationError(
                f"NEURON_LOGICAL_NC_CONFIG={logical} does not exist on {name}: "
                f"it takes {' or '.join(map(str, allowed))}"
            )
    else:
        raise ConfigurationError(
            f"SOFTNEURON_INSTANCE={name!r} is not known: it takes {', '.join((*INSTANCES, CUSTOM))}"
        )

    total = machine.cores(logical)
    cores = total
    visible = environment.get("NEURON_RT_VISIBLE_CORES", "").strip()
    if visible:
        try:
            chosen = parse_cores(visible)
        except ConfigurationError as error:
            raise ConfigurationError(f"NEURON_RT_VISIBLE_CORES: {error}") from None
        absent = [core for core in chosen if core >= total]
        if absent:
            raise ConfigurationError(
                f"NEURON_RT_VISIBLE_CORES={visible} asks for core {absent[0]}, "
                f"but {name} has {total} (0-{total - 1})"
            )
        cores = len(chosen)
    else:
        cores = _number(environment, "NEURON_RT_NUM_CORES", 0, 0) or total
        if cores > total:
            raise ConfigurationError(f"NEURON_RT_NUM_CORES={cores}: {name} has {total} cores")

    size = machine.bytes_per_core(logical)
    wanted = environment.get("SOFTNEURON_HBM_PER_CORE", "").strip()
    if wanted:
        try:
            size = parse_bytes(wanted)
        except ConfigurationError as error:
            raise ConfigurationError(f"SOFTNEURON_HBM_PER_CORE: {error}") from None
    return Configuration(
        instance=name,
        family=machine.family,
        cores=cores,
        bytes_per_core=size,
        # A launcher may also leave each rank one visible core, its own.
        default_core=_number(environment, "LOCAL_RANK", 0, 0) if cores > 1 else 0,
    )


class CoreRegistry(Protocol):
    """The part of the C++ core that takes a configuration."""

    def configure_cores(self, count: int, default_core: int) -> None: ...
    def configure_failed(self, message: str) -> None: ...
    def set_core_limit(self, core: int, bytes: int) -> None: ...
    def set_poison(self, on: bool) -> None: ...


def configure(core: CoreRegistry, environment: Mapping[str, str]) -> None:
    """Hand the environment's configuration to the C++ core; a bad value is raised there at first use."""
    try:
        configuration = read_configuration(environment)
    except ConfigurationError as error:
        core.configure_failed(str(error))
        return
    core.configure_cores(configuration.cores, configuration.default_core)
    for index in range(configuration.cores):
        core.set_core_limit(index, configuration.bytes_per_core)
    core.set_poison(environment.get("SOFTNEURON_POISON", "") == "1")
