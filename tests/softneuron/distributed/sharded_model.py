"""A rank that loads a checkpoint with Transformers' `DistributedConfig` and reports what came of it.

Started as a script by `test_transformers.py`, alone (the reference) or under
torchrun: `sharded_model.py {generate|train|save} CHECKPOINT OUT CONFIG`,
where CONFIG is JSON for `DistributedConfig` and OUT a JSON file that rank 0 writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, DistributedConfig, Trainer, TrainerCallback, TrainingArguments

NEW_TOKENS = 12


def load(checkpoint: str, config: dict[str, Any], dtype: torch.dtype) -> Any:
    placed: dict[str, Any] = {"device_map": "neuron"}
    if config:
        placed = {"distributed_config": DistributedConfig(**config)}
    # On one core and on many the experts run one after the other, so that their sums round alike.
    return AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=dtype, experts_implementation="eager", **placed
    )


def everyones(value: int) -> list[int]:
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def generate(checkpoint: str, config: dict[str, Any]) -> dict[str, Any]:
    torch.neuron.reset_peak_memory_stats()
    model = load(checkpoint, config, torch.float32)
    loading = torch.neuron.max_memory_allocated()
    held = torch.neuron.memory_allocated()
    inputs = torch.arange(2, 10)[None]
    result = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        cache_implementation="static",
        disable_compile=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return {
        "tokens": result.sequences[0, 8:].tolist(),
        "logits": torch.stack(result.logits).flatten().tolist(),
        "device": model.device.type,
        "loading": everyones(loading),
        "held": everyones(held),
    }


class RepeatedText(Dataset[dict[str, torch.Tensor]]):
    """Random tokens whose second half repeats the first."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        half = torch.randint(0, 256, (16,), generator=torch.Generator().manual_seed(index))
        tokens = torch.cat([half, half])
        return {"input_ids": tokens, "labels": tokens.clone()}


class Losses(TrainerCallback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        if logs and "loss" in logs:
            self.values.append(float(logs["loss"]))


def train(checkpoint: str, config: dict[str, Any]) -> dict[str, Any]:
    model = load(checkpoint, config, torch.float32)
    losses = Losses()
    arguments = TrainingArguments(
        output_dir=f"{checkpoint}-trained",
        max_steps=20,
        per_device_train_batch_size=8 // int(config.get("fsdp_size", 1)),
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_drop_last=True,
    )
    Trainer(model, arguments, train_dataset=RepeatedText(), callbacks=[losses]).train()
    return {"losses": losses.values, "device": arguments.device.type}


def save(checkpoint: str, config: dict[str, Any]) -> dict[str, Any]:
    model = load(checkpoint, config, torch.float32)
    model.save_pretrained(f"{checkpoint}-saved-from-shards")
    return {}


def main() -> None:
    action, checkpoint, out, config = sys.argv[1:]
    torch.set_num_threads(1)
    actions = {"generate": generate, "train": train, "save": save}
    report = actions[action](checkpoint, json.loads(config))
    if not dist.is_initialized() or dist.get_rank() == 0:
        Path(out).write_text(json.dumps(report), encoding="utf-8")
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
