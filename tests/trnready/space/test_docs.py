"""What a user can ask for is described: every address of the API, every command of catalogs and Space."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from trnready.cli import app
from trnready.space.ask import SORTS, VIEWS

DOCS = Path(__file__).parents[3] / "docs"


def test_every_address_of_the_api_is_described(make_space, tmp_path: Path) -> None:
    text = (DOCS / "api.md").read_text()
    for address in make_space(tmp_path).openapi()["paths"]:
        assert f"`{address}`" in text
    for word in (*VIEWS, *SORTS):
        assert f"`{word}`" in text


@pytest.mark.parametrize(
    ("command", "page"),
    [
        ("catalog refresh", "catalog.md"),
        ("catalog check", "catalog.md"),
        ("space index", "catalog.md"),
        ("space deploy", "api.md"),
        ("can-i-run", "api.md"),
        ("serve", "space.md"),
    ],
)
def test_every_command_is_described(command: str, page: str) -> None:
    found = get_command(app)
    for part in command.split():
        found = found.commands[part]
    assert found.help
    assert "Example: trnready" in found.help
    assert f"trnready {command}" in (DOCS / page).read_text()
