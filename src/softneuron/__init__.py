"""The `neuron` device on any machine: software NeuronCores on the host CPU.

PyTorch calls `_autoload` through the entry-point group `torch.backends` at the
end of `import torch`; nobody needs to import this package.
"""

from __future__ import annotations

__version__ = "0.1.0"

COMPILER_VERSION = f"soft-{__version__}"
"""What rows and cache keys call our compiler; never a version of AWS's."""


def _autoload() -> None:
    """Register the device `neuron`, or stand aside. Never raises: `import torch` must not fail."""
    from softneuron.registration import register

    register()
