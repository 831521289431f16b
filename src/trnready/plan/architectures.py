"""Every architecture of the installed Transformers that does a task, from its own tables. The sweep runs a
twin of each."""

from __future__ import annotations

from dataclasses import dataclass

from trnready.hub.autoload import without_device

AUTO_CLASSES = {
    "text-generation": "AutoModelForCausalLM",
    "image-text-to-text": "AutoModelForImageTextToText",
}
"""The class that loads a model for a task."""

TASKS = tuple(AUTO_CLASSES)


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
        "text-generation": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "image-text-to-text": MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
    found = [Architecture(name, task, AUTO_CLASSES[task]) for task in tasks for name in tables[task]]
    return tuple(sorted(found))
