"""The commands `trnready results compact|show|diff|export|verify`."""

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


def test_show_shows_the_rest_when_files_cannot_be_read(app: typer.Typer, tmp_path: Path, make_row) -> None:
    journal.write(tmp_path, make_row())
    for name in ("x", "y"):
        (tmp_path / "journal" / f"{name}.json").write_text("{")
    command = ["results", "show", "--results", str(tmp_path)]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "160"})
    assert done.exit_code == 1
    assert "acme/tiny-1b" in done.stdout
    for name in ("x", "y"):
        damaged = f"{tmp_path}/journal/{name}.json"
        assert f"warning: {damaged} cannot be read as a result: it is damaged. Move it away" in done.stderr
    done = CliRunner().invoke(app, [*command, "--json"])
    assert (done.exit_code, len(json.loads(done.stdout))) == (1, 1)
    for path in journal.entries(tmp_path):
        path.write_text("{")
    assert CliRunner().invoke(app, command).stdout == ""


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
    with pytest.raises(TrnreadyError, match=r"there is no results folder at .*/none; `trnready check MODEL`"):
        run(app, "results", "show", "--results", str(tmp_path / "none"))


@pytest.fixture
def two_pairs(tmp_path: Path, make_row) -> Path:
    results = tmp_path / "results"
    for version, first, second in (("5.23.0", "PASS", "FAIL"), ("5.24.0", "FAIL", "PASS")):
        for model, result in (("a/breaks", first), ("b/mends", second)):
            reason = "match" if result == "PASS" else "mismatch"
            changes = {"model_id": model, "library_version": version, "run_id": f"{model[0]}{version}"}
            journal.write(results, make_row(result=result, reason=reason, **changes))
    return results


def test_diff_of_two_pairs_of_versions(app: typer.Typer, two_pairs: Path) -> None:
    arguments = ["results", "diff", "5.23.0", "5.24.0", "--results", str(two_pairs)]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    assert done.exit_code == 1
    assert re.search(r"broken +a/breaks +PASS +FAIL", done.stdout)
    assert re.search(r"fixed +b/mends +FAIL +PASS", done.stdout)
    assert "1 broken, 1 fixed, 0 still failing, 0 new, 0 gone, 0 still passing." in done.stdout
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert (found["before"], found["counts"]["broken"]) == ("5.23.0", 1)
    assert found["broken"][0]["model_id"] == "a/breaks"


def test_diff_of_a_file_with_itself_breaks_nothing(app: typer.Typer, two_pairs: Path) -> None:
    run(app, "results", "compact", "--results", str(two_pairs))
    (one, _) = sorted(map(str, (two_pairs / "data").iterdir()))
    assert "0 broken, 0 fixed, 1 still failing, 0 new, 0 gone, 1 still passing." in run(
        app, "results", "diff", one, one
    )
    assert "0 new, 0 gone" in run(app, "results", "diff", str(two_pairs), str(two_pairs))
    with pytest.raises(TrnreadyError, match="nowhere is no file, and there is no results folder at"):
        run(app, "results", "diff", "nowhere", one, "--results", str(two_pairs / "none"))


def test_a_diff_without_changes_is_one_line(app: typer.Typer, tmp_path: Path, make_row) -> None:
    for version in ("5.23.0", "5.24.0"):
        journal.write(tmp_path, make_row(library_version=version, run_id=version))
    told = run(app, "results", "diff", "5.23.0", "5.24.0", "--results", str(tmp_path))
    assert told == "0 broken, 0 fixed, 0 still failing, 0 new, 0 gone, 1 still passing.\n"


def test_export_writes_a_selection(app: typer.Typer, two_pairs: Path, tmp_path: Path) -> None:
    common = ["--results", str(two_pairs), "--columns", "model_id,result", "--versions", "5.23"]
    run(app, "results", "export", str(tmp_path / "out.csv"), "--result", "FAIL", *common)
    assert (tmp_path / "out.csv").read_bytes() == b"model_id,result\r\nb/mends,FAIL\r\n"
    printed = run(app, "results", "export", "-", "--format", "json", *common)
    assert json.loads(printed) == [
        {"model_id": "a/breaks", "result": "PASS"},
        {"model_id": "b/mends", "result": "FAIL"},
    ]
    done = CliRunner().invoke(app, ["results", "export", "x.txt", *common], env={"COLUMNS": "160"})
    assert done.exit_code == 2
    assert "ends in none of .csv, .json and .parquet" in done.stderr


def test_verify_says_by_its_status_whether_all_is_sound(app: typer.Typer, two_pairs: Path) -> None:
    assert "4 runs in the journal: all sound." in run(app, "results", "verify", "--results", str(two_pairs))
    (two_pairs / "journal" / "x.json").write_text("{")
    done = CliRunner().invoke(app, ["results", "verify", "--results", str(two_pairs)])
    assert done.exit_code == 1
    assert "x.json cannot be read as a result" in done.stdout
    assert "1 problem." in done.stdout
