"""What is known of a Hub's model without its weights, against a stand-in on localhost; each case in a process
of its own, as the Hub's client reads its settings once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"

DESCRIBE = """
import sys
from trnready.errors import TrnreadyError
from trnready.hub import description
description.WAITS_S = (0.01, 0.01)
try:
    found = description.describe(sys.argv[1])
except TrnreadyError as error:
    print(type(error).__name__, getattr(error, "reason", "-"), error, sep="|")
else:
    tensors = "none" if found.tensors is None else len(found.tensors)
    kind = found.config.get("model_type")
    print(found.model_id, found.revision, found.source, kind, tensors, *found.notes, sep="|")
"""


@pytest.fixture
def describe(ask_hub: Callable[..., str]) -> Callable[..., str]:
    return lambda *where, **settings: ask_hub(DESCRIBE, *where, **settings)


def test_headers_come_without_the_weights(describe, hub, tmp_path, tiny_qwen3):
    hub.models["acme/tiny"] = tiny_qwen3
    told = describe("acme/tiny", hub.address, tmp_path).split("|")
    assert told[:4] == ["acme/tiny", COMMIT, "hub", "qwen3"]
    assert int(told[4]) > 10
    cached = [path.name for path in tmp_path.rglob("*.safetensors")]
    assert cached == [], "no weights are kept"


def test_a_hub_that_does_not_answer(describe, hub, tmp_path, tiny_qwen3):
    hub.models["acme/tiny"] = tiny_qwen3
    hub.status = 503
    told = describe("acme/tiny", hub.address, tmp_path)
    assert told.startswith("HubUnreachable|-|the Hub does not answer")
    assert told.endswith("and acme/tiny is not in the local cache.")
    hub.status = None
    describe("acme/tiny", hub.address, tmp_path)
    for settings in ({"HF_HUB_OFFLINE": "1"}, {}):
        hub.status = 503
        told = describe("acme/tiny", hub.address, tmp_path, **settings)
        assert told == f"acme/tiny|{COMMIT}|cache|qwen3|none"


def test_a_hub_that_answers_at_the_third_try(describe, hub, tmp_path, tiny_qwen3):
    hub.models["acme/tiny"] = tiny_qwen3
    hub.troubles = [(503, {}), None]
    told = describe("acme/tiny", hub.address, tmp_path)
    assert told.startswith(f"acme/tiny|{COMMIT}|hub|qwen3|")
    assert hub.asked[:3] == ["/api/models/acme/tiny"] * 3


def test_a_renamed_model_is_planned_under_its_new_name(describe, hub, tmp_path, tiny_qwen3):
    hub.models["acme/new"] = hub.models["acme/old"] = tiny_qwen3
    hub.renamed["acme/old"] = "acme/new"
    told = describe("acme/old", hub.address, tmp_path).split("|")
    assert (told[0], told[2], told[-1]) == ("acme/new", "hub", "acme/old is called acme/new now.")


def test_models_that_are_not_to_be_had(describe, hub, tmp_path, tiny_qwen3):
    hub.models["acme/secret"] = tiny_qwen3
    hub.gated.add("acme/secret")
    told = describe("acme/secret", hub.address, tmp_path)
    assert told.startswith("NotTestable|gated|acme/secret is gated")
    told = describe("acme/nothing", hub.address, tmp_path)
    assert told.startswith("NotTestable|not_found|the Hub has, for you, no model called acme/nothing")


def test_repositories_with_other_weights(describe, hub, tmp_path, tiny_qwen3):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "model.Q4.gguf").write_bytes(b"x")
    hub.models["acme/gguf"] = folder
    told = describe("acme/gguf", hub.address, tmp_path)
    assert told == "NotTestable|no_safetensors|acme/gguf has no safetensors weights, only GGUF ones."


def test_an_index_that_names_a_file_which_is_not_there(describe, hub, tmp_path, tiny_qwen3):
    folder = Path(shutil.copytree(tiny_qwen3, tmp_path / "served"))
    (folder / "model.safetensors").rename(folder / "model-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-00001.safetensors"}})
    )
    hub.models["acme/torn"] = folder
    assert describe("acme/torn", hub.address, tmp_path).startswith("NotTestable|invalid_config|acme/torn")


def test_a_carried_model_needs_no_hub(describe, hub, tmp_path):
    hub.status = 503
    told = describe("Qwen/Qwen3-0.6B", hub.address, tmp_path).split("|")
    assert told[:5] == ["Qwen/Qwen3-0.6B", "None", "carried", "qwen3", "none"]
    assert "the file also stores the tied lm_head" in told[5]
