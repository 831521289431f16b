"""The command `softneuron` looks after the NEFF cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from softneuron.cli import app
from softneuron.compiler.cache import PACKAGE, NeffCache


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    for key in ("aa11", "ab22"):
        NeffCache(tmp_path).find_or_build(
            key, lambda package: {"graph_name": "tiny", "bytes": package.write_bytes(b"x" * 2**20)}
        )
    return tmp_path


def run(cache: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["neff", *words, "--cache", str(cache)])
    return done.exit_code, done.output


def test_list_names_graphs_and_their_size(cache: Path):
    status, output = run(cache, "list")
    assert status == 0
    assert "MODULE_aa11" in output
    assert "2 graphs, 2.0 MiB" in output


def test_a_list_that_is_no_terminals_keeps_names_whole(tmp_path: Path):
    key = "c3" * 60
    NeffCache(tmp_path).find_or_build(
        key, lambda package: {"graph_name": "tiny", "bytes": package.write_bytes(b"x")}
    )
    _, output = run(tmp_path, "list")
    (line,) = [line for line in output.splitlines() if "MODULE_" in line]
    assert line.split()[0] == f"MODULE_{key}"
    assert line == line.rstrip()


def test_show_takes_the_start_of_a_name(cache: Path):
    status, output = run(cache, "show", "MODULE_aa")
    assert (status, json.loads(output)["graph_name"]) == (0, "tiny")
    assert run(cache, "show", "a")[0] == 2
    assert run(cache, "show", "zz")[0] == 2


def test_verify_finds_what_is_damaged_and_clean_removes_it(cache: Path):
    (cache / "MODULE_aa11" / PACKAGE).write_bytes(b"y" * 2**20)
    assert run(cache, "verify") == (
        1,
        f"MODULE_aa11: its package is not the one that was built\n1 of 2 graphs in {cache} are whole.\n",
    )
    assert run(cache, "clean", "--damaged") == (0, f"Removed 1 graphs, 1.0 MiB, from {cache}.\n")
    assert run(cache, "verify")[0] == 0
    assert run(cache, "clean") == (0, f"Removed 1 graphs, 1.0 MiB, from {cache}.\n")
    assert run(cache, "list") == (0, f"{cache} holds no compiled graphs.\n")
