"""What a task is to the rest of trnready, and how the rest finds one. Each task is one folder beside this
file, named as the Hub names it, with `_` for `-`: its `__init__.py` holds `TASK`, its `run.py.jinja` the
script."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import trnready.script
from trnready.errors import TrnreadyError
from trnready.hub.checkpoint import Layout

NEW_TOKENS = 32
"""Tokens that a test generates (S11)."""

Output = Literal["logits", "embeddings", "latents"]
"""What a task's `run.py` reports, which decides how device and CPU are compared: the logits of every
generated token, an embedding for each sentence, or the latents of every denoising step with the image."""

STACK = ("torch", "transformers", "tokenizers", "safetensors", "accelerate")
"""Packages whose versions every report holds."""


class UnknownTask(TrnreadyError):
    """No folder of ours tests this task."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is asked: `text` as it is, or as a user's turn of the model's chat template."""

    text: str
    chat: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """Everything that differs between two scripts of one task.

    `model` is a Hub id or the absolute path of a folder; `revision` a commit on the Hub, None for a folder;
    `dtype` the name of a torch type such as `bfloat16`. On more than one core, `distributed` holds the
    arguments of Transformers' DistributedConfig: numbers and texts, in mappings where that takes them.
    """

    model: str
    revision: str | None
    prompt: Prompt
    dtype: str
    cores: int = 1
    distributed: Mapping[str, Any] | None = None
    new_tokens: int = NEW_TOKENS


@dataclass(frozen=True, slots=True)
class Task:
    """A folder that tests one of the Hub's tasks.

    `packages` is what its `run.py` imports beyond torch, the library that loads the model first. `prompts`
    are what to ask, in the order in which it is tried until the answer is no mere repetition. `tables` names
    the tables of Transformers' `modeling_auto` that list the models which do the task; none where
    Transformers has no say. `graphs` is how many graphs one input shape may need. `splits` says
    whether its `run.py` can share a model out over several cores."""

    name: str
    folder: Path
    output: Output
    packages: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    graphs: int
    tables: tuple[str, ...] = ()
    layout: Layout = "transformers"
    splits: bool = False

    @property
    def library(self) -> str:
        """The package that loads the model."""
        return self.packages[0]

    def render(self, script: Script) -> str:
        """Give the source of `run.py`. Every value is written as a Python literal, so that no name or prompt
        can end a string and become code."""
        environment = Environment(
            loader=FileSystemLoader([self.folder, Path(__file__).parent]),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )
        environment.filters["literal"] = literal
        return environment.get_template("run.py.jinja").render(
            model=script.model,
            revision=script.revision,
            prompt=script.prompt.text,
            chat=script.prompt.chat,
            dtype=script.dtype,
            cores=script.cores,
            distributed=json.dumps(dict(script.distributed or {})),
            new_tokens=script.new_tokens,
            libraries=tuple(dict.fromkeys((*STACK, *self.packages))),
        )


def names() -> tuple[str, ...]:
    """Give the tasks there are, by the Hub's names."""
    folders = pkgutil.iter_modules(trnready.script.__path__)
    return tuple(sorted(each.name.replace("_", "-") for each in folders if each.ispkg))


def find(name: str) -> Task:
    """Give the task of this name. Raises `UnknownTask`."""
    if name not in names():
        raise UnknownTask(f"there is no test for the task {name!r}; there is one for {', '.join(names())}.")
    task: Task = importlib.import_module(f"trnready.script.{name.replace('-', '_')}").TASK
    return task


def literal(value: str | None) -> str:
    """Give the value as Python source, in double quotes where it can be, control characters escaped."""
    if value is None:
        return "None"
    quoted = repr(value)
    return f'"{quoted[1:-1]}"' if quoted.startswith("'") and '"' not in quoted else quoted
