"""What a task is to the rest of trnready, and the list of those there are. Each task is one folder beside
this file; `trnready.check` looks a task up by the Hub's name for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from trnready.errors import TrnreadyError

NEW_TOKENS = 32
"""Tokens that a test generates (S11)."""


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
    `dtype` the name of a torch type such as `bfloat16`.
    """

    model: str
    revision: str | None
    prompt: Prompt
    dtype: str
    cores: int = 1
    new_tokens: int = NEW_TOKENS


class Task(Protocol):
    """A folder that tests one of the Hub's tasks."""

    @property
    def name(self) -> str:
        """The Hub's name for the task."""
        ...

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """What to ask, in the order in which it is tried until the answer is no mere repetition."""
        ...

    @property
    def packages(self) -> tuple[str, ...]:
        """What its `run.py` needs on top of the Neuron stack, library first."""
        ...

    def classes(self) -> Mapping[str, str | tuple[str, ...]]:
        """Give the model classes of Transformers that do the task, by model type."""
        ...

    def render(self, script: Script) -> str:
        """Give the source of `run.py`."""
        ...


def find(name: str) -> Task:
    """Give the task of this name. Raises `UnknownTask`."""
    from trnready.script import text_generation

    tasks: dict[str, Task] = {task.name: task for task in (text_generation.TASK,)}
    if name not in tasks:
        raise UnknownTask(f"there is no test for the task {name!r}; there is one for {', '.join(tasks)}.")
    return tasks[name]


def render_template(folder: Path, script: Script) -> str:
    """Fill the `run.py.jinja` of a task's folder. Every value is written as a Python literal, so that no name
    or prompt can end a string and become code."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
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
        new_tokens=script.new_tokens,
    )


def literal(value: str | None) -> str:
    """Give the value as Python source, in double quotes where it can be, control characters escaped."""
    if value is None:
        return "None"
    quoted = repr(value)
    return f'"{quoted[1:-1]}"' if quoted.startswith("'") and '"' not in quoted else quoted
