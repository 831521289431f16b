"""Models from the Hub, against a stand-in on localhost. The Hub's client reads its settings once, as it is
imported, so each case runs in a process of its own, as a user's does."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable

import pytest

from trnready.hub.remote import ALLOWED, LEFT_OUT, is_model_id

COMMIT = "0123456789abcdef0123456789abcdef01234567"

FETCH = """
import sys
from trnready.errors import TrnreadyError
from trnready.hub.resolve import resolve
try:
    found = resolve(sys.argv[1])
except TrnreadyError as error:
    print(type(error).__name__, getattr(error, "reason", "-"), error, sep="|")
else:
    print(found.model_id, found.revision, found.source, found.source_revision, found.model_type, sep="|")
    print(sorted(path.name for path in found.folder.iterdir()))
"""


@pytest.fixture
def resolve(ask_hub: Callable[..., str]) -> Callable[..., list[str]]:
    return lambda *where, **settings: ask_hub(FETCH, *where, **settings).splitlines()


def test_a_model_comes_with_its_commit_and_without_needless_files(resolve, hub, tmp_path, tiny_qwen3):
    folder = shutil.copytree(tiny_qwen3, tmp_path / "served")
    for unwanted in ("pytorch_model.bin", "model.gguf", "picture.png"):
        (folder / unwanted).write_bytes(b"x")
    hub.models["acme/tiny"] = folder
    told, files = resolve("acme/tiny", hub.address, tmp_path)
    assert told == f"acme/tiny|{COMMIT}|acme/tiny|{COMMIT}|qwen3"
    assert "model.safetensors" in files
    assert not set(hub.downloads) & {"pytorch_model.bin", "model.gguf", "picture.png"}


def test_what_is_in_the_cache_is_found_without_the_hub(resolve, hub, tmp_path, tiny_qwen3):
    hub.models["acme/tiny"] = tiny_qwen3
    online = resolve("acme/tiny", hub.address, tmp_path)
    assert resolve("acme/tiny", hub.address, tmp_path, HF_HUB_OFFLINE="1") == online
    hub.status = 503
    assert resolve("acme/tiny", hub.address, tmp_path) == online


def test_a_model_that_is_not_there(resolve, hub, tmp_path):
    (told,) = resolve("acme/nothing", hub.address, tmp_path)
    assert told.startswith("NoCheckpoint|-|there is neither a folder nor, for you, a model on the Hub called")


def test_a_gated_model(resolve, hub, tmp_path, tiny_qwen3):
    hub.models["acme/secret"] = tiny_qwen3
    hub.gated.add("acme/secret")
    (told,) = resolve("acme/secret", hub.address, tmp_path)
    assert told.startswith("NotTestable|gated|acme/secret is gated")


def test_a_model_without_safetensors(resolve, hub, tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        (folder / name).write_bytes(b"{}")
    hub.models["acme/old"] = folder
    (told,) = resolve("acme/old", hub.address, tmp_path)
    assert told == "NotTestable|no_safetensors|acme/old has no safetensors weights on the Hub."


def test_a_hub_that_does_not_answer(resolve, tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    (told,) = resolve("acme/tiny", address, tmp_path)
    assert told.startswith("HubUnreachable|-|the Hub does not answer (")


def test_a_hub_in_trouble(resolve, hub, tmp_path):
    hub.status = 503
    (told,) = resolve("acme/tiny", hub.address, tmp_path)
    assert told.startswith("HubUnreachable|-|the Hub does not answer (")


def test_offline_and_not_in_the_cache(resolve, hub, tmp_path):
    (told,) = resolve("acme/tiny", hub.address, tmp_path, HF_HUB_OFFLINE="1")
    assert told == "HubUnreachable|-|HF_HUB_OFFLINE is set, and acme/tiny is not in the local cache."


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen3-0.6B", "a/b_c.d-e", "_x/y"])
def test_names_that_the_hub_may_have(name):
    assert is_model_id(name)


@pytest.mark.parametrize(
    "name", ["", "a/b/c", "a--b/c", "../x", "a/..", "a b", "-a", "a/\n", "é/x", "a/" + "b" * 97]
)
def test_names_that_the_hub_cannot_have(name):
    assert not is_model_id(name)


REPOSITORY = [
    "config.json",
    "model.safetensors",
    "modules.json",
    "pytorch_model.bin",
    "tokenizer.json",
    "v1-5-pruned.safetensors",
    "1_Pooling/config.json",
    "2_Dense/model.safetensors",
    "onnx/model.onnx",
    "onnx/config.json",
    "model_index.json",
    "unet/config.json",
    "unet/diffusion_pytorch_model.safetensors",
    "unet/diffusion_pytorch_model.fp16.safetensors",
    "tokenizer/vocab.json",
]
WANTED = {
    "transformers": [
        *("config.json", "model.safetensors", "modules.json", "tokenizer.json"),
        *("v1-5-pruned.safetensors", "model_index.json"),
    ],
    "sentence-transformers": [
        *("config.json", "model.safetensors", "modules.json", "tokenizer.json"),
        *("1_Pooling/config.json", "2_Dense/model.safetensors"),
    ],
    "diffusers": [
        *("model_index.json", "unet/config.json", "unet/diffusion_pytorch_model.safetensors"),
        "tokenizer/vocab.json",
    ],
}


@pytest.mark.parametrize("layout", WANTED)
def test_what_is_downloaded_of_a_repository(layout):
    from huggingface_hub.utils import filter_repo_objects

    found = set(
        filter_repo_objects(REPOSITORY, allow_patterns=ALLOWED[layout], ignore_patterns=LEFT_OUT[layout])
    )
    assert set(WANTED[layout]) <= found
    assert not found & {"pytorch_model.bin", "onnx/model.onnx"}
    if layout == "transformers":
        assert found == set(WANTED[layout])
    if layout == "diffusers":
        assert "v1-5-pruned.safetensors" not in found
        assert "unet/diffusion_pytorch_model.fp16.safetensors" not in found
