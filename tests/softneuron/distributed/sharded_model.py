"""Ranks that load checkpoints with Transformers' `DistributedConfig` and report what came of it.

Started as a script by `test_transformers.py`, alone (the reference) or under torchrun, with
`sharded_model.py JOBS OUT`: JOBS is JSON, a list of `{name, action, checkpoint, config, ...}` where `action`
is a function of this file, `config` the arguments of `DistributedConfig` (none on one core), and the rest the
action's own arguments. Rank 0 writes the reports by name to the file OUT.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch_neuronx
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, DistributedConfig, Trainer, TrainerCallback, TrainingArguments

NEW_TOKENS = 12


def load(checkpoint: str, config: dict[str, Any], compiled: bool = False) -> Any:
    placed: dict[str, Any] = {"device_map": "neuron"}
    if config:
        placed = {"distributed_config": DistributedConfig(**config)}
    # On one core and on many the experts run one after the other, so that their sums round alike. Such a loop
    # is no graph: compiled, they run as Transformers chooses.
    experts = {} if compiled else {"experts_implementation": "eager"}
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, **experts, **placed)


def everyones(value: int) -> list[int]:
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def graphs() -> int:
    """Graphs that were compiled or loaded since the metrics were reset."""
    return len(torch_neuronx.get_dynamo_metrics())


def generate(
    checkpoint: str,
    config: dict[str, Any],
    cache: str = "static",
    level: str | None = None,
    save: str | None = None,
) -> dict[str, Any]:
    """Greedy tokens and logits, at a `level` of the compiler or uncompiled; the model is saved to `save`."""
    before = torch.neuron.memory_allocated()
    torch.neuron.reset_peak_memory_stats()
    model = load(checkpoint, config, level is not None)
    loading = torch.neuron.max_memory_allocated() - before
    held = torch.neuron.memory_allocated() - before
    if save is not None:
        model.save_pretrained(save)
    if level is not None:
        os.environ["NEURON_COMPILER_OPT_LEVEL"] = level
    inputs = torch.arange(2, 10)[None]
    result = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        cache_implementation=cache,
        disable_compile=level is None,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return {
        "tokens": result.sequences[0, 8:].tolist(),
        "logits": torch.stack(result.logits).flatten().tolist(),
        "device": model.device.type,
        "loading": everyones(loading),
        "held": everyones(held),
        "graphs": everyones(graphs()),
    }


def refusal(checkpoint: str, config: dict[str, Any]) -> dict[str, Any]:
    """What `from_pretrained` says against a split, and what the core held by then."""
    before = torch.neuron.memory_allocated()
    try:
        load(checkpoint, config)
    except ValueError as error:
        return {"error": str(error), "held": torch.neuron.memory_allocated() - before}
    return {"error": None}


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


def train(
    checkpoint: str, config: dict[str, Any], steps: int = 20, level: str | None = None
) -> dict[str, Any]:
    """The losses of so many steps with 8 rows each, at a `level` of the compiler or uncompiled."""
    model = load(checkpoint, config, level is not None)
    losses = Losses()
    if level is not None:
        os.environ["NEURON_COMPILER_OPT_LEVEL"] = level
    arguments = TrainingArguments(
        output_dir=f"{checkpoint}-trained",
        max_steps=steps,
        per_device_train_batch_size=8 // int(config.get("fsdp_size", 1)),
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_drop_last=True,
        torch_compile=level is not None,
    )
    Trainer(model, arguments, train_dataset=RepeatedText(), callbacks=[losses]).train()
    return {"losses": losses.values, "device": arguments.device.type, "graphs": everyones(graphs())}


ACTIONS = {"generate": generate, "refusal": refusal, "train": train}


def main() -> None:
    jobs, out = sys.argv[1:]
    torch.set_num_threads(1)
    reports = {}
    for job in json.loads(jobs):
        name, action = job.pop("name"), job.pop("action")
        print(f"sharded_model.py: {name}", file=sys.stderr, flush=True)
        reports[name] = ACTIONS[action](**job)
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        torch._dynamo.reset()
        torch_neuronx.reset_dynamo_metrics()
        gc.collect()
    if not dist.is_initialized() or dist.get_rank() == 0:
        Path(out).write_text(json.dumps(reports), encoding="utf-8")
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
