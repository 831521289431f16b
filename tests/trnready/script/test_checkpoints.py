"""Checkpoints that people have met: each is a change to a tiny one, run on the CPU by the script that tests
it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trnready.run.failure import Failure, explain
from trnready.run.process import Exited
from trnready.run.report import Report, read
from trnready.script.task import Prompt, Script, find

TASK = find("text-generation")
HERE = Path(__file__).parent
ENDS = [0, *range(1, 257, 2)]
"""Half of all tokens end the text: a random model comes upon one soon."""


def _edit(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: each for key, each in (found | changes).items() if each is not None}))


def _list_of_ends(folder: Path) -> None:
    _edit(folder, "generation_config.json", eos_token_id=ENDS)


def _pad_is_end(folder: Path) -> None:
    _edit(folder, "tokenizer_config.json", pad_token="<end>")
    _edit(folder, "generation_config.json", pad_token_id=0)


def _no_end(folder: Path) -> None:
    _edit(folder, "config.json", eos_token_id=None)
    _edit(folder, "generation_config.json", eos_token_id=None)


def _types(folder: Path) -> None:
    names = ["input_ids", "token_type_ids", "attention_mask"]
    _edit(folder, "tokenizer_config.json", model_input_names=names)


def _other_end(folder: Path) -> None:
    _edit(folder, "tokenizer_config.json", eos_token="a")


def _long_tokenizer(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    more = {"id": 300, "content": "<more>", "special": True, **flags}
    tokenizer["added_tokens"] = [*tokenizer["added_tokens"], more]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def _own_code(folder: Path) -> None:
    """Code of its own beside a model type that Transformers knows: it calls what caches no longer have."""
    (folder / "own.py").write_text(
        "from pathlib import Path\n"
        f"Path({str(folder / 'was-run')!r}).touch()\n"
        "from transformers import DynamicCache\n"
        "DynamicCache.from_legacy_cache(None).get_usable_length(1)\n"
    )
    classes = {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}
    _edit(folder, "config.json", auto_map=classes)
    _edit(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "own.T"]})


def _own_tokenizer(folder: Path) -> None:
    """A tokenizer that only the checkpoint's own code could read."""
    _own_code(folder)
    _edit(folder, "tokenizer_config.json", tokenizer_class="OwnTokenizer")
    (folder / "tokenizer.json").unlink()


def _quantized(method: str) -> Callable[[Path], None]:
    settings = {"awq": {"bits": 4, "group_size": 16, "zero_point": True}, "gptq": {"bits": 4}}
    return lambda folder: _edit(
        folder, "config.json", quantization_config={"quant_method": method, **settings[method]}
    )


CHANGES: dict[str, Callable[[Path], None]] = {
    "as it is": lambda folder: None,
    "list of ends": _list_of_ends,
    "padding is the end": _pad_is_end,
    "no end": _no_end,
    "token types": _types,
    "another end in the tokenizer": _other_end,
    "tokenizer longer than the embedding": _long_tokenizer,
    "own code": _own_code,
    "own tokenizer": _own_tokenizer,
    "awq": _quantized("awq"),
    "gptq": _quantized("gptq"),
    "only a chat template": lambda folder: (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message['content'] }}{% endfor %}:"
    ),
}  # fmt: skip
PROMPTS = {
    "tokenizer longer than the embedding": Prompt("ab <more>"),
    "only a chat template": Prompt("ab", chat=True),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, tiny_qwen3: Path) -> Path:
    """A folder with a folder for each checkpoint, and its report in it, or its traceback in `error`."""
    root = tmp_path_factory.mktemp("cases")
    jobs = []
    for name, change in CHANGES.items():
        model = shutil.copytree(tiny_qwen3, root / name / "model")
        change(model)
        script = Script(str(model), None, PROMPTS.get(name, Prompt("ab")), "bfloat16")
        (root / name / "run.py").write_text(TASK.render(script))
        options = ["--device", "cpu", "--report", str(root / name / "report")]
        jobs.append([str(root / name / "run.py"), *options])
    (root / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, HERE / "batch.py", root / "jobs.json"]
    subprocess.run(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=True, capture_output=True)
    return root


def _report(ran: Path, name: str) -> Report:
    error = ran / name / "error"
    assert not error.exists(), error.read_text()
    return read(ran / name / "report")


def _failure(ran: Path, name: str) -> Failure:
    return explain(Exited(1), (ran / name / "error").read_text())


@pytest.mark.parametrize(
    "name",
    sorted(set(CHANGES) - {"tokenizer longer than the embedding", "own tokenizer", "awq", "gptq"}),
)
def test_it_generates_32_tokens(ran, name):
    report = _report(ran, name)
    assert len(report.tokens) == 32
    assert report.logits.shape == (32, 257)


def test_all_tokens_that_end_a_text_are_held_back_and_a_person_sees_it_end(ran):
    free, held = _report(ran, "as it is"), _report(ran, "list of ends")
    assert held.end_tokens == tuple(ENDS)
    assert not set(held.tokens) & set(ENDS)
    steps = [int(row.argmax()) in ENDS for row in held.logits]
    assert any(steps)
    assert len(held.shown) <= steps.index(True) < len(held.text)
    assert held.text.startswith(held.shown)
    assert free.shown == free.text


def test_a_model_without_an_end_has_none_held_back(ran):
    assert _report(ran, "no end").end_tokens == ()


def test_what_the_tokenizer_takes_for_the_end_does_not_count(ran):
    report = _report(ran, "another end in the tokenizer")
    assert report.end_tokens == (0,)
    assert report.tokens == _report(ran, "as it is").tokens


def test_padding_that_is_the_end_changes_nothing(ran):
    assert _report(ran, "padding is the end").tokens == _report(ran, "as it is").tokens


def test_a_chat_template_writes_the_prompt(ran):
    assert _report(ran, "only a chat template").input_tokens == tuple(byte - 32 for byte in b"ab:")


def test_a_token_beyond_the_embedding_is_an_error_on_the_cpu_as_well(ran):
    assert "index out of range" in _failure(ran, "tokenizer longer than the embedding").error


def test_a_checkpoints_own_code_is_not_run(ran):
    assert _report(ran, "own code").tokens == _report(ran, "as it is").tokens
    failure = _failure(ran, "own tokenizer")
    assert (failure.result, failure.reason) == ("SKIPPED", "processor_unavailable")
    assert not list(ran.glob("*/model/was-run"))


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_weights_whose_kernels_are_not_here_are_said_to_be_quantized(ran, method):
    failure = _failure(ran, method)
    assert (failure.result, failure.reason) == ("SKIPPED", "unsupported_quantization")
