"""What `torch.compile(backend="neuron", mode=…, options=…)` and the environment ask of the compiler."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

_LEVELS = {"-O0": 0, "-O1": 1, "-O2": 1, "-O3": 1}
_KNOWN = ("model_name", "fallback_execution", "opt_level", "use_tensorizer_backend", "dynamic")


class CompileOptionError(ValueError):
    """An option or level that the compiler does not know. The message lists those it does."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile: `level` 0 runs the lowered graph operator by operator, 1 generates code."""

    level: int = 1
    model_name: str | None = None
    fallback_execution: bool = False


def _level(text: str, source: str) -> int:
    if text not in _LEVELS:
        raise CompileOptionError(f"{source}={text!r} is not known: it takes {', '.join(_LEVELS)}")
    if text in ("-O2", "-O3"):
        warnings.warn(f"softneuron compiles {text} as -O1 for now.", UserWarning, stacklevel=2)
    return _LEVELS[text]


def read_options(mode: str | None, options: Mapping[str, object] | None) -> Options:
    """Options of one `torch.compile` call on top of the environment's.

    Raises:
        CompileOptionError: for a key or a level that does not exist.
    """
    if mode not in (None, "default"):
        warnings.warn(
            f'torch.compile(backend="neuron") has one mode, "default"; mode={mode!r} is compiled as that.',
            UserWarning,
            stacklevel=2,
        )
    given = dict(options or {})
    unknown = [key for key in given if key not in _KNOWN]
    if unknown:
        raise CompileOptionError(
            f'torch.compile(backend="neuron") has no option {unknown[0]!r}: it reads {", ".join(_KNOWN)}'
        )
    level_text = os.environ.get("NEURON_COMPILER_OPT_LEVEL", "").strip() or "-O1"
    level = _level(str(given.get("opt_level", level_text)), "the optimisation level")
    fallback = os.environ.get("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "1").strip().lower() in (
        "0",
        "false",
    )
    name = given.get("model_name")
    return Options(
        level=level,
        model_name=None if name is None else str(name),
        fallback_execution=bool(given.get("fallback_execution", fallback)),
    )
