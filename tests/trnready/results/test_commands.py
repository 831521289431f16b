"""The commands `trnready results compact` and `trnready results show`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from trnready.errors import TrnreadyError
from trnready.results import journal
from trnready.results.commands import register


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    register(app)
    return app


def run(app: typer.Typer, *arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_compact_says_what_it_did(app: typer.Typer, tmp_path: Path, make_row) -> None:
    journal.write(tmp_path, make_row())
    assert run(app, "results", "compact", "--results", str(tmp_path)).startswith("1 run folded into ")
    assert (tmp_path / "README.md").exists()


def test_show_lists_every_model(app: typer.Typer, tmp_path: Path, make_row) -> None:
    journal.write(tmp_path, make_row())
    journal.write(tmp_path, make_row(model_id="x/[red]y", result="FAIL", reason="crash", run_id="b"))
    out = run(app, "results", "show", "--results", str(tmp_path))
    assert "acme/tiny-1b" in out
    assert re.search(r"acme/tiny-1b +PASS +1 +41.5 s +300.0 MiB +software", out)
    assert re.search(r"soft-0.1.0, transformers 5.24.0 +match", out)
    assert "x/[red]y" in out
    assert re.search(r"soft-0.1.0, transformers 5.24.0 +crash", out)


def test_overview_fits_a_narrow_terminal(app: typer.Typer, tmp_path: Path, make_row) -> None:
    journal.write(tmp_path, make_row(reason="match_within_noise", neuron_cores=None))
    done = CliRunner().invoke(app, ["results", "show", "--results", str(tmp_path)], env={"COLUMNS": "80"})
    words = done.stdout.split()
    for word in ("acme/tiny-1b", "soft-0.1.0,", "noise", "-", "41.5", "software"):
        assert word in words


def test_show_one_model_states_what_is_known(app: typer.Typer, tmp_path: Path, make_row) -> None:
    journal.write(tmp_path, make_row(log_tail="\x1b[31mred\nline", run_py="print()"))
    out = run(app, "results", "show", "acme/tiny-1b", "--results", str(tmp_path))
    assert "match" in out
    assert "\x1b" not in out
    assert "graphs" not in out


def test_show_json_is_the_rows(app: typer.Typer, tmp_path: Path, make_row) -> None:
    journal.write(tmp_path, make_row())
    assert json.loads(run(app, "results", "show", "--json", "--results", str(tmp_path))) == [
        make_row().to_json()
    ]


def test_unknown_model_and_empty_folder_are_said(app: typer.Typer, tmp_path: Path) -> None:
    assert "holds no results yet; `trnready check MODEL" in run(
        app, "results", "show", "--results", str(tmp_path)
    )
    with pytest.raises(TrnreadyError, match="holds no result of a/b; `trnready check a/b` makes one"):
        run(app, "results", "show", "a/b", "--results", str(tmp_path))
