"""Streams and events. A software core works in the caller's thread, in order; an event is a time stamp."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from softneuron import _C
from softneuron.runtime.devices import Device, core_index


class Stream(torch.Stream):
    """A queue of work on a core; always drained on software cores."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, device=torch.device("neuron", core_index(device)), priority=priority)


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "neuron"


class Event(metaclass=_EventType):
    """A moment in a stream. `elapsed_time(end)` gives milliseconds of wall time between two records.

    Makes a plain `torch.Event` of the device: PyTorch refuses to compare events of a subclass.
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        return torch.Event(
            "neuron", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )


def _as_neuron_stream(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


def current_stream(device: Device = None) -> Stream:
    """The stream that this thread's work on a core goes to."""
    return _as_neuron_stream(torch.accelerator.current_stream(torch.device("neuron", core_index(device))))


def default_stream(device: Device = None) -> Stream:
    """The stream that every thread starts with."""
    now = current_stream(device)
    return Stream(stream_id=0, device_index=now.device_index, device_type=now.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Make `stream` the current one of its core; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def is_current_stream_capturing() -> bool:
    """Whether a graph is being captured: never, there are no captured graphs on neuron."""
    return False


class StreamContext:
    """Makes a stream, and its core, current inside a `with`."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self._stream = stream
        self._core = -1
        self._previous: torch.Stream | None = None

    def __enter__(self) -> None:
        if self._stream is not None:
            self._core = _C.current_core()
            self._previous = current_stream(self._stream.device)
            set_stream(self._stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            set_stream(self._previous)
            _C.exchange_core(self._core)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager that makes `stream` current."""
    return StreamContext(stream)
