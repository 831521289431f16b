"""From what is known of a model to its plan. `trnready plan` and `trnready.check` call it."""

from __future__ import annotations

from typing import Any

from trnready.hub.autoload import without_device
from trnready.hub.checkpoint import NotTestable
from trnready.hub.description import Description
from trnready.plan import quantization, stored
from trnready.plan.layout import Kind
from trnready.plan.planner import TEST_TOKENS, Plan, Subject, decide
from trnready.plan.trainium import Machine

DTYPES = ("bfloat16", "float16", "float32")
"""Types that a model is run in; the first is taken for a checkpoint in any other."""


def plan(
    model: Description, where: Machine, dtype: str | None = None, parallelism: Kind | None = None
) -> Plan:
    """Make the plan of a model; `dtype` is the type to run it in, None for the checkpoint's own;
    `parallelism` how to split it, None for tensor parallel where Transformers can, else expert parallel.

    Raises `NotTestable` with the reason when the configuration alone says that it cannot be run.
    """
    with without_device():
        return _plan(model, where, dtype, parallelism)


def executed_dtype(config: Any) -> str:
    """Give the type that a checkpoint is run in: its own, or bfloat16 where that is no type to run in."""
    inner = [each for each in config.values() if isinstance(each, dict)]
    for table in (config, *inner):
        for name in ("dtype", "torch_dtype"):
            found = table.get(name)
            if isinstance(found, str):
                found = found.removeprefix("torch.")
                return found if found in DTYPES else DTYPES[0]
    return DTYPES[0]


def _plan(model: Description, where: Machine, dtype: str | None, parallelism: Kind | None) -> Plan:
    from trnready.plan import blueprint

    auto_class = auto_class_of(model)
    unsupported = quantization.refusal(model.config)
    if unsupported is not None:
        raise _refused(model, "unsupported_quantization", unsupported)
    try:
        executed = dtype or executed_dtype(model.config)
        drawn = blueprint.draw(model.config, auto_class, executed, TEST_TOKENS, parallelism)
    except blueprint.InvalidConfiguration as error:
        raise _refused(model, "invalid_config", str(error)) from error
    stored_as = quantization.stored_as(model.config)
    notes = list(model.notes)
    if model.tensors is not None:
        try:
            notes += stored.differences(model.tensors, drawn, dequantized=stored_as is not None)
        except stored.Contradiction as error:
            raise _refused(model, "invalid_config", str(error)) from error
    if stored_as is not None:
        notes.append(f"Stored as {stored_as}; Transformers dequantizes it to {drawn.dtype} while loading.")
    subject = Subject(model.model_id, model.revision, model.source, stored_as, tuple(notes))
    return decide(drawn, subject, where)


def auto_class_of(model: Description) -> str:
    """Give the Auto class that loads a model. Raises `NotTestable` when there is none."""
    if model.auto_class is not None:
        return model.auto_class
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    from trnready.plan import blueprint

    model_type = model.config.get("model_type")
    if not isinstance(model_type, str):
        if "auto_map" in model.config:
            raise _refused(model, "remote_code", "it brings its own Python code, which is not run")
        raise _refused(model, "invalid_config", "config.json does not name a model_type")
    if model_type not in CONFIG_MAPPING_NAMES:
        if "auto_map" in model.config:
            raise _refused(model, "remote_code", "it brings its own Python code, which is not run")
        why = f"the installed Transformers does not know the model type {model_type!r}"
        raise _refused(model, "unsupported_architecture", why)
    found = blueprint.auto_class_of(model.config)
    if found is None:
        why = f"{model_type} models neither generate text nor answer about images"
        raise _refused(model, "incompatible", why)
    return found


def _refused(model: Description, reason: str, why: str) -> NotTestable:
    return NotTestable(
        reason,
        f"{model.model_id} is not run: {why}.",
        model_id=model.model_id,
        revision=model.revision,
    )
