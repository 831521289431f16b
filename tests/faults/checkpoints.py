"""Checkpoints for the fault table: twins with well-spread random weights, saved with a tokenizer of bytes,
and SmolLM2. Each is made once and kept in a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from filelock import FileLock

SMOLLM2 = "smollm2"


def checkpoint(folder: Path, model_type: str) -> Path:
    """The checkpoint of a twin of this architecture, or of SmolLM2, below `folder`."""
    if model_type == SMOLLM2:
        from trnready.hub.packaged import smollm2

        return smollm2(lambda _: None)
    target = folder / model_type
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{model_type}.lock"):
        if not target.exists():
            half = folder / f".half-{model_type}"
            shutil.rmtree(half, ignore_errors=True)
            _save_twin(half, model_type)
            half.rename(target)
    return target


def _save_twin(folder: Path, model_type: str) -> None:
    from trnready.plan import twin

    made = twin.of_model_type(model_type, "AutoModelForCausalLM")
    model: Any = made.build("bfloat16")
    model.save_pretrained(folder)
    tokenizer_of_bytes().save_pretrained(folder)


def tokenizer_of_bytes() -> Any:
    """A tokenizer of bytes: 256 of them, and an end token; a twin's vocabulary has room for more."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0} | {symbol: number for number, symbol in enumerate(alphabet, start=1)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
