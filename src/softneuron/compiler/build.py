"""Generates machine code for a lowered graph: Inductor's C++ in an AOTInductor package. Called by `graph`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from softneuron.compiler.lower import Lowered


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The operators that Inductor takes apart before code generation."""
    from torch._inductor.decomposition import select_decomp_table

    table: dict[Any, Callable[..., Any]] = select_decomp_table()
    return table


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
        patches = {
            "cpp_wrapper": True,
            "fallback_random": True,
            "cpp.dynamic_threads": True,
            # The CPU has what its flags say; asking the compiler by trial compilations takes 12 s.
            "cpp.vec_isa_ok": True,
            "aot_inductor.package": True,
            "aot_inductor.output_path": scratch,
        }
        with torch.no_grad(), config.patch(patches), V.set_aot_compilation(True):
            module = joint_graph_passes(lowered.module)
            compiled: Any = compile_fx_inner(
                module,
                list(lowered.example_inputs),
                cpp_wrapper=True,
                is_inference=True,
                extern_node_serializer=extern_node_json_serializer,
            )
        package_aoti(str(package), compiled.filename)
