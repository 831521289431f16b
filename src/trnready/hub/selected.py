"""Our own choice among the Hub's models, kept by hand in `selected.yaml`: which models to test first, and
which are left out on purpose and why. The Space's start page lists them in this order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trnready.errors import TrnreadyError
from trnready.results.row import REASONS

NAME = "selected.yaml"
LEFT_OUT_REASONS = REASONS["SKIPPED"]
WHY = ("downloads", "trending", "family", "architecture")
"""What may have put a model on the list: another size of a family, or the best known of an architecture."""


class BadSelection(TrnreadyError):
    """`selected.yaml` cannot be read, or says something that makes no sense."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a model is left out on purpose: a reason of the dataset's to skip, and a sentence."""

    reason: str
    why: str


@dataclass(frozen=True, slots=True)
class Selected:
    """A model of the list. `why` is one of `WHY`; `left_out` is None for those to be tested. `gated` says
    whether its terms must be accepted on the Hub first."""

    model_id: str
    task: str
    model_type: str | None
    parameters: int | None
    gated: bool
    why: str | None
    left_out: LeftOut | None


def read(path: Path) -> tuple[Selected, ...]:
    """Read the list, in its order. Raises `BadSelection`."""
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise BadSelection(f"{path} cannot be read ({os.strerror(error.errno or 0)}).") from error
    except UnicodeDecodeError as error:
        raise BadSelection(f"{path} is no text in UTF-8.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise BadSelection(f"{path} is no YAML ({str(error).splitlines()[0]}).") from error
    if not isinstance(content, Mapping) or not isinstance(content.get("models"), list):
        raise BadSelection(f"{path} must hold a list called models.")
    found = [_selected(path, each) for each in content["models"]]
    seen: set[tuple[str, str]] = set()
    for each in found:
        if (each.model_id, each.task) in seen:
            raise BadSelection(f"{path} lists {each.model_id} twice for {each.task}.")
        seen.add((each.model_id, each.task))
    return tuple(found)


def _selected(path: Path, entry: Any) -> Selected:
    if not isinstance(entry, Mapping):
        raise BadSelection(f"{path}: every model is a mapping with id and task, not {str(entry)[:80]!r}.")
    name = _text(path, entry, "id")
    task = _text(path, entry, "task")
    if name is None or task is None:
        raise BadSelection(
            f"{path}: a model has no {'id' if name is None else 'task'}: {str(dict(entry))[:80]}."
        )
    parameters = entry.get("parameters")
    if parameters is not None and (
        isinstance(parameters, bool) or not isinstance(parameters, int) or parameters < 0
    ):
        raise BadSelection(f"{path}: the parameters of {name} are no count.")
    reason, why_not = _text(path, entry, "left_out"), _text(path, entry, "because")
    if reason is not None and (reason not in LEFT_OUT_REASONS or why_not is None):
        raise BadSelection(
            f"{path}: {name} is left out, which takes one of {', '.join(LEFT_OUT_REASONS)} and a because."
        )
    why = _text(path, entry, "why")
    if why is not None and why not in WHY:
        raise BadSelection(f"{path}: {name} is here for {why[:40]!r}, which is none of {', '.join(WHY)}.")
    return Selected(
        model_id=name,
        task=task,
        model_type=_text(path, entry, "model_type"),
        parameters=parameters,
        gated=entry.get("gated") is True,
        why=why,
        left_out=None if reason is None or why_not is None else LeftOut(reason, why_not),
    )


def _text(path: Path, entry: Mapping[str, Any], name: str) -> str | None:
    value = entry.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise BadSelection(f"{path}: {name} of {str(entry.get('id'))[:80]} must be text.")
    return value
