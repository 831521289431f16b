"""The command `trnready`: gathers the commands of every part and turns their errors into one sentence."""

from __future__ import annotations

import inspect
import re
import sys
from importlib.metadata import version as installed_version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trnready import check_command, repeat_command
from trnready.errors import TrnreadyError
from trnready.hub import commands as hub_commands
from trnready.plan import commands as plan_commands
from trnready.results import commands as results_commands
from trnready.space import commands as space_commands
from trnready.sweep import commands as sweep_commands


class _Commands(TyperGroup):
    """All commands; what is wrong with an argument is told in words of ours, not of Typer's validator."""

    def invoke(self, ctx: Any) -> Any:
        """Run what was asked for. Raises `typer.BadParameter`."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ").replace("Input should", "it should")
            raise


PIPE_WIDTH = 120
"""Columns of help that goes to a pipe or a file."""

# Without a standard output, as after `>&-`, Python has None for it.
_IN_TERMINAL = sys.stdout is not None and sys.stdout.isatty()

app = typer.Typer(
    name="trnready",
    cls=_Commands,
    help="Which models run on AWS Trainium? Test one on the neuron device, and look at the results.\n\n"
    "Example: trnready check HuggingFaceTB/SmolLM2-135M-Instruct --results results",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # In a pipe Typer's boxes are 80 columns wide and cut long names; Click's plain text keeps them whole.
    rich_markup_mode="rich" if _IN_TERMINAL else None,
    context_settings={} if _IN_TERMINAL else {"terminal_width": PIPE_WIDTH},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trnready {installed_version('trnready')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


# The commands of every part, one line each.
check_command.register(app)
hub_commands.register(app)
plan_commands.register(app)
repeat_command.register(app)
results_commands.register(app)
space_commands.register(app)
sweep_commands.register(app)


def _join_lines(commands: typer.Typer) -> None:
    """Let every paragraph of a help text be wrapped anew: in its docstring it is wrapped for the source."""
    for command in commands.registered_commands:
        written = command.help or inspect.getdoc(command.callback) or ""
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", written)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _join_lines(group.typer_instance)


_join_lines(app)


def main() -> None:
    """Run the command line: a `TrnreadyError` becomes one sentence on standard error and its exit status."""
    try:
        app()
    except TrnreadyError as error:
        typer.echo(f"trnready: {error}", err=True)
        sys.exit(error.exit_status)
