"""The command `trnready serve`, as a real process."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from trnready.cli import app
from trnready.script.task import names
from trnready.space.commands import CannotListen, address, listen
from trnready.space.sources import NoSuchFolder

COMMAND = [sys.executable, "-c", "from trnready.cli import main; main()", "serve"]


@contextmanager
def serving(results_dir: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [*COMMAND, "--results", str(results_dir), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PYTHONUNBUFFERED": "1", "PYTHONPATH": ":".join(sys.path)},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if line.startswith("Indexing the names"):
            line = process.stdout.readline()
        found = re.fullmatch(
            rf"Serving {re.escape(str(results_dir))} on (http://127\.0\.0\.1:\d+) \(Ctrl\+C stops\)\n", line
        )
        assert found, line
        yield found[1]
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=20)[0]
    assert "Traceback" not in rest


def test_serve_says_where_and_answers(shared_results_dir: Path) -> None:
    with serving(shared_results_dir) as base:
        assert httpx.get(base).status_code == 200
        assert httpx.get(f"{base}/api/v1/about").json()["rows"] == 7
        assert httpx.get(f"{base}/?q=" + "a" * 10_000).status_code == 400
        assert httpx.get(f"{base}/").headers.get("server") is None


def test_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--results", str(tmp_path), "--port", str(port)],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": ":".join(sys.path)},
        )
    assert done.returncode == 2
    assert done.stderr == f"trnready: port {port} on 127.0.0.1 is in use; choose another with --port.\n"


def test_unknown_host_is_one_sentence() -> None:
    with pytest.raises(CannotListen, match=r"there is no host called 'nowhere\.invalid'"):
        listen("nowhere.invalid", 0)
    with pytest.raises(CannotListen, match=r"cannot listen on 192\.0\.2\.1 port 0: "):
        listen("192.0.2.1", 0)


def test_address_can_be_typed_into_a_browser() -> None:
    with listen("0.0.0.0", 0) as every:
        assert address(every, "0.0.0.0") == f"http://127.0.0.1:{every.getsockname()[1]}"
        assert address(every, "::1").startswith("http://[::1]:")


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["space", "index"], ["can-i-run", "acme/x"]])
def test_a_results_folder_that_was_named_and_is_not_there_is_told(command: list[str], tmp_path: Path) -> None:
    missing = tmp_path / "nope"
    done = CliRunner().invoke(app, [*command, "--results", str(missing)])
    assert isinstance(done.exception, NoSuchFolder)
    assert str(done.exception) == (
        f"there is no results folder at {missing}; `trnready check MODEL --results {missing}` makes one."
    )
    assert done.exception.exit_status == 2
    missing.write_text("no folder")
    done = CliRunner().invoke(app, [*command, "--results", str(missing)])
    assert isinstance(done.exception, NoSuchFolder)
    assert str(done.exception) == f"{missing} is a file, not a folder."


@pytest.mark.parametrize(
    "command", [["serve", "--port", "0"], ["space", "index"], ["space", "deploy", "x", "--dataset", "a/b"]]
)
def test_a_catalog_folder_that_was_named_and_is_not_there_is_told(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*command, "--catalog", "nope"])
    assert isinstance(done.exception, NoSuchFolder)
    assert str(done.exception) == (
        "there is no folder with catalogs at nope; `trnready catalog refresh --catalog nope` makes one."
    )
    assert list(tmp_path.iterdir()) == []


def test_without_a_results_folder_the_lists_are_shown_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for task in names():  # known even where nothing of it is
        assert CliRunner().invoke(app, ["can-i-run", "no/model", "--task", task]).exit_code == 2
    done = CliRunner().invoke(app, ["can-i-run", "Qwen/Qwen3-0.6B"])
    assert done.stderr == "warning: there is no results folder at results; --results names one.\n"
    assert done.stdout.startswith("Qwen/Qwen3-0.6B was not tested.")
    assert done.exit_code == 2
    # A Space is indexed before its results are brought.
    assert CliRunner().invoke(app, ["space", "index"]).exit_code == 0
