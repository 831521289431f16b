"""One graph from AOTAutograd to what runs: lower, look up or build, load, count. Called by `backend`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._inductor.output_code import OutputCode

from softneuron import _C
from softneuron.compiler import draws, faults, strides
from softneuron.compiler.build import build_package
from softneuron.compiler.cache import Entry, NeffCache
from softneuron.compiler.errors import HOW_TO_RUN_ANYWAY, NeuronCompileError, compile_error
from softneuron.compiler.key import graph_key, toolchain
from softneuron.compiler.lower import Constant, FromGraph, Lowered, Output, SeveralCores, lower
from softneuron.compiler.options import Options
from softneuron.diagnostics.faults import FAULTS, Fault, active, fault, fire
from softneuron.diagnostics.metrics import GraphRecord, record_fallback_graph, record_graph
from softneuron.diagnostics.naming import model_name
from softneuron.distributed.compiled import serve_host_tensors

_GRAPHS = FAULTS["silent_cpu"].words.index("graph")
_ONE_CORE = 'A model that device_map="auto" spread goes to one core with device_map="neuron".'


class RunnableGraph(OutputCode):
    """A graph that is ready to run, called with a list of all inputs that it empties (AOTAutograd's boxed
    convention). One that says nothing else is not kept with its trace: it has nothing on disk."""

    def __init__(self) -> None:
        # PyTorch copies what an instance has to the functions it wraps it in.
        self._boxed_call = True

    def prepare_for_serialization(self) -> None:
        """Called by PyTorch before it writes the graph's trace."""
        raise BypassAOTAutogradCache("this graph is not in the NEFF cache")

    def set_triton_bundle(self, triton_bundle: object) -> None:
        """Called by PyTorch; there is no Triton here."""


class CompiledGraph(RunnableGraph):
    """A loaded NEFF."""

    def __init__(self, entry: Entry, lowered: Lowered, record: GraphRecord) -> None:
        super().__init__()
        self._inputs = lowered.inputs
        self._written = lowered.written
        self._outputs = lowered.outputs
        self._core = lowered.core
        self._draws_random = lowered.draws_random
        self._starts = lowered.starts
        computed = [output for output in lowered.outputs if isinstance(output, FromGraph)]
        self._on_device = [False] * len({output.index for output in computed})
        for output in computed:
            self._on_device[output.index] = output.on_device
        self._module = entry.name
        self._record = record
        self._neff: _C.Neff | None = _C.Neff(str(entry.package))

    def __call__(self, arguments: Any) -> list[Any]:
        assert self._neff is not None
        for index, start in self._starts:
            if arguments[index].storage_offset() != start:
                raise NeuronCompileError(
                    f"a compiled graph was called with input {index} starting at element "
                    f"{arguments[index].storage_offset()} of its memory; it was compiled for {start}"
                )
        inputs = [arguments[index] for index in self._inputs]
        handed_back = {
            output.index: arguments[output.index]
            for output in self._outputs
            if not isinstance(output, (FromGraph, Constant))
        }
        arguments.clear()
        core = _C.current_core() if self._core is None else self._core
        results = self._neff.run(inputs, core, self._on_device, self._draws_random, self._written)
        return [_pick(output, results, handed_back) for output in self._outputs]

    def prepare_for_serialization(self) -> None:
        """Called by PyTorch on the copy that it writes: the machine code stays in the NEFF cache."""
        self._neff = None

    def post_compile(self, example_inputs: object, constants: object, graph_kwargs: object) -> None:
        """Called by PyTorch on what it read: load the machine code, and count the graph as a hit.

        Raises:
            BypassAOTAutogradCache: when the graph's NEFF is gone or damaged; PyTorch then traces anew.
        """
        started = time.perf_counter()
        entry = NeffCache.from_environment(asdict(toolchain())).find_named(self._module)
        if entry is None:
            raise BypassAOTAutogradCache("the NEFF of this trace is not in the cache")
        self._neff = _C.Neff(str(entry.package))
        taken = int((time.perf_counter() - started) * 1e6)
        record_graph(replace(self._record, compile_us=taken, cache_hit=True))


def _pick(output: Output, results: Sequence[torch.Tensor], handed_back: dict[int, Any]) -> Any:
    if isinstance(output, FromGraph):
        return results[output.index]
    if isinstance(output, Constant):
        return output.value
    return handed_back[output.index]


class InterpretedGraph(RunnableGraph):
    """A graph that runs operator by operator on its core."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__()
        self._gm = gm

    def __call__(self, arguments: Any) -> list[Any]:
        given = tuple(arguments)
        arguments.clear()
        return list(self._gm(*given))


class ForgottenGraph(RunnableGraph):
    """The fault `recompile_each_step`: a graph that is thrown away once it has run, and prepared again."""

    def __init__(self, prepare: Callable[[], RunnableGraph]) -> None:
        super().__init__()
        self._prepare = prepare
        self._ready: RunnableGraph | None = prepare()

    def __call__(self, arguments: Any) -> Any:
        if self._ready is None:
            fire("recompile_each_step")
        run, self._ready = self._ready or self._prepare(), None
        return run(arguments)


def shapes_of(inputs: Sequence[object]) -> tuple[str, ...]:
    """The dtypes and shapes of the tensors among `inputs`, as in `float32[2, 3]`."""
    return tuple(
        f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        for value in inputs
        if isinstance(value, torch.Tensor)
    )


def compile_graph(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], role: str, options: Options
) -> RunnableGraph:
    """Make `gm` runnable on its core; `role` is `inference`, `forward` or `backward`.

    Raises:
        NeuronCompileError: when no code can be generated and running operator by operator was not asked for.
        SeveralCores: when the graph has tensors on more than one core and that was not asked for either.
    """
    name = f"{options.model_name or model_name()}_{role}"
    _refuse_on_purpose(name)
    if fault("recompile_each_step") is not None:
        return ForgottenGraph(lambda: _prepare(gm, inputs, role, options, name))
    return _prepare(gm, inputs, role, options, name)


def _refuse_on_purpose(name: str) -> None:
    """The fault `compile_error`."""
    if fault("compile_error") is not None:
        fire("compile_error")
        raise NeuronCompileError(f"graph {name} could not be compiled: the fault compile_error is on")


def _prepare(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], role: str, options: Options, name: str
) -> RunnableGraph:
    """Make the graph ready to run, and count it."""
    started = time.perf_counter()
    draws.refuse_another_order(gm)
    nodes = sum(node.op == "call_function" for node in gm.graph.nodes)

    def record(module: str | None = None, *, hit: bool = False, interpreted: bool = False) -> GraphRecord:
        return GraphRecord(
            graph_name=name,
            graph_node_count=nodes,
            compile_us=int((time.perf_counter() - started) * 1e6),
            cache_hit=hit,
            neff_module=module,
            role=role,
            shapes=shapes_of(inputs),
            interpreted=interpreted,
        )

    try:
        lowered = lower(gm, inputs)
    except SeveralCores as several:
        if not options.fallback_execution:
            raise SeveralCores(f"{several}\n{_ONE_CORE} {HOW_TO_RUN_ANYWAY}") from None
        record_fallback_graph(record(), str(several))
        return InterpretedGraph(gm)
    serve_host_tensors(lowered.module)
    nodes = lowered.nodes
    if fault("silent_cpu") == Fault("silent_cpu", _GRAPHS) and nodes:
        fire("silent_cpu")
        record_fallback_graph(record(), "the fault silent_cpu is on")
        return InterpretedGraph(gm)
    if options.level == 0 or nodes == 0:
        record_graph(record(interpreted=nodes > 0))
        return InterpretedGraph(gm)
    try:
        entry, hit = _find_or_build(lowered, name, role)
        found = record(entry.name if entry.kept else None, hit=hit)
        run = CompiledGraph(entry, lowered, found)
    except Exception as error:
        refusal = compile_error(gm, name, error)
        if not options.fallback_execution:
            raise refusal from error
        record_fallback_graph(record(), str(refusal).splitlines()[0])
        return InterpretedGraph(gm)
    record_graph(found)
    return run


def _find_or_build(lowered: Lowered, name: str, role: str) -> tuple[Entry, bool]:
    if active():
        faults.inject(lowered.module, faults.felt_by_graphs(active(), _C))
    strides.refuse_misread(lowered.module)
    tools = toolchain()
    nodes = lowered.nodes

    def build(package: Any) -> dict[str, object]:
        started = time.perf_counter()
        build_package(lowered, package)
        return {
            "graph_name": name,
            "role": role,
            "nodes": nodes,
            "inputs": shapes_of(lowered.example_inputs),
            "compile_seconds": round(time.perf_counter() - started, 3),
        }

    cache, key = NeffCache.from_environment(asdict(tools)), graph_key(lowered, tools)
    if active():
        faults.spoil_entry(cache.folder(key))
    return cache.find_or_build(key, build)
