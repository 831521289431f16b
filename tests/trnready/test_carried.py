"""Catalogs and twins are found in a checkout, and in a package that was built from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trnready import carried

CHECKOUT = Path(__file__).resolve().parents[2]
EXPECTED = (
    "catalog/image-text-to-text.parquet",
    "catalog/selected.yaml",
    "catalog/text-generation.parquet",
    "catalog/unknown.parquet",
    "datasets/architectures-2-cores.jsonl",
    "datasets/architectures-O1.jsonl",
    "datasets/architectures.jsonl",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python part of the package, as it is installed when it is not editable."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, copy)
    for name in ("catalog", "datasets", "src"):
        shutil.copytree(
            CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("*.so", "*.egg-info", ".*")
        )
    to = copy / "installed"
    program = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(to)]
    subprocess.run(program, cwd=copy, check=True, capture_output=True)
    return to


def run(installed: Path, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(installed),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    program = [sys.executable, "-P", "-m", "trnready", *arguments]
    return subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True)


def test_a_checkout_has_the_folders_itself() -> None:
    assert carried.root() == CHECKOUT


def test_a_built_package_holds_them_whole(built: Path) -> None:
    shipped = built / "trnready" / carried.NAME
    files = sorted(path for path in shipped.rglob("*") if path.is_file())
    assert tuple(str(path.relative_to(shipped)) for path in files) == EXPECTED
    for path in files:
        assert path.read_bytes() == (CHECKOUT / path.relative_to(shipped)).read_bytes()


def test_an_installed_command_answers_from_them(built: Path, tmp_path: Path) -> None:
    done = run(built, tmp_path, "can-i-run", "Qwen/Qwen3-0.6B")
    assert done.returncode == 2
    assert "Qwen/Qwen3-0.6B was not tested. Prediction, not a result: a shrunk twin of its" in done.stdout


def test_an_installed_command_writes_them_into_a_space_once(built: Path, tmp_path: Path) -> None:
    code = "from pathlib import Path; from trnready.space import deploy, mirror, sources; " + (
        "deploy.write(Path('space'), mirror.parse('hf://datasets/a/b'), sources.find(Path('results')))"
    )
    environment = os.environ | {"PYTHONPATH": str(built), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, check=True)
    files = sorted(path for path in (tmp_path / "space").rglob("*") if path.suffix in (".parquet", ".jsonl"))
    assert [str(path.relative_to(tmp_path / "space")) for path in files] == [
        name for name in EXPECTED if name.endswith((".parquet", ".jsonl")) and "-O1" not in name
    ]
