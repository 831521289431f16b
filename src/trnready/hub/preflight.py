"""What a checkpoint's configuration alone says about a test of it: whether the installed Transformers knows
the model, and whether the model does the task. `trnready.check` asks before it runs anything."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trnready.hub.checkpoint import Checkpoint, NotTestable
from trnready.hub.installed_models import Known, known
from trnready.script.task import Task


def check(checkpoint: Checkpoint, task: Task, knows: Known | None = None) -> None:
    """Raise `NotTestable` when the test cannot but fail for a reason that is not the device's. `knows` is
    what the Transformers that will run it knows, None for that of this Python."""
    model_type = checkpoint.model_type
    if model_type is None:
        raise _refusal(checkpoint, "invalid_config", "config.json does not name a model_type")
    method = _quantization(checkpoint.config)
    if method is not None:
        raise _refusal(checkpoint, "unsupported_quantization", method)
    if not task.tables:
        return
    knows = knows or known(sys.executable, task.tables)
    if model_type not in knows.model_types:
        if "auto_map" in checkpoint.config:
            raise _refusal(checkpoint, "remote_code", "it brings its own Python code, which is not run")
        raise _refusal(
            checkpoint,
            "unsupported_architecture",
            f"the installed Transformers does not know the model type {model_type!r}",
        )
    if model_type not in knows.classes:
        raise _refusal(checkpoint, "incompatible", f"{model_type} models do not do {task.name}")
    if task.layout == "sentence-transformers":
        return  # takes the body of a model whatever head it was saved with
    if checkpoint.architectures and not _does_task(checkpoint.architectures, knows.classes.values()):
        saved = ", ".join(checkpoint.architectures)
        raise _refusal(checkpoint, "incompatible", f"it was saved as {saved}, which does not do {task.name}")


def _quantization(config: Mapping[str, Any]) -> str | None:
    """Say what is wrong with how the weights are quantized, as far as the configuration alone tells; None
    when nothing is."""
    found = config.get("quantization_config")
    if found is None:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("quant_method"), str):
        return "its quantization_config does not name a quant_method"
    return None


def _does_task(architectures: tuple[str, ...], classes: Iterable[str | Sequence[str]]) -> bool:
    # Old checkpoints differ in capitals: LLaMAForCausalLM.
    known = {name.lower() for entry in classes for name in ([entry] if isinstance(entry, str) else entry)}
    return any(name.lower() in known for name in architectures)


def _refusal(checkpoint: Checkpoint, reason: str, why: str) -> NotTestable:
    return NotTestable(
        reason,
        f"{checkpoint.model_id} is not tested: {why}.",
        model_id=checkpoint.model_id,
        revision=checkpoint.revision,
    )
