"""Puts the device `neuron` into PyTorch, or decides to stand aside. Called once, by the entry point."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

# What is told is imported when it is needed, which spares `import torch` some milliseconds.
_TOLD_OF_NEURON = {
    "safetensors": "softneuron.integrations.files:tell_safetensors",
    "accelerate.utils.modeling": "softneuron.integrations.placement:tell_accelerate",
    "torch.distributed.tensor.experimental._context_parallel._attention": (
        "softneuron.distributed.context_parallel:tell_context_parallel"
    ),
    "transformers.distributed.tensor_parallel": (
        "softneuron.integrations.heads:tell_transformers_tensor_parallel"
    ),
    "transformers.integrations.accelerate": "softneuron.integrations.placement:tell_transformers_loading",
    "transformers.pipelines.base": "softneuron.integrations.placement:tell_transformers_pipelines",
}


def standing_aside() -> str | None:
    """Why this process gets no software device, or None when it gets one.

    `SOFTNEURON=0` switches it off; AWS's own `torch_neuronx` goes before it; on
    a machine with CUDA it must be asked for with `SOFTNEURON=1`.
    """
    wish = os.environ.get("SOFTNEURON", "")
    if wish == "0":
        return "SOFTNEURON=0"
    spec = importlib.util.find_spec("torch_neuronx")
    # Python that was started in this folder finds our own module of that name.
    if spec is not None and spec.origin != str(Path(__file__).with_name("torch_neuronx.py")):
        return "torch_neuronx is installed"
    if torch._C._get_privateuse1_backend_name() != "privateuseone":
        return "another out-of-tree backend is registered"
    if wish != "1" and torch.backends.cuda.is_built() and torch.cuda.is_available():
        return "CUDA is present and SOFTNEURON is not 1"
    return None


def register() -> None:
    """Register device, `torch.neuron` and `torch_neuronx`; on failure warn and leave PyTorch as it was."""
    if standing_aside() is not None:
        return
    try:
        from softneuron import _C
        from softneuron.diagnostics.memory import describe_biggest

        # A core of an older build lacks what is newest.
        _C.set_describer(describe_biggest)
    except (ImportError, AttributeError) as error:
        warnings.warn(
            f"softneuron: the device neuron is not available, its C++ core does not load ({error}). "
            "Reinstall the package, or set SOFTNEURON=0 to silence this.",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    from softneuron.compiler.default import choose_backend_by_device
    from softneuron.diagnostics import faults
    from softneuron.integrations import imports
    from softneuron.runtime import ending, exchange, instances
    from softneuron.runtime import module as neuron_module

    torch.utils.rename_privateuse1_backend("neuron")
    instances.configure(_C, os.environ)
    _C.install()
    torch._register_device_module("neuron", neuron_module)
    sys.modules["torch.neuron"] = neuron_module
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    exchange.refuse_dlpack()
    ending.let_autograd_settle()
    _install_torch_neuronx()
    imports.when_imported(_TOLD_OF_NEURON)
    choose_backend_by_device()
    if torch.distributed.is_available():
        torch.distributed.Backend.register_backend(
            "neuron", _create_process_group, extended_api=True, devices=["neuron", "cpu"]
        )
    faults.enable_from_environment(_C, os.environ)


def _create_process_group(options: Any, backend_options: object) -> Any:
    from softneuron.distributed.backend import create_process_group

    return create_process_group(options, backend_options)


def _install_torch_neuronx() -> None:
    """Make `import torch_neuronx` find our module, without a folder that would meet AWS's package."""
    from softneuron import neuron_dynamo_backend, torch_neuronx

    for name, module in {
        "torch_neuronx": torch_neuronx,
        "torch_neuronx.neuron_dynamo_backend": neuron_dynamo_backend,
    }.items():
        spec = importlib.machinery.ModuleSpec(name, loader=None, origin=module.__file__, is_package=True)
        module.__spec__ = spec
        sys.modules[name] = module
