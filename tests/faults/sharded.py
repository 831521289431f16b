"""One rank of SmolLM2 split by tensor parallelism, started by torchrun: `sharded.py CHECKPOINT OUT`; rank 0
writes what the model says. Three ranks, since SmolLM2 has nine heads: Trainium itself would refuse that
number."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer, DistributedConfig

NEW_TOKENS = 32
PROMPT = "The capital of France is Paris. The city lies on the river Seine, and"


def main() -> None:
    """Load a shard, generate together with the other ranks."""
    checkpoint, out = sys.argv[1:]
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    config = DistributedConfig(tp_size=int(os.environ["WORLD_SIZE"]))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="bfloat16", distributed_config=config)
    inputs = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    output = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        cache_implementation="static",
        disable_compile=True,
    )
    text = tokenizer.decode(output[0, inputs.shape[1] :], skip_special_tokens=True)
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps({"text": text}), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
