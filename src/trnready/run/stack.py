"""The software and the machine that a run was on: device kind, compiler, packages. `trnready.check` writes it
into the row; whether a result may be called one from hardware is decided here and nowhere else."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DeviceKind = Literal["hardware", "software"]
"""Trainium, or software cores on a host CPU."""

SOFTWARE_PREFIX = "soft-"
UNKNOWN = "unknown"

_PROBE = """
import importlib, json, platform
from importlib import metadata
found = {"python": platform.python_version()}
for name in "torch transformers tokenizers safetensors accelerate torch-neuronx neuronx-cc".split():
    try:
        found[name] = metadata.version(name)
    except Exception:
        pass
try:
    import torch
    found["torch_neuronx"] = str(importlib.import_module("torch_neuronx").__version__)
    found["instance"] = str(torch.neuron.get_device_properties(0).instance)
except Exception:
    pass
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """The host: Neuron devices as the driver names them, and the instance type if it is one of EC2's."""

    device_nodes: tuple[Path, ...]
    instance: str | None


@dataclass(frozen=True, slots=True)
class Stack:
    """What a result is filed under: the kind of device, its compiler's version, all versions, the machine."""

    device_kind: DeviceKind
    neuronx_cc: str
    versions: dict[str, str]
    instance: str | None

    @property
    def library_version(self) -> str:
        """Version of Transformers."""
        return self.versions.get("transformers", UNKNOWN)


def stack_of(versions: Mapping[str, str], instance: str | None, machine: Machine) -> Stack:
    """Give the stack of a run from what it reported and the machine it was on.

    Hardware needs evidence: Neuron devices, an installed compiler, and a torch_neuronx that is not the
    software one. Everything else is software, by its own version or, without one, unknown.
    """
    device_version = versions.get("torch_neuronx", "")
    compiler = versions.get("neuronx-cc")
    if device_version.startswith(SOFTWARE_PREFIX):
        return Stack("software", device_version, dict(versions), instance)
    if device_version and compiler and machine.device_nodes:
        return Stack("hardware", compiler, dict(versions), instance or machine.instance)
    return Stack("software", UNKNOWN, dict(versions), instance)


def this_machine() -> Machine:
    """Give what the machine says of itself: the Neuron driver's devices, and EC2's name for the instance."""
    nodes = (path for path in Path("/dev").glob("neuron*") if re.fullmatch(r"neuron\d+", path.name))
    product = None
    with suppress(OSError):
        product = Path("/sys/devices/virtual/dmi/id/product_name").read_text(errors="replace").strip()
    known = product is not None and re.fullmatch(r"(trn|inf)\d\w*\.\w+", product) is not None
    return Machine(tuple(sorted(nodes)), product if known else None)


def installed() -> Stack:
    """Give the stack without running a model: asked in a process of its own, since importing the device takes
    memory and time. What cannot be found is left out."""
    answer: dict[str, object] = {}
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        ran = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=True
        )
        answer = json.loads(ran.stdout)
    instance = answer.pop("instance", None)
    versions = {"python": platform.python_version()} | {
        name: str(version) for name, version in answer.items()
    }
    return stack_of(versions, instance if isinstance(instance, str) else None, this_machine())


def host_cpu() -> str | None:
    """Give the host CPU's own name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, separator, value = line.partition(":")
            if separator and name.strip() == "model name":
                return value.strip()
    return platform.processor() or None


def packages(names: Iterable[str], versions: Mapping[str, str]) -> list[str]:
    """Give what to install on top of the Neuron stack, as pip takes it: these packages in the versions that
    ran."""
    return [f"{name}=={versions[name]}" if name in versions else name for name in names]
