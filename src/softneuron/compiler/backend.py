"""The Dynamo backend `neuron`, found through the entry-point group `torch_dynamo_backends`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor import config as inductor_config
from torch.utils.checkpoint import CheckpointPolicy

from softneuron.compiler import placement, traces
from softneuron.compiler.aliased import inputs_that_share_memory
from softneuron.compiler.build import decompositions
from softneuron.compiler.cache import NeffCache
from softneuron.compiler.cpp import old_objects_left_alone
from softneuron.compiler.errors import GraphRefused, NeuronCompileError
from softneuron.compiler.graph import RunnableGraph, compile_graph, shapes_of
from softneuron.compiler.lower import DynamicShapesRefused, is_random
from softneuron.compiler.options import Options, read_options
from softneuron.diagnostics.faults import active
from softneuron.diagnostics.metrics import GraphRecord, record_fallback_graph
from softneuron.diagnostics.naming import model_name

# Nested tensors are taken apart before they come here.
_READABLE = (torch.strided, torch.jagged)


def _make_static(example_inputs: Sequence[object]) -> None:
    """Tie every symbolic size to the size it has now, so that another one compiles another graph.

    Dynamo makes a size symbolic by itself when it sees a second value of it;
    only a user who asked for `dynamic=True` is refused.
    """
    for value in example_inputs:
        sizes = (value,) if not isinstance(value, torch.Tensor) else (*value.shape, *value.stride())
        symbolic = [size for size in sizes if isinstance(size, torch.SymInt)]
        if symbolic and not torch._dynamo.config.assume_static_by_default:
            raise DynamicShapesRefused(
                'torch.compile(backend="neuron") compiles static shapes only: dynamic=True is refused. '
                "Pass dynamic=False and pad inputs to a fixed length."
            )
        for size in symbolic:
            int(size)


def _refuse_opaque(example_inputs: Sequence[object]) -> None:
    """A graph reads its inputs' memory, which a tensor in oneDNN's own layout does not show."""
    for value in example_inputs:
        if isinstance(value, torch.Tensor) and value.layout not in _READABLE:
            raise NeuronCompileError(
                f'torch.compile(backend="neuron") takes no input in the layout {value.layout}: '
                "call to_dense() on it outside of the compiled function."
            )


def neuron_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Any]:
    """Compile what Dynamo captured, forward and backward, one NEFF per graph and shape.

    Raises:
        DynamicShapesRefused: when the graph has symbolic sizes (`dynamic=True`).
        CompileOptionError: for an unknown option.
        NeuronCompileError: for inputs whose memory the graph uses in a way that cannot be compiled.
    """
    chosen = read_options(mode, options)
    _refuse_opaque(example_inputs)
    _make_static(example_inputs)
    try:
        return _compile(gm, example_inputs, chosen)
    except GraphRefused as refusal:
        if not chosen.fallback_execution:
            raise
        record_fallback_graph(_captured(gm, example_inputs, chosen), str(refusal).splitlines()[0])
        return gm.forward


def _compile(
    gm: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], options: Options
) -> Callable[..., Any]:
    placed = placement.inspect(gm, inputs)
    kept = options.level > 0 and not active() and placed.is_anywhere and traces.can_be_kept(gm, inputs)
    place = traces.kept_in(NeffCache.from_environment().root, options, inputs) if kept else nullcontext()
    # A draw is then never left out, moved or taken apart: a seed gives eager's numbers.
    draws_as_eager = inductor_config.patch(fallback_random=True)
    with old_objects_left_alone(), place, draws_as_eager, inputs_that_share_memory():
        compiled: Callable[..., Any] = _through_autograd(options, kept)(gm, inputs)
    placed.install_guards(gm)
    on_mismatch = partial(
        record_fallback_graph,
        _captured(gm, inputs, options),
        "its inputs share memory in another way than when it was compiled",
    )
    return placement.Placed(compiled, gm, inputs, placed.overlaps, on_mismatch)


def _captured(gm: torch.fx.GraphModule, inputs: Sequence[object], options: Options) -> GraphRecord:
    """The record of the captured graph `gm`, for when it runs operator by operator."""
    return GraphRecord(
        graph_name=f"{options.model_name or model_name()}_captured",
        graph_node_count=sum(node.op in ("call_function", "call_method") for node in gm.graph.nodes),
        compile_us=0,
        cache_hit=False,
        neff_module=None,
        role="captured",
        shapes=shapes_of(inputs),
    )


def _partition(joint_module: torch.fx.GraphModule, *arguments: Any, **more: Any) -> Any:
    """Split the graph of forward and backward in two, each random number drawn in the first one.

    What a checkpoint drew is kept: PyTorch can draw it a second time only on the devices that it knows.
    """
    for node in joint_module.graph.nodes:
        if "recompute" in node.meta and is_random(node):
            for kept in (node, *(user for user in node.users if user.target is operator.getitem)):
                kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(joint_module, *arguments, **more)


def _through_autograd(options: Options, kept: bool) -> Callable[..., Any]:
    def compiler(role: str) -> Callable[..., Any]:
        def compile_one(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> RunnableGraph:
            return compile_graph(gm, inputs, role, options)

        # PyTorch keeps the traces of compilers of this class.
        return SerializableAOTDispatchCompiler(RunnableGraph, compile_one) if kept else compile_one

    autograd: Callable[..., Any] = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions,
        partition_fn=_partition,
        keep_inference_input_mutations=True,
    )
    return autograd
