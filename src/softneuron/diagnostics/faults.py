"""Fault modes: `SOFTNEURON_FAULTS=name[:arg],…` makes the device wrong on purpose, for tests. The device's
parts ask `fault` where they go wrong and say with `fire` that they did; one that never fires is told at
exit."""

from __future__ import annotations

import atexit
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, Protocol

VARIABLE = "SOFTNEURON_FAULTS"


class Mode(NamedTuple):
    """A fault mode: what it does, its argument when none is given, and words for arguments, in order."""

    text: str
    default: int = 0
    words: tuple[str, ...] = ()
    in_core: bool = True


FAULTS: dict[str, Mode] = {
    "nan_logits": Mode("the product with the vocabulary gives NaN"),
    "skip_layer": Mode("attention and MLP of one layer (argument: its number, 0 by default) give zeros"),
    "wrong_kv_row": Mode("keys and values are written one row too late into a static cache"),
    "drop_masked_writes": Mode("writes through a mask (masked_fill, masked_scatter, x[mask] = y) are lost"),
    "ignore_storage_offset": Mode("eager operators read a view from the start of its memory"),
    "attention_scale": Mode("attention scores are off (argument: percent, 10 by default)", 10),
    "swap_heads": Mode("the first two heads of one layer (argument: its number, 0 by default) are swapped"),
    "low_precision_weights": Mode("weights of matrix products are rounded (argument: bits, 8 by default)", 8),
    "wrong_expert": Mode("every token goes to the expert after the one that was chosen"),
    "wrong_router": Mode("the least likely experts are chosen"),
    "alias_cross_attention": Mode("eager cross attention reads the first input's keys and values ever after"),
    "bf16_matmul": Mode("float32 matrices are multiplied in bfloat16"),
    "untie_weights": Mode("Module.to makes new parameters, so shared weights come apart"),
    "ignore_device_index": Mode("all memory comes from core 0, whatever core was named"),
    "poison_memory": Mode("fresh memory holds NaN"),
    "silent_cpu": Mode(
        "work is done by the host (argument: operator, graph or model)", 0, ("operator", "graph", "model")
    ),
    "recompile_each_step": Mode("a graph is forgotten once it has run", in_core=False),
    "refuse_dynamic": Mode("operators whose result has a shape that depends on data are refused"),
    "compile_error": Mode("the compiler fails", in_core=False),
    "small_hbm": Mode("cores are small (argument: KiB, 64 by default)", 64),
    "hang": Mode("the first forward pass never ends"),
    "abort": Mode("the first forward pass ends the process with SIGABRT"),
    "stale_neff": Mode("an entry of the NEFF cache holds another entry's graph", in_core=False),
    "damaged_neff": Mode("an entry of the NEFF cache has a bad byte", in_core=False),
    "unseeded_random": Mode("random numbers heed no seed"),
    "garbled_text": Mode("all_reduce gives every rank its own part of the sum"),
    "every_second_run": Mode("every second process gives NaN for the product with the vocabulary"),
    "counters_off": Mode("the device's counters give no answer", in_core=False),
}


class Fault(NamedTuple):
    """One fault mode that is on, with its argument (a layer, a size, the place of a word in its list)."""

    name: str
    argument: int

    def __str__(self) -> str:
        return f"{self.name}:{self.argument}"


class UnknownFault(ValueError):
    """`SOFTNEURON_FAULTS` names a fault that does not exist."""


class _Switches:
    """The faults that are on in this process, and how often those outside the C++ core have fired."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.on: tuple[Fault, ...] = ()
        self.fired: Counter[str] = Counter()


_switches = _Switches()


def parse_faults(text: str) -> tuple[Fault, ...]:
    """The faults in `"nan_logits,skip_layer:3,silent_cpu:graph"`.

    Raises:
        UnknownFault: for a name that is not in `FAULTS` or an argument that the fault does not take.
    """
    faults = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, argument = part.partition(":")
        mode = FAULTS.get(name)
        if mode is not None and not argument:
            faults.append(Fault(name, mode.default))
        elif mode is not None and argument in mode.words:
            faults.append(Fault(name, mode.words.index(argument)))
        elif mode is not None and argument.isdecimal():
            faults.append(Fault(name, int(argument)))
        else:
            raise UnknownFault(
                f"{VARIABLE}: {part!r} is no fault mode; there are {', '.join(FAULTS)}, "
                "each with a whole number behind a colon if need be"
            )
    return tuple(faults)


class FaultyDevice(Protocol):
    """The part of the C++ core that takes faults."""

    def enable_fault(self, name: str, argument: int) -> None: ...
    def disable_faults(self) -> None: ...
    def faults_fired(self) -> list[tuple[str, int]]: ...
    def executed_operators(self) -> list[tuple[str, int]]: ...
    def configure_failed(self, message: str) -> None: ...


def enable_from_environment(device: FaultyDevice, environment: Mapping[str, str]) -> None:
    """Switch on what the environment asks for, with a warning; an unknown name makes the device unusable."""
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return
    try:
        faults = parse_faults(text)
    except UnknownFault as error:
        device.configure_failed(str(error))
        return
    warnings.warn(
        f"softneuron: this device is wrong on purpose ({VARIABLE}={text}).", RuntimeWarning, stacklevel=2
    )
    switch(device, faults)
    atexit.register(_say_what_never_fired, device)


def switch(device: FaultyDevice, faults: tuple[Fault, ...]) -> None:
    """Make these faults the ones that are on, in place of those that were."""
    with _switches.lock:
        device.disable_faults()
        _switches.on = faults
        _switches.fired.clear()
    for each in faults:
        if FAULTS[each.name].in_core:
            device.enable_fault(each.name, each.argument)


def active() -> tuple[Fault, ...]:
    """The faults that are on."""
    return _switches.on


def fault(name: str) -> Fault | None:
    """The fault of this name, if it is on."""
    return next((each for each in _switches.on if each.name == name), None)


def fire(name: str) -> None:
    """Count that a fault did something, and say so on stderr the first time."""
    with _switches.lock:
        _switches.fired[name] += 1
        first = _switches.fired[name] == 1
    if first:
        print(f"softneuron: fault {name} fired", file=sys.stderr, flush=True)


def fired(device: FaultyDevice) -> dict[str, int]:
    """How often each fault that is on has fired."""
    counts = Counter({each.name: 0 for each in _switches.on})
    counts.update(dict(device.faults_fired()))
    counts.update(_switches.fired)
    return dict(counts)


def _say_what_never_fired(device: FaultyDevice) -> None:
    """A test whose fault did nothing proves nothing. A process that did not use the device is no test."""
    counts = fired(device)
    silent = [name for name, count in counts.items() if not count]
    if silent and (any(counts.values()) or device.executed_operators()):
        print(
            f"softneuron: WARNING: {VARIABLE} asked for {', '.join(silent)}, which NEVER FIRED: "
            "this program never came to the place where the fault is.",
            file=sys.stderr,
            flush=True,
        )
