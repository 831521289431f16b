"""Every architecture of the installed Transformers that does a task, from its own tables. The sweep runs a
twin of each."""

from __future__ import annotations

from dataclasses import dataclass

from trnready.plan.read import without_device

TASKS = ("text-generation", "image-text-to-text")


@dataclass(frozen=True, slots=True, order=True)
class Architecture:
    """A model type doing a task, and the Auto class that loads it for that."""

    model_type: str
    task: str
    auto_class: str


def architectures(tasks: tuple[str, ...] = TASKS) -> tuple[Architecture, ...]:
    """Give them all, by name."""
    with without_device():
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        )
    tables = {
        "text-generation": ("AutoModelForCausalLM", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        "image-text-to-text": ("AutoModelForImageTextToText", MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES),
    }
    return tuple(
        sorted(
            Architecture(model_type, task, tables[task][0])
            for task in tasks
            for model_type in tables[task][1]
        )
    )
