"""Eager operators: `neuron` against the CPU, side by side in one run.

    python benchmarks/eager.py

An add of 16 elements shows what the device adds to one operator; a decoder
layer of Qwen3-0.6B's size (64 tokens) shows what is left of that in a model.
"""

from __future__ import annotations

import copy

import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

from sidebyside import interleaved

TOKENS = 64


def layer_calls(dtype: torch.dtype) -> dict[str, object]:
    """The same decoder layer with the same weights and input, on both devices."""
    config = Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        num_hidden_layers=1,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    layer = Qwen3DecoderLayer(config, 0).to(dtype).eval()
    hidden_BTD = torch.randn(1, TOKENS, config.hidden_size, dtype=dtype)
    positions_BT = torch.arange(TOKENS)[None]
    calls = {}
    for device in ("cpu", "neuron"):
        here = copy.deepcopy(layer).to(device)
        x_BTD = hidden_BTD.to(device)
        rotary = Qwen3RotaryEmbedding(config).to(device)(x_BTD, positions_BT.to(device))
        calls[device] = lambda here=here, x=x_BTD, rotary=rotary: here(x, position_embeddings=rotary)
    assert torch.equal(calls["cpu"](), calls["neuron"]().cpu()), "the layers differ"
    return calls


def main() -> None:
    torch.set_grad_enabled(False)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'':32}{'cpu':>12}{'neuron':>12}{'neuron/cpu':>12}{'difference':>14}")
    one = {device: torch.ones(16, device=device) for device in ("cpu", "neuron")}
    adds = {device: lambda x=x: x + x for device, x in one.items()}
    show("add of 16 elements", interleaved(adds, rounds=60, calls=2000), 1e6, "µs")
    for dtype in (torch.float32, torch.bfloat16):
        name = f"decoder layer, {str(dtype).removeprefix('torch.')}"
        show(name, interleaved(layer_calls(dtype), rounds=30, calls=4), 1e3, "ms")


def show(name: str, seconds: dict[str, float], scale: float, unit: str) -> None:
    cpu, neuron = seconds["cpu"] * scale, seconds["neuron"] * scale
    print(
        f"{name:32}{cpu:>9.3f} {unit}{neuron:>9.3f} {unit}{neuron / cpu:>12.3f}{neuron - cpu:>11.3f} {unit}"
    )


if __name__ == "__main__":
    main()
