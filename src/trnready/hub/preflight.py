"""What a checkpoint's configuration alone says about a test of it: whether the installed Transformers knows
the model, and whether the model does the task. `trnready.check` asks before it runs anything."""

from __future__ import annotations

from collections.abc import Iterable

from trnready.hub.autoload import without_device
from trnready.hub.checkpoint import Checkpoint, NotTestable
from trnready.script.task import Task


def check(checkpoint: Checkpoint, task: Task) -> None:
    """Raise `NotTestable` when the test cannot but fail for a reason that is not the device's."""
    with without_device():
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        classes = task.classes()
    model_type = checkpoint.model_type
    if model_type is None:
        raise _refusal(checkpoint, "invalid_config", "config.json does not name a model_type")
    if model_type not in CONFIG_MAPPING_NAMES:
        if "auto_map" in checkpoint.config:
            raise _refusal(checkpoint, "remote_code", "it brings its own Python code, which is not run")
        raise _refusal(
            checkpoint,
            "unsupported_architecture",
            f"the installed Transformers does not know the model type {model_type!r}",
        )
    if model_type not in classes:
        raise _refusal(checkpoint, "incompatible", f"{model_type} models do not do {task.name}")
    if checkpoint.architectures and not _does_task(checkpoint.architectures, classes.values()):
        saved = ", ".join(checkpoint.architectures)
        raise _refusal(checkpoint, "incompatible", f"it was saved as {saved}, which does not do {task.name}")


def _does_task(architectures: tuple[str, ...], classes: Iterable[str | tuple[str, ...]]) -> bool:
    # Old checkpoints differ in capitals: LLaMAForCausalLM.
    known = {name.lower() for entry in classes for name in ((entry,) if isinstance(entry, str) else entry)}
    return any(name.lower() in known for name in architectures)


def _refusal(checkpoint: Checkpoint, reason: str, why: str) -> NotTestable:
    return NotTestable(
        reason,
        f"{checkpoint.model_id} is not tested: {why}.",
        model_id=checkpoint.model_id,
        revision=checkpoint.revision,
    )
