"""Tables on a terminal are fitted to it; elsewhere nothing is wrapped."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.table import Table

from trnready.console import output
from trnready.results import journal

NAME = "acme/" + "a-very-long-name-" * 6 + "7b"
ERROR = "no file at " + "/home/somebody/a/long/path" * 6


@pytest.fixture
def results(tmp_path: Path, make_row) -> Path:
    row = make_row(model_id=NAME, result="FAIL", reason="error", error=ERROR)
    journal.write(tmp_path / "results", row)
    return tmp_path / "results"


def command(results: Path) -> list[str]:
    program = "from trnready.cli import main; main()"
    return [sys.executable, "-c", program, "results", "show", NAME, "--results", str(results)]


@pytest.mark.parametrize("more", [{}, {"FORCE_COLOR": "1"}, {"COLUMNS": "40"}])
def test_in_a_pipe_no_line_is_wrapped_or_filled_up(results: Path, more: dict[str, str]) -> None:
    done = subprocess.run(
        command(results), capture_output=True, text=True, check=True, env=os.environ | more, encoding="utf-8"
    )
    assert any(line.endswith(NAME) for line in done.stdout.splitlines())
    assert any(line.endswith(ERROR) for line in done.stdout.splitlines())
    assert not [line for line in done.stdout.splitlines() if line.endswith(" ")]


def test_on_a_terminal_lines_fit_it(results: Path) -> None:
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 60, 0, 0))
    environment = os.environ | {"TERM": "xterm"}
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)
    with subprocess.Popen(command(results), stdout=terminal, env=environment):
        os.close(terminal)
        told = b""
        try:
            while more := os.read(reader, 65536):
                told += more
        except OSError:
            pass  # Linux ends a terminal nobody writes to with an error.
    os.close(reader)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", told.decode()).splitlines()
    assert NAME not in told.decode()
    assert 40 < max(len(line) for line in lines) <= 60


def test_a_table_is_as_wide_as_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_row("one", "x" * 200)
    table.add_row("three", "y")
    output().print(table)
    assert capsys.readouterr().out == f"one    {'x' * 200}\nthree  y\n"
