"""The command `trnready can-i-run`: asks a Space by its address, or a dataset of results, whether a model
runs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer

from trnready.errors import TrnreadyError
from trnready.results.row import DEVICE_KINDS
from trnready.script.task import names
from trnready.space import mirror, sources
from trnready.space.answer import Answer, answer
from trnready.space.ask import Ask
from trnready.space.index import Index
from trnready.space.plain import plain
from trnready.space.query import BadQuery

EXIT_STATUS = {"yes": 0, "no": 1, "unknown": 2}
TIMEOUT_S = 30
RESULTS = "results"


class NoAnswer(TrnreadyError):
    """The Space does not answer, or with something else than an answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A model, and the versions and device that a row must have; None means any."""

    model_id: str
    task: str | None
    neuronx_cc: str | None
    library_version: str | None
    device_kind: str | None


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("can-i-run")(can_i_run)


def can_i_run(
    model: Annotated[str, typer.Argument(help="A model's id on the Hub, such as Qwen/Qwen3-0.6B.")],
    space: Annotated[
        str | None,
        typer.Option("--space", metavar="URL", help="Ask this Space, such as http://127.0.0.1:7860."),
    ] = None,
    results: Annotated[
        str | None,
        typer.Option(
            "--results",
            metavar="DIR",
            help="Ask this folder, or hf://datasets/owner/name.",
            show_default=RESULTS,
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="For this task of the Hub's.", show_default="any")] = None,
    neuronx_cc: Annotated[
        str | None,
        typer.Option("--neuronx-cc", help="With this version of the compiler.", show_default="any"),
    ] = None,
    library_version: Annotated[
        str | None, typer.Option(help="With this version of the library.", show_default="any")
    ] = None,
    device_kind: Annotated[
        str | None,
        typer.Option(help="On hardware or software cores alone.", show_default="hardware before software"),
    ] = None,
) -> None:
    """Say in one sentence whether a model runs, from what was tested.

    Exit status: 0 it runs, 1 it does not, 2 that cannot be told: it was not tested, or nobody answers. A
    prediction is said to be one, and is no answer.

    Example: trnready can-i-run Qwen/Qwen3-0.6B --results results
    """
    if device_kind not in (None, *DEVICE_KINDS):
        raise BadQuery(f"there is no device kind {device_kind!r}; it is {' or '.join(DEVICE_KINDS)}.")
    if not model.strip():
        raise BadQuery("name a model, such as Qwen/Qwen3-0.6B.")
    question = Question(model, task, neuronx_cc, library_version, device_kind)
    found = _ask_results(results, question) if space is None else _ask_space(space, question)
    typer.echo(plain(found.sentence))
    raise typer.Exit(EXIT_STATUS[found.word])


def _ask_results(results: str | None, question: Question) -> Answer:
    address = None if results is None else mirror.parse(results)
    folder = Path(results or RESULTS) if address is None else mirror.Mirror(address).open()
    if results is not None:
        sources.check_named(folder)
    elif not folder.is_dir():
        typer.echo(f"warning: there is no results folder at {folder}; --results names one.", err=True)
    ask = Ask(
        neuronx_cc=question.neuronx_cc,
        library_version=question.library_version,
        device_kind=question.device_kind,
    )
    index = Index(folder)
    for notice in index.notices():
        typer.echo(f"warning: {notice}", err=True)
    if question.task not in (None, *names(), *index.tasks()):
        raise BadQuery(f"there is no task {question.task!r} here; trnready tests {', '.join(names())}.")
    found = index.model(question.model_id, question.task, ask)
    if found is None:
        return Answer(
            "unknown", f"Nothing is known of {question.model_id}: it is in no list and has no result."
        )
    return answer(found, ask)


def _ask_space(space: str, question: Question) -> Answer:
    base = space.rstrip("/")
    if urlsplit(base).scheme not in ("http", "https") or not urlsplit(base).netloc:
        raise NoAnswer(f"{space!r} is no address of a Space; one begins with http:// or https://.")
    asked = {
        "task": question.task,
        "neuronx_cc": question.neuronx_cc,
        "library_version": question.library_version,
        "device_kind": question.device_kind,
    }
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    address = f"{base}/api/v1/models/{quote(question.model_id, safe='/')}?{query}"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as response:
            said = json.load(response)
    except urllib.error.HTTPError as error:
        return _refused(space, question, error)
    except (OSError, ValueError, UnicodeError) as error:
        reason = getattr(error, "reason", error)
        raise NoAnswer(f"the Space {space} does not answer ({reason}).") from error
    return _read(space, said)


def _refused(space: str, question: Question, error: urllib.error.HTTPError) -> Answer:
    try:
        said: Any = json.load(error)["error"]
    except (OSError, ValueError, KeyError, TypeError):
        said = None
    if error.code == 404 and isinstance(said, str):
        return Answer("unknown", f"{question.model_id}: {said}")
    told = f": {said}" if isinstance(said, str) else ""
    raise NoAnswer(f"the Space {space} refuses the question (HTTP status {error.code}){told}")


def _read(space: str, said: Any) -> Answer:
    match said:
        case {"answer": "yes" | "no" | "unknown" as word, "sentence": str(sentence)}:
            return Answer(word, sentence)
    raise NoAnswer(f"what is at {space} is no Space of trnready: its answer cannot be read.")
