"""What all tests share: tiny checkpoints, the device asked for, and no deadlines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Workers share the machine: one thread each, and one in the processes that tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test asserts a time; a busy machine is no failure.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests go first, so that no worker is left with one of them at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def _tiny_tokenizer(**options: Any) -> Any:
    """A tokenizer of bytes: 256 of them, and an end token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0} | {symbol: number for number, symbol in enumerate(alphabet, start=1)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", **options)


def _save_tiny_qwen3(folder: Path, *, std: float = 0.2, seed: int = 0, **tokenizer_options: Any) -> Path:
    """A Qwen3 of two layers whose random weights spread the logits well above the rounding noise."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, std, generator=generator)
    model.to(torch.bfloat16).save_pretrained(folder)
    _tiny_tokenizer(**tokenizer_options).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def save_tiny_qwen3() -> Callable[..., Path]:
    """How a test makes a tiny Qwen3 of its own."""
    return _save_tiny_qwen3


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a tiny Qwen3 with its tokenizer; not to be changed, copy it first."""
    return _save_tiny_qwen3(tmp_path_factory.mktemp("checkpoints") / "acme--tiny-qwen3")


@pytest.fixture(scope="session")
def neuron() -> None:
    """The neuron device, asked for in a process of its own; a test that needs it fails clearly without it."""
    asked = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.neuron.is_available())"],
        capture_output=True,
        text=True,
    )
    if asked.stdout.strip() != "True":
        pytest.fail(f"there is no neuron device, which this test needs: {asked.stderr.strip()[-300:]}")
