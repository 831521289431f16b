"""The name of a compiled graph: a digest of all that its machine code depends on. Called by `graph`."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from softneuron import COMPILER_VERSION
from softneuron.compiler.lower import Lowered


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What besides the graph decides the machine code: compiler, PyTorch, and the CPU's instruction set."""

    compiler: str
    torch: str
    cpu: str


@functools.cache
def toolchain() -> Toolchain:
    """The toolchain of this process."""
    return Toolchain(COMPILER_VERSION, torch.__version__, _cpu_digest(_cpu_flags()))


def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return " ".join(sorted(value.split()))
    return str(torch.backends.cpu.get_cpu_capability())


def _cpu_digest(flags: str) -> str:
    digest = hashlib.sha256(f"{platform.machine()} {flags}".encode()).hexdigest()[:12]
    return f"{platform.machine()}-{digest}"


def _describe_tensor(value: torch.Tensor) -> str:
    start = f"+{value.storage_offset()}" if value.storage_offset() else ""
    return f"{value.dtype}{list(value.shape)}/{list(value.stride())}{start}"


def _describe_target(target: Any) -> str:
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"


def _describe_constant(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        with unset_fake_temporarily():
            data = value.detach().cpu().contiguous()
            content = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
        return f"{_describe_tensor(value)}#{hashlib.sha256(content).hexdigest()}"
    if isinstance(value, torch.fx.GraphModule):
        return "{" + "; ".join(describe_graph(value)) + "}"
    return f"{type(value).__name__}:{value!r}"


def describe_graph(gm: torch.fx.GraphModule) -> Iterator[str]:
    """One line per node, free of the names that tracing happened to give."""
    number = {node: index for index, node in enumerate(gm.graph.nodes)}

    def describe(value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return f"%{number[value]}"
        if isinstance(value, (list, tuple)):
            return f"({','.join(map(describe, value))})"
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}={describe(item)}" for key, item in value.items()) + "}"
        if isinstance(value, slice):
            return f"slice({describe(value.start)},{describe(value.stop)},{describe(value.step)})"
        return f"{type(value).__name__}:{value!r}"

    for node in gm.graph.nodes:
        if node.op == "get_attr":
            yield f"get_attr {_describe_constant(getattr(gm, node.target))}"
            continue
        target = "" if node.op in ("placeholder", "output") else _describe_target(node.target)
        yield f"{node.op} {target} {describe(node.args)} {describe(node.kwargs)}"


def graph_key(lowered: Lowered, tools: Toolchain) -> str:
    """32 hexadecimal digits, equal for equal graphs, shapes, strides, dtypes, constants and toolchains."""
    digest = hashlib.sha256()
    for part in (tools.compiler, tools.torch, tools.cpu, *map(_describe_tensor, lowered.example_inputs)):
        digest.update(part.encode() + b"\n")
    for line in describe_graph(lowered.module):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:32]
