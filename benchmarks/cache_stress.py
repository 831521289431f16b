"""Puts the NEFF cache under stress: many processes on an empty cache, then each kind of damage to an entry.

    python benchmarks/cache_stress.py [MODEL] [--processes 8]

MODEL is a checkpoint, by default a tiny one made for the purpose. First all processes are started together
on an empty cache and decode with a static cache: each graph must be compiled by one of them, and all must
give the same tokens. Then the entries are damaged in one way after the other, and a fresh process must
notice, rebuild, and give the same tokens. Exit status 1 when anything of that fails. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = """
import json, sys, torch, torch_neuronx
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], device_map="neuron")
model.generation_config.eos_token_id = None
ids = torch.tensor([[5, 7, 11, 13]])
tokens = model.generate(ids, do_sample=False, max_new_tokens=6, cache_implementation="static")
graphs = [(g["neff_module"], g["cache_hit"]) for g in torch_neuronx.get_dynamo_metrics()]
print(json.dumps({"tokens": tokens.tolist(), "graphs": graphs}))
"""


def tiny_model(folder: Path) -> Path:
    """A Llama of one layer with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def start(model: Path, cache: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"TORCH_NEURONX_NEFF_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(model)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate()
    if process.returncode:
        sys.exit(f"a process failed:\n{errors[-2000:]}")
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def truncate(entry: Path) -> None:
    package = entry / "graph.pt2"
    package.write_bytes(package.read_bytes()[: package.stat().st_size // 2])


def flip_a_byte(entry: Path) -> None:
    package = entry / "graph.pt2"
    content = bytearray(package.read_bytes())
    content[len(content) // 2] ^= 1
    package.write_bytes(content)


def other_version(entry: Path) -> None:
    meta = json.loads((entry / "meta.json").read_text())
    (entry / "meta.json").write_text(json.dumps(meta | {"compiler": "soft-0.0.0"}))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated": truncate,
    "a flipped byte": flip_a_byte,
    "no done mark": lambda entry: (entry / "done").unlink(),
    "another version": other_version,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--processes", type=int, default=8)
    args = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or tiny_model(Path(scratch) / "model")
        cache = Path(scratch) / "cache"
        reports = [finish(one) for one in [start(model, cache) for _ in range(args.processes)]]
        expected = reports[0]["tokens"]
        built = sorted(name for report in reports for name, hit in report["graphs"] if not hit)
        used = sorted({name for report in reports for name, _ in report["graphs"]})
        right = sum(report["tokens"] == expected for report in reports)
        print(
            f"{args.processes} processes: {len(used)} graphs, {len(built)} compiled, {right} right",
            flush=True,
        )
        if built != used or right != args.processes:
            failed.append("processes")
        for name, damage in DAMAGES.items():
            for entry in cache.glob("MODULE_*"):
                damage(entry)
            report = finish(start(model, cache))
            rebuilt = sum(not hit for _, hit in report["graphs"])
            same = report["tokens"] == expected
            print(f"{name}: {rebuilt} of {len(used)} rebuilt, {'right' if same else 'WRONG'}", flush=True)
            if rebuilt != len(used) or not same:
                failed.append(name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
