"""`torch.compile(model)` without a backend: graphs on neuron go to ours. Called by `registration`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import torch


def _on_neuron(values: Iterable[object]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.device.type == "neuron" for value in values)


def choose_backend_by_device() -> None:
    """Let PyTorch's default backend, Inductor, hand graphs with neuron tensors to ours.

    Inductor has no code generator for neuron and would end in a KeyError. As AWS's documentation says, the
    backend is chosen by itself on a Neuron device; graphs on the CPU stay with Inductor.
    """
    inductor = torch._TorchCompileInductorWrapper
    compile_with_inductor: Callable[..., Any] = inductor.__call__

    @wraps(compile_with_inductor)
    def compile_graph(self: Any, model_: Any, inputs_: Sequence[Any], **more: Any) -> Any:
        traced = (node.meta.get("example_value") for node in model_.graph.nodes)
        if not (_on_neuron(inputs_) or _on_neuron(traced)):
            return compile_with_inductor(self, model_, inputs_, **more)
        from softneuron.compiler.backend import neuron_backend

        return neuron_backend(model_, inputs_)

    inductor.__call__ = compile_graph  # type: ignore[method-assign]
