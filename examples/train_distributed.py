"""Trains a model that is split over four cores, two by tensor parallelism and two by FSDP.

    torchrun --nproc_per_node=4 examples/train_distributed.py Qwen/Qwen3-1.7B

The checkpoint is a name on the Hub or a folder. The text is made up: random
words said twice, so that a few steps are enough to see the loss fall.
"""

from __future__ import annotations

import sys

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, DistributedConfig, Trainer, TrainingArguments

STEPS = 20
TOKENS = 32


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


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(
        sys.argv[1],
        dtype=torch.bfloat16,
        distributed_config=DistributedConfig(tp_size=2, fsdp_size=2),
    )
    arguments = TrainingArguments(
        output_dir="./outputs",
        bf16=True,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        dataloader_drop_last=True,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
    )
    Trainer(model, arguments, train_dataset=RepeatedText(min(256, model.config.vocab_size))).train()
    print(f"core {torch.neuron.current_device()}: peak {torch.neuron.max_memory_allocated():,} bytes")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
