"""`trnready space deploy`: a Docker Space that starts there by the command that starts it here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from trnready.cli import app
from trnready.results import dataset, journal
from trnready.space.deploy import CannotDeploy

WITHOUT_PYTORCH = """
import sys

class Missing:
    @staticmethod
    def find_spec(name, *_):
        if name.partition(".")[0] in ("torch", "transformers", "accelerate", "pandas", "softneuron"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing)
from trnready.cli import main
main()
"""
"""A container of the Space has none of these."""


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, catalogs: Path) -> Path:
    folder = tmp_path_factory.mktemp("deployed") / "space"
    for _ in range(2):
        arguments = ["space", "deploy", str(folder), "--dataset", "acme/results", "--catalog", str(catalogs)]
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert "It starts with: trnready serve --results hf://datasets/acme/results" in done.stdout
    return folder


def start(folder: Path) -> list[str]:
    """Give the command that the Dockerfile starts."""
    found = re.search(r"^CMD (.*)$", (folder / "Dockerfile").read_text(), re.MULTILINE)
    assert found
    command: list[str] = json.loads(found[1])
    return command


def test_the_folder_is_a_docker_space(deployed: Path) -> None:
    readme = (deployed / "README.md").read_text()
    front = yaml.safe_load(readme.split("---\n")[1])
    assert (front["sdk"], front["app_port"], front["datasets"]) == ("docker", 7860, ["acme/results"])
    assert start(deployed)[-1] == str(front["app_port"])
    assert " ".join(start(deployed)) in readme
    project = tomllib.loads((deployed / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"trnready": "trnready.cli:main"}
    needed = " ".join(project["dependencies"])
    assert "fastapi" in needed
    assert "torch" not in needed
    assert (deployed / "catalog" / "selected.yaml").is_file()
    assert (deployed / "datasets" / "architectures.jsonl").is_file()
    assert (deployed / "datasets" / "architectures-2-cores.jsonl").is_file()
    assert not list(deployed.rglob("__pycache__"))


def test_it_starts_by_the_same_command_without_pytorch(deployed: Path, hub, tmp_path: Path, make_row) -> None:
    served = hub.datasets["acme/results"] = tmp_path / "served"
    journal.write(served, make_row())
    dataset.compact(served)
    command = start(deployed)
    assert command[0] == "trnready"
    command[command.index("--port") + 1] = "0"
    environment = os.environ | {
        "PYTHONPATH": ":".join([str(deployed), *sys.path]),
        "HF_ENDPOINT": hub.address,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "hf"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONUNBUFFERED": "1",
    }
    program = [sys.executable, "-P", "-c", WITHOUT_PYTORCH, *command[1:]]
    with subprocess.Popen(
        program, cwd=deployed, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            port = re.search(r"127\.0\.0\.1:(\d+)", line)
            assert port, line
            assert line.startswith("Serving hf://datasets/acme/results on ")
            base = f"http://127.0.0.1:{port[1]}"
            assert httpx.get(f"{base}/api/v1/models/acme/tiny-1b").json()["answer"] == "yes"
            assert httpx.get(f"{base}/downloads").status_code == 200
        finally:
            process.terminate()


def test_what_is_somebody_elses_is_left_alone(tmp_path: Path, catalogs: Path) -> None:
    arguments = ["space", "deploy", str(tmp_path), "--dataset", "a/b", "--catalog", str(catalogs)]
    (tmp_path / "README.md").write_text("# My project\n")
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, CannotDeploy)
    assert str(done.exception) == (
        f"{tmp_path / 'README.md'} was not written by this command; choose another folder."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    # A new Space's README, as the Hub makes it, is to be written over.
    (tmp_path / "README.md").write_text("---\ntitle: New\nsdk: docker\n---\n")
    assert CliRunner().invoke(app, arguments).exit_code == 0
