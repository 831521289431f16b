"""Trains a model that is split over four cores, two by tensor parallelism and two by FSDP.

    torchrun --nproc_per_node=4 examples/train_distributed.py Qwen/Qwen3-1.7B
    python examples/train_distributed.py Qwen/Qwen3-1.7B      # the same on one core

The checkpoint is a name on the Hub or a folder. The text is made up: random
words said twice, so that a few steps are enough to see the loss fall. Both
commands take eight rows a step, so their losses are the same but for rounding.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, DistributedConfig, Trainer, TrainingArguments

STEPS = 20
TOKENS = 32
ROWS = 8


class RepeatedText(Dataset[dict[str, torch.Tensor]]):
    """64 rows of random tokens whose second half repeats the first."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        half = torch.randint(0, self._vocabulary, (TOKENS // 2,), generator=generator)
        tokens = torch.cat([half, half])
        return {"input_ids": tokens, "labels": tokens.clone()}


def split(checkpoint: str) -> Any:
    """A model of which each rank loads its share."""
    return AutoModelForCausalLM.from_pretrained(
        checkpoint,
        dtype=torch.bfloat16,
        distributed_config=DistributedConfig(tp_size=2, fsdp_size=2),
    )


def whole(checkpoint: str) -> Any:
    """The whole model on one core."""
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16, device_map="neuron")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    on_ranks = "RANK" in os.environ  # torchrun sets it
    model = split(sys.argv[1]) if on_ranks else whole(sys.argv[1])
    arguments = TrainingArguments(
        output_dir="./outputs",
        bf16=True,
        max_steps=STEPS,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        per_device_train_batch_size=ROWS // 2 if on_ranks else ROWS,  # the two ranks of a split share rows
        dataloader_drop_last=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=RepeatedText(min(256, model.config.vocab_size)))
    trainer.train()
    peaks = [torch.neuron.max_memory_allocated()]
    if on_ranks:
        peaks = [0] * dist.get_world_size()
        dist.all_gather_object(peaks, torch.neuron.max_memory_allocated())
    if trainer.is_world_process_zero():  # lines of several ranks would run into each other
        for core, peak in enumerate(peaks):
            print(f"core {core}: peak {peak:,} bytes")
        print("losses", *(f"{entry['loss']:.4f}" for entry in trainer.state.log_history if "loss" in entry))
    if on_ranks:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
