"""Where the time of a first compile goes: a decode graph with every cache empty, and with C++ headers ready.

    python benchmarks/cold_compile.py [MODEL] [--dtype bfloat16]

MODEL is a checkpoint, by default SmolLM2-135M-Instruct (`trnready fetch smollm2`). Every column is a fresh
process: `first ever` has nothing to start from, `later graph` the precompiled C++ headers of the first.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from fresh_process import options, report_of

PHASES = {
    "Dynamo: capture": ("bytecode_tracing",),
    "AOTAutograd: trace, decompose": ("aot_collect_metadata", "aot_trace_joint_graph"),
    "Inductor: graph passes": ("_recursive_joint_graph_passes", "_recursive_post_grad_passes"),
    "Inductor: lowering": ("GraphLowering.run",),
    "Inductor: code generation": ("GraphLowering.codegen",),
    "C++: compilers and linker": ("AotCodeCompiler.compile",),
    "the whole compile": ("_compile.compile_inner",),
}


def measure(model: str, dtype: str, folder: str) -> dict[str, Any]:
    """The report of a fresh process whose NEFF cache is empty and whose other caches are in `folder`."""
    with tempfile.TemporaryDirectory() as neffs:
        return report_of(model, dtype, neffs, folder)


def main() -> None:
    args = options(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        columns = [measure(args.model, args.dtype, folder) for _ in range(2)]
    [graph] = columns[0]["graphs"]
    print(f"{args.dtype}, {graph['graph_node_count']} operators, {os.cpu_count()} cores")
    print(f"{'wall seconds':34}{'first ever':>12}{'later graph':>12}")
    rows = {
        name: [sum(column["phases"].get(key, 0.0) for key in keys) for column in columns]
        for name, keys in PHASES.items()
    }
    rows |= {
        "start to first decoded token": [column["first_decoded_s"] for column in columns],
        "processor time in all": [column["cpu_s"] for column in columns],
    }
    for name, values in rows.items():
        print(f"{name:34}" + "".join(f"{value:>12.1f}" for value in values))


if __name__ == "__main__":
    main()
