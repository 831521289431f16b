"""Decodes three tokens with a static cache and says as JSON how long each part took. Started by the
benchmarks of cold and warm starts, in a process of its own:

    python benchmarks/fresh_process.py MODEL DTYPE
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()


def options(description: str | None) -> argparse.ArgumentParser:
    """Give the command line of a benchmark that starts this file: a model and its type."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", nargs="?", default=str(Path.home() / ".cache/trnready/models/SmolLM2-135M-Instruct")
    )
    parser.add_argument("--dtype", default="bfloat16")
    return parser


def report_of(model: str, dtype: str, neffs: str, caches: str, **environment: str) -> dict[str, Any]:
    """Start this file with the NEFF cache `neffs` and Inductor's caches in `caches`; give its report."""
    done = subprocess.run(
        [sys.executable, __file__, model, dtype],
        env=os.environ
        | {
            "TORCH_NEURONX_NEFF_CACHE_DIR": neffs,
            "TORCHINDUCTOR_CACHE_DIR": caches,
            # Inductor keeps its precompiled headers here, wherever its own cache is.
            "TMPDIR": caches,
        }
        | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def cpu_seconds() -> float:
    """Processor time of this process and of the compilers it started."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def main() -> None:
    import torch
    import torch_neuronx
    from torch._dynamo.utils import compile_times
    from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor

    class Clock(LogitsProcessor):
        """Notes when each step's logits are there."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.times.append(time.perf_counter() - STARTED)
            return scores

    _, model_name, dtype = sys.argv
    imported = time.perf_counter() - STARTED
    tokenizer = AutoTokenizer.from_pretrained(model_name)
    model = AutoModelForCausalLM.from_pretrained(model_name, dtype=dtype, device_map="neuron")
    loaded = time.perf_counter() - STARTED
    clock = Clock()
    model.generate(
        **tokenizer("The capital of France is", return_tensors="pt"),
        do_sample=False,
        min_new_tokens=3,
        max_new_tokens=3,
        cache_implementation="static",
        logits_processor=[clock],
    )
    names, seconds = compile_times(repr="csv", aggregate=True)
    report = {
        "imported_s": imported,
        "loaded_s": loaded,
        "prompt_s": clock.times[0],
        "first_decoded_s": clock.times[1],
        "cpu_s": cpu_seconds(),
        "graphs": torch_neuronx.get_dynamo_metrics(),
        "phases": {name: float(value) for name, value in zip(names, seconds, strict=True)},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
