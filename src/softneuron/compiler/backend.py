"""The Dynamo backend `neuron`, found through the entry-point group `torch_dynamo_backends`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd

from softneuron.compiler.build import decompositions
from softneuron.compiler.graph import compile_graph
from softneuron.compiler.options import Options, read_options


class DynamicShapesRefused(RuntimeError):
    """A graph with symbolic sizes; NeuronCores run static shapes only."""


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
    """
    chosen = read_options(mode, options)
    _make_static(example_inputs)
    compiled: Callable[..., Any] = _through_autograd(chosen)(gm, example_inputs)
    return compiled


def _through_autograd(options: Options) -> Callable[..., Any]:
    def compiler(role: str) -> Callable[..., Any]:
        def compile_one(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            return compile_graph(gm, inputs, role, options)

        return compile_one

    autograd: Callable[..., Any] = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return autograd
