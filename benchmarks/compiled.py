"""Decoding with a static cache: `neuron` compiled against the CPU, eager and through Inductor, in one run.

    python benchmarks/compiled.py [MODEL] [--dtype float32] [--tokens 24] [--rounds 5]

MODEL is a checkpoint, by default SmolLM2-135M-Instruct (`trnready fetch smollm2`). One number is the median
over the rounds of milliseconds per token, batch 1; the rounds take the candidates in turn. The first token
(the prompt) is left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor
from transformers.generation import CompileConfig


class Clock(LogitsProcessor):
    """Notes when each step's logits are there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return scores


def memory_bandwidth() -> float:
    """Bytes per second of reading 512 MiB with all threads, best of five."""
    data = torch.ones(2**27, dtype=torch.float32)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        seconds.append(time.perf_counter() - start)
    return data.nbytes / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", nargs="?", default=str(Path.home() / ".cache/trnready/models/SmolLM2-135M-Instruct")
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    on_inductor = CompileConfig(fullgraph=False, mode="default", dynamic=False)
    on_inductor._compile_all_devices = True
    load = {"dtype": args.dtype}
    cpu = AutoModelForCausalLM.from_pretrained(args.model, **load)
    cpu_inductor = AutoModelForCausalLM.from_pretrained(args.model, **load)
    neuron = AutoModelForCausalLM.from_pretrained(args.model, **load, device_map="neuron")
    candidates = {
        "cpu, eager": (cpu, {"disable_compile": True}),
        "cpu, inductor": (cpu_inductor, {"compile_config": on_inductor}),
        "neuron, eager": (neuron, {"disable_compile": True}),
        "neuron, compiled": (neuron, {}),
    }

    def decode(name: str) -> tuple[float, list[int]]:
        model, options = candidates[name]
        clock = Clock()
        output = model.generate(
            **inputs,
            do_sample=False,
            min_new_tokens=args.tokens,
            max_new_tokens=args.tokens,
            cache_implementation="static",
            logits_processor=[clock],
            **options,
        )
        return (clock.times[-1] - clock.times[0]) / (args.tokens - 1), output[0].tolist()

    tokens = {}
    for name in candidates:
        start = time.perf_counter()
        tokens[name] = decode(name)[1]
        print(f"{name}: first generation {time.perf_counter() - start:.1f} s", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(args.rounds):
        for name in candidates:
            seconds[name].append(decode(name)[0])

    medians = {name: statistics.median(values) for name, values in seconds.items()}
    parameters = sum(p.nbytes for p in cpu.parameters())
    bandwidth = memory_bandwidth()
    print(
        f"{args.dtype}, {torch.get_num_threads()} threads, torch {torch.__version__}; memory reads at "
        f"{bandwidth / 1e9:.1f} GB/s, so the weights alone take {parameters / bandwidth * 1e3:.1f} ms"
    )
    print(f"{'':20}{'ms/token':>10}{'tokens/s':>10}{'× cpu eager':>13}{'same tokens':>13}")
    for name, value in medians.items():
        speed = medians["cpu, eager"] / value
        same = "yes" if tokens[name] == tokens["cpu, eager"] else "no"
        print(f"{name:20}{value * 1e3:>10.2f}{1 / value:>10.1f}{speed:>13.2f}{same:>13}")


if __name__ == "__main__":
    main()
