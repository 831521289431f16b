"""The command line: help texts, and what is said of arguments that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from trnready.cli import app
from trnready.results.commands import NoSuchChoice


def commands(found: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, found
    for name, each in getattr(found, "commands", {}).items():
        yield from commands(each, (*words, name))


EVERY = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_texts_are_wrapped_where_the_terminal_ends_and_not_before(words: tuple[str, ...]) -> None:
    command = EVERY[words]
    assert command.help
    for paragraph in command.help.split("\n\n"):
        assert "\n" not in paragraph
    for option in command.params:
        assert "  " not in (getattr(option, "help", None) or "")
    shown = " ".join(CliRunner().invoke(app, [*words, "--help"]).output.split())
    for paragraph in command.help.split("\n\n"):
        assert paragraph in shown
    for each in (*command.params, *getattr(command, "commands", {}).values()):
        # In a pipe, as here, no name is cut.
        called = [*getattr(each, "opts", [each.name]), getattr(each, "metavar", None)]
        assert any(f" {name} " in shown for name in called)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("fetch nope", "Invalid value for 'model': 'nope' is not one of 'smollm2', 'minilm'."),
        (
            "check x --dtype int8",
            "Invalid value for '--dtype': 'int8' is not one of 'bfloat16', 'float16', 'float32'.",
        ),
        ("check x --device tpu", "Invalid value for '--device': 'tpu' is not one of 'neuron', 'cpu'."),
        ("check x --cores 0", "Invalid value for '--cores': it should be greater than or equal to 1"),
        (
            "results export x.csv --format x",
            "Invalid value for '--format': 'x' is not one of 'csv', 'json', 'parquet'.",
        ),
        ("serve --port 99999", "Invalid value for '--port': it should be less than or equal to 65535"),
    ],
)
def test_a_wrong_argument_is_told_in_plain_words(line: str, told: str) -> None:
    done = CliRunner().invoke(app, line.split(), env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert told in done.output
    assert "Value error" not in done.output


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--result nope", "there is no result 'nope'; there is PASS, FAIL, SKIPPED."),
        ("--reason nope", "there is no reason 'nope'; there is match, match_within_noise, judged, "),
        ("--device-kind nope", "there is no device kind 'nope'; there is hardware, software."),
    ],
)
def test_an_export_of_what_cannot_be_is_refused(option: str, told: str) -> None:
    done = CliRunner().invoke(app, ["results", "export", "-", *option.split()])
    assert isinstance(done.exception, NoSuchChoice)
    assert str(done.exception).startswith(told)
