"""Decoding with a static cache, side by side in one run: the CPU eager and through Inductor, `neuron` eager,
at -O0 and at -O1, in float32 and bfloat16.

    python benchmarks/compiled.py [MODEL] [--dtype float32] [--tokens 24] [--rounds 5]

MODEL is a checkpoint, by default SmolLM2-135M-Instruct (`trnready fetch smollm2`). One number is the median
over the rounds of milliseconds per token, batch 1; the rounds take the candidates in turn. The first token
(the prompt) is left out. Different tokens are no fault in themselves: `trnready check` judges them by the
rounding noise of the logits.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

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


def on_inductor() -> CompileConfig:
    """How `generate()` is told to compile for the CPU, which it would not do by itself."""
    config = CompileConfig(fullgraph=False, mode="default", dynamic=False)
    config._compile_all_devices = True
    return config


def measure(model: str, dtype: str, tokens: int, rounds: int) -> None:
    """Print the table of one dtype."""
    torch._dynamo.reset()
    inputs = AutoTokenizer.from_pretrained(model)("The capital of France is", return_tensors="pt")

    def loaded(device: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(model, dtype=dtype, device_map=device)

    def at_level(level: str) -> dict[str, object]:
        return {"compile_config": CompileConfig(backend="neuron", mode=None, options={"opt_level": level})}

    cpu, neuron = loaded("cpu"), loaded("neuron")
    # Dynamo keeps compiled code per model, so each way of compiling has a model of its own.
    candidates: dict[str, tuple[Any, dict[str, object]]] = {
        "cpu, eager": (cpu, {"disable_compile": True}),
        "cpu, inductor": (loaded("cpu"), {"compile_config": on_inductor()}),
        "neuron, eager": (neuron, {"disable_compile": True}),
        "neuron, -O0": (loaded("neuron"), at_level("-O0")),
        "neuron, -O1": (loaded("neuron"), at_level("-O1")),
    }

    def decode(name: str) -> tuple[float, Any]:
        chosen, options = candidates[name]
        clock = Clock()
        output = chosen.generate(
            **inputs,
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            cache_implementation="static",
            logits_processor=[clock],
            return_dict_in_generate=True,
            **options,
        )
        return (clock.times[-1] - clock.times[0]) / (tokens - 1), output

    outputs = {}
    for name in candidates:
        start = time.perf_counter()
        outputs[name] = decode(name)[1]
        print(f"{name}: first generation {time.perf_counter() - start:.1f} s", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name in candidates:
            seconds[name].append(decode(name)[0])

    medians = {name: statistics.median(values) for name, values in seconds.items()}
    parameters = sum(p.nbytes for p in cpu.parameters())
    bandwidth = memory_bandwidth()
    print(
        f"{dtype}, {torch.get_num_threads()} threads, torch {torch.__version__}; memory reads at "
        f"{bandwidth / 1e9:.1f} GB/s, so the weights alone take {parameters / bandwidth * 1e3:.1f} ms"
    )
    print(f"{'':16}{'ms/token':>10}{'tokens/s':>10}{'× eager':>10}{'× inductor':>12}{'same tokens':>13}")
    expected = outputs["cpu, eager"].sequences
    for name, value in medians.items():
        eager, inductor = medians["cpu, eager"] / value, medians["cpu, inductor"] / value
        same = "yes" if torch.equal(outputs[name].sequences, expected) else "no"
        print(f"{name:16}{value * 1e3:>10.2f}{1 / value:>10.1f}{eager:>10.2f}{inductor:>12.2f}{same:>13}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", nargs="?", default=str(Path.home() / ".cache/trnready/models/SmolLM2-135M-Instruct")
    )
    parser.add_argument("--dtype", action="append", help="float32 or bfloat16; both when left out")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for dtype in args.dtype or ("float32", "bfloat16"):
        measure(args.model, dtype, args.tokens, args.rounds)


if __name__ == "__main__":
    main()
