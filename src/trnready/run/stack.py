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

from trnready.verdict.rule import DeviceKind

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
except Exception:
    pass
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Stack:
    """What a result is filed under: the kind of device, its compiler's version, all versions."""

    device_kind: DeviceKind
    neuronx_cc: str
    versions: dict[str, str]

    @property
    def library_version(self) -> str:
        """Version of Transformers."""
        return self.versions.get("transformers", UNKNOWN)


def stack_of(versions: Mapping[str, str], device_nodes: Iterable[Path]) -> Stack:
    """Give the stack of a run from the versions it reported and the machine's Neuron device nodes.

    Hardware needs evidence: Neuron devices, an installed compiler, and a torch_neuronx that is not the
    software one. Everything else is software, by its own version or, without one, unknown.
    """
    device_version = versions.get("torch_neuronx", "")
    compiler = versions.get("neuronx-cc")
    if device_version.startswith(SOFTWARE_PREFIX):
        return Stack("software", device_version, dict(versions))
    if device_version and compiler and any(True for _ in device_nodes):
        return Stack("hardware", compiler, dict(versions))
    return Stack("software", UNKNOWN, dict(versions))


def device_nodes() -> list[Path]:
    """Give the Neuron devices of this machine, as the driver names them."""
    return sorted(path for path in Path("/dev").glob("neuron*") if re.fullmatch(r"neuron\d+", path.name))


def installed() -> dict[str, str]:
    """Give the versions of the stack without running a model: asked in a process of its own, since importing
    the device takes memory and time. What cannot be found is left out."""
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        answer = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=True
        )
        return {str(name): str(version) for name, version in json.loads(answer.stdout).items()}
    return {"python": platform.python_version()}


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
