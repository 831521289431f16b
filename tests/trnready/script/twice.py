"""One model on the device asked two things in a row, and on the CPU the second alone: `python twice.py
FOLDER KIND OUT` writes whether the answers to the second are equal. What is left in a cache by the first
would show."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM


def _asked(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two inputs of one shape: texts for an encoder, or one prompt padded on the left after one that is
    not."""
    first = torch.arange(1, 9)[None]
    second = torch.arange(101, 109)[None]
    mask = torch.ones_like(first)
    if kind == "encoder":
        return {"input_ids": first, "attention_mask": mask}, {"input_ids": second, "attention_mask": mask}
    padded = second.clone()
    padded[:, :3] = 0
    seen = mask.clone()
    seen[:, :3] = 0
    return {"input_ids": first, "attention_mask": mask}, {"input_ids": padded, "attention_mask": seen}


def _answer(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    output = model.generate(
        **{name: each.to(model.device) for name, each in inputs.items()},
        do_sample=False,
        max_new_tokens=16,
        min_new_tokens=16,
        cache_implementation="static",
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.cat(output.logits).float().cpu()


def main() -> None:
    folder, kind, out = sys.argv[1:]
    loader: Any = AutoModelForSeq2SeqLM if kind == "encoder" else AutoModelForCausalLM
    first, second = _asked(kind)
    device = loader.from_pretrained(folder, dtype="bfloat16", device_map="neuron")
    before, after = _answer(device, first), _answer(device, second)
    cpu = _answer(loader.from_pretrained(folder, dtype="bfloat16"), second)
    told = {"equal": torch.equal(after, cpu), "differs from the first": not torch.equal(before, after)}
    Path(out).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
