"""The name that the next compiled graphs carry, set by the caller; read by the compiler."""

from __future__ import annotations

from contextvars import ContextVar

_model_name: ContextVar[str] = ContextVar("softneuron_model_name", default="model")


def set_model_name(name: str) -> None:
    """Name the artifacts of the graphs that are compiled from now on in this context."""
    _model_name.set(str(name))


def model_name() -> str:
    """The name set last, or `"model"`."""
    return _model_name.get()
