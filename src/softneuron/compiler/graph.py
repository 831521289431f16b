"""One graph from AOTAutograd to what runs: lower, look up or build, load, count. Called by `backend`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from softneuron import _C
from softneuron.compiler import faults
from softneuron.compiler.build import build_package
from softneuron.compiler.cache import NeffCache
from softneuron.compiler.key import graph_key, toolchain
from softneuron.compiler.lower import Constant, FromGraph, Lowered, Output, lower
from softneuron.compiler.options import Options
from softneuron.diagnostics.faults import VARIABLE, parse_faults
from softneuron.diagnostics.metrics import GraphRecord, record_fallback, record_graph
from softneuron.diagnostics.naming import model_name
from softneuron.distributed.compiled import serve_host_tensors


class NeuronCompileError(RuntimeError):
    """A graph that could not be compiled; names the graph and what the code generator said."""


class CompiledGraph:
    """A loaded NEFF, called with a list of all inputs that it empties (AOTAutograd's boxed convention)."""

    def __init__(self, neff: _C.Neff, lowered: Lowered) -> None:
        self._boxed_call = True
        self._neff = neff
        self._inputs = lowered.inputs
        self._outputs = lowered.outputs
        self._core = lowered.core
        self._draws_random = lowered.draws_random
        computed = [output for output in lowered.outputs if isinstance(output, FromGraph)]
        self._on_device = [False] * len({output.index for output in computed})
        for output in computed:
            self._on_device[output.index] = output.on_device

    def __call__(self, arguments: list[Any]) -> list[Any]:
        inputs = [arguments[index] for index in self._inputs]
        handed_back = {
            output.index: arguments[output.index]
            for output in self._outputs
            if not isinstance(output, (FromGraph, Constant))
        }
        arguments.clear()
        core = _C.current_core() if self._core is None else self._core
        results = self._neff.run(inputs, core, self._on_device, self._draws_random)
        return [_pick(output, results, handed_back) for output in self._outputs]


def _pick(output: Output, results: Sequence[torch.Tensor], handed_back: dict[int, Any]) -> Any:
    if isinstance(output, FromGraph):
        return results[output.index]
    if isinstance(output, Constant):
        return output.value
    return handed_back[output.index]


class InterpretedGraph:
    """A graph that runs operator by operator on its core, with the boxed convention of `CompiledGraph`."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self._boxed_call = True
        self._gm = gm

    def __call__(self, arguments: list[Any]) -> list[Any]:
        given = tuple(arguments)
        arguments.clear()
        return list(self._gm(*given))


def _shapes(inputs: Sequence[Any]) -> tuple[str, ...]:
    return tuple(
        f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        for value in inputs
        if isinstance(value, torch.Tensor)
    )


def compile_graph(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], role: str, options: Options
) -> Callable[[list[Any]], list[Any]]:
    """Make `gm` runnable on its core; `role` is `inference`, `forward` or `backward`.

    Raises:
        NeuronCompileError: when no code can be generated and running operator by operator was not asked for.
    """
    started = time.perf_counter()
    name = f"{options.model_name or model_name()}_{role}"
    hit, module_name = False, None
    run: Callable[[list[Any]], list[Any]]
    lowered = lower(gm, inputs)
    serve_host_tensors(lowered.module)
    nodes = lowered.nodes
    if options.level == 0 or nodes == 0:
        run = InterpretedGraph(gm)
    else:
        try:
            run, module_name, hit = _load_or_build(lowered, name, role)
        except (torch._inductor.exc.InductorError, torch._inductor.exc.CppCompileError) as error:
            if not options.fallback_execution:
                reason = str(error).strip().splitlines()[0]
                raise NeuronCompileError(f"graph {name} could not be compiled: {reason}") from error
            record_fallback(f"graph:{name}")
            run = InterpretedGraph(gm)
    record_graph(
        GraphRecord(
            graph_name=name,
            graph_node_count=nodes,
            compile_us=int((time.perf_counter() - started) * 1e6),
            cache_hit=hit,
            neff_module=module_name,
            role=role,
            shapes=_shapes(inputs),
        )
    )
    return run


def _load_or_build(lowered: Lowered, name: str, role: str) -> tuple[CompiledGraph, str, bool]:
    wrong_on_purpose = parse_faults(os.environ.get(VARIABLE, ""))
    if wrong_on_purpose:
        faults.inject(lowered.module, wrong_on_purpose)
    tools = toolchain()
    nodes = lowered.nodes

    def build(package: Any) -> dict[str, object]:
        started = time.perf_counter()
        build_package(lowered, package)
        return {
            "graph_name": name,
            "role": role,
            "nodes": nodes,
            "inputs": _shapes(lowered.example_inputs),
            "compiler": tools.compiler,
            "torch": tools.torch,
            "cpu": tools.cpu,
            "compile_seconds": round(time.perf_counter() - started, 3),
        }

    entry, hit = NeffCache.from_environment().find_or_build(graph_key(lowered, tools), build)
    return CompiledGraph(_C.Neff(str(entry.package)), lowered), entry.name, hit
