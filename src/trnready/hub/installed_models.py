"""What a Transformers installation knows, from its own tables. Reading them imports Transformers, which takes
seconds, so they are kept on disk until a file of theirs changes. `preflight` asks."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trnready.errors import TrnreadyError
from trnready.results.files import ResultsNotWritable, write_whole
from trnready.user_cache import user_cache

ASK_TIMEOUT_S = 300.0
FOLDER = "transformers"

_LOCATE = """
from importlib.util import find_spec
found = find_spec("transformers")
print(found and found.origin or "")
"""

_ASK = """
import json
from transformers.models.auto import configuration_auto, modeling_auto
tables = {name: dict(each) for name, each in vars(modeling_auto).items() if name.endswith("_MAPPING_NAMES")}
print(json.dumps({"model_types": list(configuration_auto.CONFIG_MAPPING_NAMES), "tables": tables}))
"""


class NoTransformers(TrnreadyError):
    """The interpreter that was named cannot be run, or has no Transformers."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a Transformers installation knows: all its model types, and the classes that do a task, by model
    type."""

    model_types: frozenset[str]
    classes: Mapping[str, str | list[str]]


def known(python: str, tables: Sequence[str]) -> Known:
    """Give what the Transformers of an interpreter knows; `tables` are names of tables in its
    `modeling_auto`. Raises `NoTransformers`."""
    # In a process of its own: this one must not import PyTorch, which would open the device.
    origin = _said_by(python, _LOCATE)
    if not origin:
        raise NoTransformers(f"{python} has no Transformers; install it there: pip install transformers")
    marks = _marks(Path(origin))
    name = hashlib.sha256("\0".join((python, origin)).encode()).hexdigest()[:32]
    kept = user_cache(FOLDER) / f"{name}.json"
    answer = _kept(kept, marks)
    if answer is None:
        answer = json.loads(_said_by(python, _ASK))
        _keep(kept, answer | {"marks": marks})
    lacking = [name for name in tables if name not in answer["tables"]]
    if lacking:
        raise NoTransformers(f"the Transformers of {python} has no {' and '.join(lacking)}; update it.")
    classes = {name: each for table in tables for name, each in answer["tables"][table].items()}
    return Known(frozenset(answer["model_types"]), classes)


def _said_by(python: str, program: str) -> str:
    """Give the last line that a program prints. Raises `NoTransformers`."""
    # Neither the device nor what happens to lie in the working folder is to be imported.
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONSAFEPATH": "1"}
    command = [python, "-c", program]
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoTransformers(
            f"{python} cannot be run: {getattr(error, 'strerror', None) or error}."
        ) from error
    if ran.returncode != 0:
        last = (ran.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise NoTransformers(f"{python} has no usable Transformers: {last}")
    return (ran.stdout.splitlines() or [""])[-1]


def _marks(origin: Path) -> list[list[str | int]]:
    """Give what changes when the tables do: the files they are in, and the folder of packages, which any
    installation writes to."""
    package = origin.parent
    marks: list[list[str | int]] = []
    for path in (package.parent, origin, *sorted((package / "models" / "auto").glob("*.py"))):
        with suppress(OSError):
            status = path.stat()
            size = 0 if path == package.parent else status.st_size
            marks.append([str(path), size, status.st_mtime_ns])
    return marks


def _kept(path: Path, marks: Sequence[object]) -> dict[str, dict[str, dict[str, str | list[str]]]] | None:
    """Give what is kept there of these very files; None when it is of others, or damaged."""
    try:
        answer = json.loads(path.read_bytes())
        if answer["marks"] == marks and answer["model_types"] and answer["tables"]:
            return dict(answer)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _keep(path: Path, answer: Mapping[str, object]) -> None:
    """Keep an answer. A folder that cannot be written keeps nothing, and says nothing."""
    with suppress(ResultsNotWritable):
        write_whole(path, json.dumps(answer).encode())
