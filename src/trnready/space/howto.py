"""How a reader runs a model: the packages to install on top of the stack, and the compiled graphs that can be
copied first. A model's page lays it out."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass

from trnready.errors import TrnreadyError
from trnready.results import units
from trnready.results.row import Row
from trnready.script.task import literal
from trnready.space.plain import plain

CACHE = "/tmp/neff_cache"
"""Where the device looks for compiled graphs unless told otherwise."""

TORCH = "2.13.0"
"""PyTorch's version that softneuron is built for."""

_MODEL = re.compile(r"^MODEL = (?P<value>[\"'].*)$", re.MULTILINE)

_BUCKET = re.compile(r"(?P<name>[\w.-]+/[\w.-]+):(?P<versions>[\w.+,-]+)")


class BadBucket(TrnreadyError):
    """What was said about a public NEFF cache names none."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A public bucket of compiled graphs on the Hub, and the compiler versions it holds."""

    name: str
    versions: tuple[str, ...]


def bucket(text: str) -> Bucket:
    """Read `OWNER/NAME:VERSION[,VERSION…]`. Raises `BadBucket`."""
    found = _BUCKET.fullmatch(text)
    versions = tuple(version for version in found["versions"].split(",") if version) if found else ()
    if found is None or not versions:
        raise BadBucket(
            f"{text!r} names no public NEFF cache: write OWNER/NAME:VERSION[,VERSION…] with the compiler "
            "versions that it holds."
        )
    return Bucket(found["name"], versions)


@dataclass(frozen=True, slots=True)
class HowTo:
    """The commands to type before `python3 run.py`; None where there is none."""

    install: str | None
    sync: str | None
    sync_words: str


def how_to(row: Row, public: Bucket | None) -> HowTo:
    """Give the commands that repeat a run."""
    packages = " ".join(shlex.quote(plain(package)) for package in row.packages)
    install = f"pip install {packages}" if packages else None
    if public is None or row.neuronx_cc not in public.versions:
        return HowTo(install, None, _without(row, public))
    source = f"hf://buckets/{public.name}/neuronxcc-{row.neuronx_cc}"
    return HowTo(install, f"hf buckets sync {shlex.quote(source)} {CACHE}", _saved(row))


@dataclass(frozen=True, slots=True)
class Script:
    """A run's `run.py` for a reader's machine; `from_folder` when it names the model where the test named a
    folder of its own machine."""

    text: str
    from_folder: bool


def script(row: Row) -> Script | None:
    """Give the script of a run, None when none was recorded. It is the one that ran, but for
    the model's folder."""
    if row.run_py is None:
        return None
    found = _MODEL.search(row.run_py)
    if found is None or not _is_absolute(found["value"]):
        return Script(row.run_py, False)
    line = f"MODEL = {literal(row.model_id)}  # in the test, a folder with this model"
    return Script(row.run_py[: found.start()] + line + row.run_py[found.end() :], True)


def _is_absolute(value: str) -> bool:
    """Say whether a Python literal is the path of a folder, of this or another system."""
    try:
        path = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return False
    return isinstance(path, str) and (path.startswith(("/", "\\\\")) or path[1:3] in (":\\", ":/"))


def _without(row: Row, public: Bucket | None) -> str:
    why = (
        "No public cache of compiled graphs is configured for this Space"
        if public is None
        else f"The public cache {public.name} holds no graphs of the compiler {row.neuronx_cc}"
    )
    took = "" if row.compile_s is None else f", which took {units.seconds(row.compile_s)} in the test"
    return f"{why}, so the first run compiles the model's graphs{took}. {CACHE} keeps them for the next run."


def _saved(row: Row) -> str:
    graphs = "the graphs" if not row.neff_modules else units.count(len(row.neff_modules), "graph")
    start = f"This copies {graphs} built in testing, so that the first run loads instead of compiling."
    if row.compile_s is None:
        return start
    if row.compile_warm_s is None:
        return f"{start} Compiling took {units.seconds(row.compile_s)} in the test."
    return (
        f"{start} In the test that meant {units.seconds(row.compile_warm_s)} "
        f"instead of {units.seconds(row.compile_s)}."
    )
