"""What a Transformers installation knows is asked once, and again when one of its files has changed."""

from __future__ import annotations

import os
import sys

import pytest

from trnready.hub.installed_models import NoTransformers, known

TABLE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """A small Transformers that notes each time it is imported."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    # Python takes compiled code for that of any file of the same size and second, such as one just edited.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    folder = tmp_path / "site" / "transformers"
    auto = folder / "models" / "auto"
    auto.mkdir(parents=True)
    for each in (folder, folder / "models", auto):
        (each / "__init__.py").write_text("")
    (folder / "__init__.py").write_text(
        "from pathlib import Path\n"
        "with (Path(__file__).parent.parent.parent / 'imports').open('a') as file: file.write('x')\n"
    )
    (auto / "configuration_auto.py").write_text("CONFIG_MAPPING_NAMES = {'llama': 1, 'bert': 2}\n")
    (auto / "modeling_auto.py").write_text(f"{TABLE} = {{'llama': ('A', 'B'), 'bert': 'C'}}\n")
    return folder


def _imports(installation):
    return len((installation.parent.parent / "imports").read_text())


def test_the_answer_is_kept(installation):
    first, second = known(sys.executable, [TABLE]), known(sys.executable, [TABLE])
    assert first == second
    assert first.model_types == {"llama", "bert"}
    assert first.classes == {"llama": ["A", "B"], "bert": "C"}
    assert _imports(installation) == 1


def test_an_edited_table_is_read_again(installation):
    known(sys.executable, [TABLE])
    table = installation / "models" / "auto" / "modeling_auto.py"
    table.write_text(f"{TABLE} = {{'llama': ('A', 'B'), 'bert': 'D'}}\n")
    assert known(sys.executable, [TABLE]).classes["bert"] == "D"
    assert _imports(installation) == 2


def test_whatever_is_installed_beside_it_counts(installation):
    known(sys.executable, [TABLE])
    (installation.parent / "tokenizers").mkdir()
    known(sys.executable, [TABLE])
    assert _imports(installation) == 2


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"marks": []}'])
def test_a_damaged_answer_is_asked_anew(installation, content):
    before = known(sys.executable, [TABLE])
    (kept,) = (installation.parent.parent / "cache" / "trnready" / "transformers").iterdir()
    kept.write_bytes(content)
    assert known(sys.executable, [TABLE]) == before
    assert _imports(installation) == 2


def test_a_cache_that_cannot_be_written_is_none(installation, monkeypatch):
    (installation.parent.parent / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(installation.parent.parent / "file"))
    assert known(sys.executable, [TABLE]).model_types == {"llama", "bert"}


def test_an_installation_that_lacks_a_table_is_named(installation):
    with pytest.raises(NoTransformers, match=r"has no NO_SUCH_TABLE; update it\.$"):
        known(sys.executable, ["NO_SUCH_TABLE"])


def test_an_installation_that_cannot_be_imported_is_named(installation):
    (installation / "models" / "auto" / "modeling_auto.py").write_text("import no_such_package\n")
    with pytest.raises(NoTransformers, match=r"has no usable Transformers: .*no_such_package"):
        known(sys.executable, [TABLE])


def test_an_interpreter_without_transformers_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    os.chmod(bare, 0o755)
    with pytest.raises(NoTransformers, match="has no Transformers; install it there"):
        known(str(bare), [TABLE])


def test_what_cannot_be_run_is_named():
    with pytest.raises(NoTransformers, match="/no/such/python cannot be run"):
        known("/no/such/python", [TABLE])
    with pytest.raises(NoTransformers, match="has no usable Transformers"):
        known("/usr/bin/false", [TABLE])
