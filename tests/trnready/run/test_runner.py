"""How a script is run: which folders the model's process finds by the variables of the user's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trnready.run.process import Finished
from trnready.run.runner import Runner


class Nobody:
    def stage(self, name: str) -> None: ...

    def tick(self) -> None: ...


@pytest.mark.parametrize(
    ("name", "given", "seen"),
    [
        ("TORCH_NEURONX_NEFF_CACHE_DIR", "neff", "{here}/neff"),
        ("TORCH_NEURONX_NEFF_CACHE_DIR", "s3://bucket/neff", "s3://bucket/neff"),
        ("HF_HOME", "/hub", "/hub"),
        ("HF_HOME", "~/hub", "~/hub"),
        ("PYTHONPATH", f"src{os.pathsep}/lib", f"{{here}}/src{os.pathsep}/lib"),
    ],
)
def test_relative_folders_are_those_of_whoever_runs_it(tmp_path, monkeypatch, name, given, seen):
    own = tmp_path / "run"
    own.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, given)
    python = sys.executable
    runner = Runner(python, own, "logits", 60, None, offline=False, watch=Nobody())
    ended, said = runner.probe(f"import os; print(os.environ[{name!r}])")
    assert isinstance(ended.ending, Finished), said
    assert said.strip() == seen.format(here=Path.cwd())
