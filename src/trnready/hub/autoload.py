"""Keeps PyTorch from opening the neuron device in a process that only reads about a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_device() -> Iterator[None]:
    """Keep `import torch`, which Transformers does, from opening the neuron device: a process that has opened
    Trainium's cores holds them until it ends, and the run under test needs them."""
    name = "TORCH_DEVICE_BACKEND_AUTOLOAD"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
