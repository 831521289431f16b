"""Cold start against warm start: fresh processes, the Inductor cache empty, the NEFF cache empty or filled.

    python benchmarks/warm_start.py [MODEL] [--dtype bfloat16] [--rounds 2]

MODEL is a checkpoint, by default SmolLM2-135M-Instruct (`trnready fetch smollm2`). The warm processes have no
C++ compiler to call, so all that they run comes from the NEFF cache. Times run from the start of Python to
the first token that the compiled graph gave: the prompt itself runs eagerly.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from typing import Any

from fresh_process import options, report_of

# PyTorch names traces by its settings, of which the compiler's name is one: it is the same on both sides.
COMPILER = {"CXX": "c++"}
NO_COMPILER = COMPILER | {"PATH": "/nowhere"}


def start(model: str, dtype: str, neffs: str, **environment: str) -> dict[str, Any]:
    """The report of a fresh process that uses the NEFF cache `neffs` and an Inductor cache that is empty."""
    with tempfile.TemporaryDirectory() as empty:
        return report_of(model, dtype, neffs, empty, **environment)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    cold, warm = [], []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as neffs:
            cold.append(start(args.model, args.dtype, neffs, **COMPILER))
            warm.append(start(args.model, args.dtype, neffs, **NO_COMPILER))

    def median(reports: list[dict[str, Any]], key: str) -> float:
        return statistics.median(report[key] for report in reports)

    print(f"{args.dtype}, {os.cpu_count()} cores, median of {args.rounds}")
    print(f"{'seconds since the start':28}{'cold':>8}{'warm':>8}{'warm / cold':>13}")
    for name, key in {
        "imported": "imported_s",
        "model loaded": "loaded_s",
        "prompt done": "prompt_s",
        "first compiled token": "first_decoded_s",
    }.items():
        before, after = median(cold, key), median(warm, key)
        print(f"{name:28}{before:>8.1f}{after:>8.1f}{after / before:>13.2f}")
    hits = [graph["cache_hit"] for report in warm for graph in report["graphs"]]
    print(f"warm: {sum(hits)} of {len(hits)} graphs from the NEFF cache, no C++ compiler on the path")


if __name__ == "__main__":
    main()
