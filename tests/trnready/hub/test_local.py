"""Checkpoints in folders, good and bad."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from trnready.errors import TrnreadyError
from trnready.hub import preflight
from trnready.hub.checkpoint import NoCheckpoint, NotTestable
from trnready.hub.installed_models import Known, known
from trnready.hub.local import name_of, open_folder
from trnready.hub.resolve import resolve
from trnready.script.task import find


@pytest.fixture
def copy(tiny_qwen3: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_qwen3, tmp_path / "acme--tiny-qwen3")


def _change(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def test_a_folder_is_opened(tiny_qwen3):
    checkpoint = resolve(str(tiny_qwen3))
    assert checkpoint.model_id == "acme/tiny-qwen3"
    assert (checkpoint.source, checkpoint.source_revision) == (str(tiny_qwen3), None)
    assert (checkpoint.model_type, checkpoint.dtype) == ("qwen3", "bfloat16")
    assert checkpoint.architectures == ("Qwen3ForCausalLM",)
    assert not checkpoint.has_chat_template
    preflight.check(checkpoint, find("text-generation"))


def test_the_revision_follows_the_content(copy):
    before = open_folder(copy).revision
    assert open_folder(copy).revision == before
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    weights_changed = open_folder(copy).revision
    _change(copy, rms_norm_eps=0.5)
    assert len({before, weights_changed, open_folder(copy).revision}) == 3


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/Qwen--Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("/models/mine", "mine"),
        ("/models/--mine", "--mine"),
        (f"/hub/models--acme--tiny/snapshots/{'0a' * 20}", "acme/tiny"),
        ("/", "model"),
    ],
)
def test_a_model_is_named_by_its_folder_never_by_a_path(path, name):
    assert name_of(Path(path)) == name


def test_a_recorded_name_counts_for_more(copy):
    (copy / "trnready.json").write_text('{"model_id": "big/name"}')
    assert open_folder(copy).model_id == "big/name"
    (copy / "trnready.json").write_text("[]")
    assert open_folder(copy).model_id == "acme/tiny-qwen3"


def test_a_relative_path_is_made_absolute(copy, monkeypatch):
    monkeypatch.chdir(copy.parent)
    assert resolve("./acme--tiny-qwen3").source == str(copy)


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


BAD = {
    "no config": (lambda f: (f / "config.json").unlink(), NoCheckpoint, "it has no config.json"),
    "config no JSON": (lambda f: (f / "config.json").write_text("{"), NoCheckpoint, "cannot be read"),
    "config no table": (lambda f: (f / "config.json").write_text("[]"), NoCheckpoint, "no JSON object"),
    "truncated": (_truncate, NoCheckpoint, "is truncated: its tensors need"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), NoCheckpoint, "but no weights"),
    "pickles": (_only_pickles, NotTestable, "no safetensors weights, only pytorch_model.bin"),
    "unknown type": (lambda f: _change(f, model_type="nope9"), NotTestable, "does not know the model type"),
    "no type": (lambda f: _change(f, model_type=None), NotTestable, "does not name a model_type"),
    "type of another task": (lambda f: _change(f, model_type="clip"), NotTestable, "clip models do not do"),
    "another task": (
        lambda f: _change(f, architectures=["Qwen3ForSequenceClassification"]),
        NotTestable,
        "saved as Qwen3ForSequenceClassification",
    ),
    "own code": (
        lambda f: _change(f, model_type="nope9", auto_map={"AutoModel": "x.y"}),
        NotTestable,
        "its own Python code",
    ),
}
REASONS = {
    "pickles": "no_safetensors",
    "unknown type": "unsupported_architecture",
    "no type": "invalid_config",
    "type of another task": "incompatible",
    "another task": "incompatible",
    "own code": "remote_code",
}


@pytest.mark.parametrize("case", BAD)
def test_a_folder_that_cannot_be_tested_is_one_sentence(copy, case):
    damage, kind, message = BAD[case]
    damage(copy)
    with pytest.raises(TrnreadyError, match=message) as refusal:
        preflight.check(open_folder(copy), find("text-generation"))
    assert type(refusal.value) is kind
    assert getattr(refusal.value, "reason", None) == REASONS.get(case)
    assert "\n" not in str(refusal.value)


def test_what_another_interpreter_knows_counts(copy):
    task = find("text-generation")
    knows = known(sys.executable, task.tables)
    assert knows.classes["qwen3"] == "Qwen3ForCausalLM"
    preflight.check(open_folder(copy), task, knows)
    fewer = Known(knows.model_types - {"qwen3"}, knows.classes)
    with pytest.raises(NotTestable, match="does not know the model type 'qwen3'"):
        preflight.check(open_folder(copy), task, fewer)


@pytest.mark.parametrize("config", [{}, {"bits": 4}, [], {"quant_method": None}])
def test_a_quantization_without_a_method_is_refused(copy, config):
    _change(copy, quantization_config=config)
    with pytest.raises(NotTestable, match="does not name a quant_method") as refusal:
        preflight.check(open_folder(copy), find("text-generation"))
    assert refusal.value.reason == "unsupported_quantization"


def test_a_pipeline_is_opened_with_all_its_parts(tiny_qwen3, tmp_path):
    folder = tmp_path / "acme--draws"
    index = {"_class_name": "SomePipeline", "unet": ["diffusers", "X"], "text_encoder": ["transformers", "Y"]}
    folder.mkdir()
    (folder / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(NotTestable, match="no part of acme/draws has safetensors weights"):
        open_folder(folder, "diffusers")
    for part, name in (("unet", "diffusion_pytorch_model"), ("text_encoder", "model")):
        (folder / part).mkdir()
        shutil.copy(tiny_qwen3 / "config.json", folder / part)
        shutil.copy(tiny_qwen3 / "model.safetensors", folder / part / f"{name}.safetensors")
    checkpoint = open_folder(folder, "diffusers")
    assert (checkpoint.model_id, checkpoint.model_type) == ("acme/draws", "SomePipeline")
    preflight.check(checkpoint, find("text-to-image"))
    _change(folder / "unet", rms_norm_eps=0.5)
    assert open_folder(folder, "diffusers").revision != checkpoint.revision
    weights = folder / "unet/diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(NoCheckpoint, match="is truncated"):
        open_folder(folder, "diffusers")
    with pytest.raises(NoCheckpoint, match=r"no config\.json"):
        open_folder(folder)


def test_a_sentence_model_may_have_been_saved_with_any_head(copy):
    _change(copy, architectures=["Qwen3ForSequenceClassification"])
    preflight.check(open_folder(copy, "sentence-transformers"), find("sentence-similarity"))


def test_capitals_of_old_checkpoints_do_not_matter(copy):
    _change(copy, architectures=["QWEN3ForCausalLM"])
    preflight.check(open_folder(copy), find("text-generation"))


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./no-such", "a b", "", "  ", "x\0y", "~nobody/x", "a/b/c"]
)
def test_a_name_that_is_nothing(name):
    with pytest.raises(NoCheckpoint):
        resolve(name)


def test_a_file_is_no_folder(copy):
    with pytest.raises(NoCheckpoint, match="is a file; name the folder"):
        resolve(str(copy / "config.json"))


def test_opening_a_folder_does_not_open_the_device(tiny_qwen3):
    """A process that has opened Trainium's cores keeps them; the run needs them."""
    import subprocess
    import sys

    code = """
import sys
from trnready.hub import preflight
from trnready.hub.resolve import resolve
from trnready.script.task import find
preflight.check(resolve(sys.argv[1]), find("text-generation"))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tiny_qwen3)], check=True)
