"""Generates machine code for a lowered graph: Inductor's C++ in an AOTInductor package. Called by `graph`."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._guards import detect_fake_mode

from softneuron.compiler import cpp, draws
from softneuron.compiler.lower import Lowered


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The operators that Inductor takes apart before code generation, and those that the CPU lacks.

    Not the random ones where `fallback_random` is set, see `backend`.
    """
    from torch._inductor.decomposition import select_decomp_table

    table: dict[Any, Callable[..., Any]] = select_decomp_table()
    return table | {
        torch.ops.aten.histc.default: _count_whole_numbers,
        torch.ops.aten.native_dropout.default: draws.drop_everything,
    }


def _count_whole_numbers(values: torch.Tensor, bins: int = 100, min: int = 0, max: int = 0) -> Any:
    """`histc` of whole numbers, as the eager device counts them (`csrc/histc.cpp`): element x is in bin
    (x - low) * bins / (high - low) in whole numbers, the highest value in the last one. Mixtures of experts
    count their tokens so."""
    if values.dtype.is_floating_point:
        return NotImplemented
    whole = values.reshape(-1).to(torch.int64)
    low, high = torch.full_like(whole, int(min)), torch.full_like(whole, int(max))
    if int(min) == int(max) and whole.numel() > 0:
        low, high = whole.amin().expand_as(whole), whole.amax().expand_as(whole)
    one = (low == high).to(torch.int64)
    low, high = low - one, high + one
    numbers = torch.div((whole - low) * bins, high - low, rounding_mode="floor").clamp(0, bins - 1)
    inside = ((whole >= low) & (whole <= high)).to(values.dtype)
    return torch.zeros(bins, dtype=values.dtype, device=values.device).scatter_add(0, numbers, inside)


def build_package(lowered: Lowered, package: Path) -> None:
    """Write the AOTInductor package of `lowered` to `package`, a path ending in `.pt2`; 10 s or more."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.extern_node_serializer import extern_node_json_serializer
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.package import package_aoti
    from torch._inductor.virtualized import V

    output = lowered.module.graph.output_node()
    results: Any = output.args[0]
    # Callers rely on the traced strides of every output, saved activations included.
    output.meta["user_visible_output_idxs"] = list(range(len(results)))
    with tempfile.TemporaryDirectory(prefix="softneuron-build-") as scratch:
        patches = cpp.SETTINGS | {
            "cpp_wrapper": True,
            "fallback_random": True,
            "cpp.dynamic_threads": True,
            # The CPU has what its flags say; asking the compiler by trial compilations takes 12 s.
            "cpp.vec_isa_ok": True,
            "aot_inductor.package": True,
            "aot_inductor.output_path": scratch,
            # Inductor adds to this one in place; settings that stay as they were name traces alike.
            "aot_inductor.metadata": {},
        }
        mode = detect_fake_mode(lowered.example_inputs)
        with (
            # A tensor that the program made is a real one in the graph.
            mock.patch.object(mode, "allow_non_fake_inputs", True) if mode else contextlib.nullcontext(),
            torch.no_grad(),
            config.patch(patches),
            V.set_aot_compilation(True),
            cpp.short_wrappers(),
            cpp.side_by_side(),
            warnings.catch_warnings(),
        ):
            # Of a code generator that the user did not choose; the operators run, one by one.
            warnings.filterwarnings(
                "ignore", message="Torchinductor does not support code generation for complex"
            )
            module = joint_graph_passes(lowered.module)
            compiled: Any = compile_fx_inner(
                module,
                list(lowered.example_inputs),
                cpp_wrapper=True,
                is_inference=True,
                extern_node_serializer=extern_node_json_serializer,
            )
        package_aoti(str(package), compiled.filename)
