"""The software and the machine that a run was on: device kind, compiler, packages. `trnready.check` writes it
into the row; whether a result may be called one from hardware is decided here and nowhere else."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from trnready.errors import TrnreadyError

DeviceKind = Literal["hardware", "software"]
"""Trainium, or software cores on a host CPU."""

SOFTWARE_PREFIX = "soft-"
FAULTS_SUFFIX = "+faults"
UNKNOWN = "unknown"

_PROBE = """
import importlib, json, platform, sys
from importlib import metadata
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
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


class NoInterpreter(TrnreadyError):
    """What was named as the Python to test with is none."""


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

    def version_of(self, library: str) -> str:
        """Give the version of a library."""
        return self.versions.get(library, UNKNOWN)


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


def is_broken_on_purpose(neuronx_cc: str) -> bool:
    """Say whether a row's compiler is that of a software device with injected faults (SOFTNEURON_FAULTS),
    whose results say nothing about models."""
    return neuronx_cc.endswith(FAULTS_SUFFIX)


def this_machine() -> Machine:
    """Give what the machine says of itself: the Neuron driver's devices, and EC2's name for the instance."""
    nodes = (path for path in Path("/dev").glob("neuron*") if re.fullmatch(r"neuron\d+", path.name))
    product = None
    with suppress(OSError):
        product = Path("/sys/devices/virtual/dmi/id/product_name").read_text(errors="replace").strip()
    known = product is not None and re.fullmatch(r"(trn|inf)\d\w*\.\w+", product) is not None
    return Machine(tuple(sorted(nodes)), product if known else None)


def installed(python: str, libraries: Iterable[str]) -> Stack:
    """Give the stack of an interpreter, with these libraries, without running a model: asked in a process of
    its own, since importing the device takes memory and time. What cannot be found is left out."""
    answer: dict[str, object] = {}
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        names = (*libraries, "torch-neuronx", "neuronx-cc")
        ran = subprocess.run(
            [python, "-c", _PROBE, *names], capture_output=True, text=True, timeout=120, check=True
        )
        answer = json.loads(ran.stdout)
    instance = answer.pop("instance", None)
    versions = {name: str(version) for name, version in answer.items()}
    return stack_of(versions, instance if isinstance(instance, str) else None, this_machine())


def host_cpu() -> str | None:
    """Give the host CPU's own name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, separator, value = line.partition(":")
            if separator and name.strip() == "model name":
                return value.strip()
    return platform.processor() or None


def packages(
    python: str, names: Iterable[str], imported_later: Mapping[str, str], versions: Mapping[str, str]
) -> list[str]:
    """Give what to install on top of the Neuron stack, as pip takes it, in the versions that ran: what the
    script itself imports, and those optional packages of its libraries that running this model imported
    besides."""
    wanted = [_plain(name) for name in names]
    later = {_plain(name): version for name, version in imported_later.items()}
    more = set(later) - set(wanted) - DEVICE - WHENEVER_THERE
    if more:
        brought, optional = _requirements(python, wanted)
        more = more & optional - brought
    found = {**versions, **later}
    listed = (*wanted, *sorted(more))
    return [f"{name}=={found[name]}" if name in found else name for name in listed]


def missing(python: str, names: Iterable[str]) -> list[str]:
    """Give those of these packages that the environment of an interpreter does not have. Raises
    `NoInterpreter`."""
    if python == sys.executable:
        return [name for name in names if not _is_here(name)]
    command = [python, "-c", _MISSING, *names]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return [str(name) for name in json.loads(ran.stdout)]
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, subprocess.SubprocessError):
        why = "it does not run Python"
    raise NoInterpreter(f"{python} is no interpreter to test with: {why}.")


_MISSING = """
import json, sys
from importlib import metadata
there = {(each.metadata["Name"] or "").lower().replace("_", "-") for each in metadata.distributions()}
print(json.dumps([name for name in sys.argv[1:] if name not in there]))
"""


def _is_here(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


WHENEVER_THERE = frozenset({"gguf", "librosa", "pandas", "pillow", "scikit-learn", "scipy", "soundfile"})
"""Packages that Transformers imports whenever they are installed, needed or not."""

DEVICE_ONLY = frozenset({"torch-neuronx", "torch_neuronx", "neuronx-cc"})
"""Names in a table of versions that the CPU's numbers do not depend on."""


def without_device(versions: Mapping[str, str]) -> dict[str, str]:
    """Give the versions that the CPU's numbers may depend on."""
    return {name: version for name, version in versions.items() if name not in DEVICE_ONLY}


DEVICE = frozenset({"torch", "torch-neuronx", "neuronx-cc", "trnready"})
"""The stack itself: PyTorch, AWS's backend and compiler, the software device."""

_REQUIREMENTS = """
import json, re, sys
from importlib import metadata
plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()
brought, optional, left = set(), set(), ["torch", *sys.argv[1:]]
while left:
    name = plain(left.pop())
    if name in brought:
        continue
    brought.add(name)
    try:
        needs = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        continue
    for need in needs:
        needed = plain(re.match(r"[\\w.-]+", need)[0])
        if "extra ==" not in need:
            left.append(needed)
        elif name in sys.argv[1:]:
            optional.add(needed)
print(json.dumps([sorted(brought), sorted(optional)]))
"""


def _requirements(python: str, names: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Give all that PyTorch and these packages bring along, and what is an option of theirs, by plain
    names."""
    command = [python, "-c", _REQUIREMENTS, *names]
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        brought, optional = json.loads(ran.stdout)
        return frozenset(brought), frozenset(optional)
    return frozenset(), frozenset()


def _plain(name: str) -> str:
    """Give a package's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
