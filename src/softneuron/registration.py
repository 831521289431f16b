"""Puts the device `neuron` into PyTorch, or decides to stand aside. Called once, by the entry point."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import warnings

import torch


def standing_aside() -> str | None:
    """Why this process gets no software device, or None when it gets one.

    `SOFTNEURON=0` switches it off; AWS's own `torch_neuronx` goes before it; on
    a machine with CUDA it must be asked for with `SOFTNEURON=1`.
    """
    wish = os.environ.get("SOFTNEURON", "")
    if wish == "0":
        return "SOFTNEURON=0"
    if importlib.util.find_spec("torch_neuronx") is not None:
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
    except ImportError as error:
        warnings.warn(
            f"softneuron: the device neuron is not available, its C++ core does not load ({error}). "
            "Reinstall the package, or set SOFTNEURON=0 to silence this.",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    from softneuron.diagnostics import faults
    from softneuron.distributed import backend as distributed_backend
    from softneuron.runtime import instances
    from softneuron.runtime import module as neuron_module

    torch.utils.rename_privateuse1_backend("neuron")
    instances.configure(_C, os.environ)
    _C.install()
    torch._register_device_module("neuron", neuron_module)
    sys.modules["torch.neuron"] = neuron_module
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    _install_torch_neuronx()
    distributed_backend.register_backend()
    faults.enable_from_environment(_C, os.environ)


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
