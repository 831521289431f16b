"""What leaves a core for other libraries: nothing but through the CPU, and PyTorch says so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def refuse_dlpack() -> None:
    """Make `Tensor.__dlpack__` and `__dlpack_device__` say what to do with a tensor on a core.

    DLPack's list of devices has no neuron; without this PyTorch raises a ValueError about an unknown type.
    """
    for name in ("__dlpack__", "__dlpack_device__"):
        setattr(torch.Tensor, name, _refusing(getattr(torch.Tensor, name)))


def _refusing(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def method(self: torch.Tensor, *args: Any, **options: Any) -> Any:
        if self.device.type == "neuron":
            raise BufferError(
                f"can't export a {self.device} tensor through DLPack, which does not know the device. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
        return stock(self, *args, **options)

    return method
