"""Writes the folder of a Docker Space: a Dockerfile, a README with the Hub's front matter, and trnready
with the catalogs. `trnready space deploy` calls it; the Dockerfile starts the Space as one starts it here."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from importlib.metadata import requires, version
from pathlib import Path

from trnready import carried
from trnready.errors import TrnreadyError
from trnready.hub import catalog
from trnready.space.mirror import Address
from trnready.space.sources import TWINS, Sources

PORT = 7860
MARK = "Written by `trnready space deploy`; edits are lost at the next one."
NEEDS = (
    "huggingface_hub", "filelock", "numpy", "pyarrow", "typer", "rich", "pyyaml", "fastapi", "jinja2",
    "uvicorn", "feedgen",
)  # fmt: skip
"""What the Space needs of trnready's dependencies. PyTorch is not among them: it runs no models."""

_README = """\
---
title: Which models run on AWS Trainium
emoji: 🧪
colorFrom: gray
colorTo: green
sdk: docker
app_port: {port}
license: apache-2.0
datasets:
- {dataset}
---

<!-- {mark} -->

Which models run on AWS Trainium, and how: the results of the dataset
[{dataset}](https://huggingface.co/datasets/{dataset}). The same on your own machine:

```
{command}
```
"""

_DOCKERFILE = """\
# {mark}
FROM python:3.12-slim
RUN useradd --create-home --uid 1000 user
USER user
ENV HOME=/home/user PATH=/home/user/.local/bin:$PATH PYTHONUNBUFFERED=1
# The Hub's proxy says by which address the Space was asked for.
ENV FORWARDED_ALLOW_IPS=*
WORKDIR /home/user/app
COPY --chown=user . .
# The names are indexed beforehand, so that the Space starts at once.
RUN pip install --no-cache-dir --user . && trnready space index
EXPOSE {port}
CMD {command}
"""

_PYPROJECT = """\
# {mark}
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "trnready"
version = {version}
requires-python = ">=3.11"
dependencies = {dependencies}

[project.scripts]
trnready = "trnready.cli:main"

[tool.setuptools.packages.find]
include = ["trnready*"]

[tool.setuptools.package-data]
"*" = ["*"]
"""


class CannotDeploy(TrnreadyError):
    """The folder cannot be written, or holds something that would be lost."""


def command(address: Address) -> list[str]:
    """Give the command that starts the Space, here and there."""
    return ["trnready", "serve", "--results", str(address), "--host", "0.0.0.0", "--port", str(PORT)]


def write(folder: Path, address: Address, found: Sources) -> None:
    """Write the Space into the folder, over one that was written before. Raises `CannotDeploy`."""
    _check(folder)
    values = {
        "mark": MARK,
        "port": str(PORT),
        "dataset": address.name,
        "version": json.dumps(version("trnready")),
        "dependencies": json.dumps(_dependencies(), indent=4),
    }
    start = command(address)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _fill(folder / "README.md", _README, values | {"command": " ".join(start)})
        _fill(folder / "Dockerfile", _DOCKERFILE, values | {"command": json.dumps(start)})
        _fill(folder / "pyproject.toml", _PYPROJECT, values)
        _copy_package(folder / "trnready")
        if found.catalogs is not None:
            _copy_catalogs(found.catalogs, folder / catalog.FOLDER)
        for table in found.tables:
            (folder / TWINS).parent.mkdir(exist_ok=True)
            shutil.copyfile(table, (folder / TWINS).with_name(table.name))
    except OSError as error:
        raise CannotDeploy(f"cannot write to {folder}: {error.strerror or error}.") from error


def _check(folder: Path) -> None:
    """A folder that holds somebody else's Dockerfile or README is left as it is; a new Space's README is not
    somebody's."""
    for name in ("Dockerfile", "README.md", "pyproject.toml"):
        path = folder / name
        if not path.is_file():
            continue
        text = path.read_text("utf-8", "replace")
        of_a_space = name == "README.md" and re.match(r"---\n(?:.*\n)*?sdk:", text)
        if MARK not in text and not of_a_space:
            raise CannotDeploy(f"{path} was not written by this command; choose another folder.")


def _fill(path: Path, template: str, values: Mapping[str, str]) -> None:
    path.write_text(template.format(**values), encoding="utf-8")


def _dependencies() -> list[str]:
    """Give the Space's share of what trnready requires, with the same bounds."""
    said = [each.split(";")[0].strip() for each in requires("trnready") or [] if "extra ==" not in each]
    bounds = {re.split(r"[<>=!~ \[]", each)[0].lower(): each for each in said}
    return [bounds.get(name, name) for name in NEEDS]


def _copy_package(to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    # Catalogs and twins are written beside it, those that were asked for.
    ignored = shutil.ignore_patterns("__pycache__", carried.NAME)
    shutil.copytree(Path(__file__).resolve().parents[1], to, ignore=ignored)


def _copy_catalogs(of: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(of, to, ignore=shutil.ignore_patterns(".*"))
