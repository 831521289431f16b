"""The script itself: what it imports, that it runs by hand anywhere, and what it reports on which device."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.run.report import read
from trnready.script.task import Prompt, Script, UnknownTask, find, literal

TASK = find("text-generation")


def _source(model: Path | str = "acme/tiny", **changes: Any) -> str:
    facts = {"model": str(model), "revision": None, "prompt": Prompt("ab"), "dtype": "bfloat16"}
    return TASK.render(Script(**facts | changes))


def _constants(source: str) -> dict[str, object]:
    return {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id != "IMPORTED"
    }


def test_it_imports_torch_transformers_and_python_alone():
    names = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(_source()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert names - sys.stdlib_module_names == {"torch", "transformers"}


@pytest.mark.parametrize("chat", [False, True])
def test_it_keeps_the_style_of_the_project(tmp_path, chat):
    path = tmp_path / "run.py"
    path.write_text(_source(prompt=Prompt("a 'quoted' prompt", chat)))
    config = str(Path(__file__).parents[3] / "pyproject.toml")
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "--config", config, path], check=True)
    subprocess.run([*ruff, "format", "--check", "--config", config, path], check=True)


HOSTILE = st.text(st.characters(codec="utf-8")) | st.sampled_from(
    ['"\nimport os', "'''", '"""', "{{ 7 * 7 }}", "{% raw %}", "\\", "\\'\"", "\u2028", "\x00"]
)


@given(HOSTILE, HOSTILE, HOSTILE | st.none())
def test_no_name_and_no_prompt_can_become_code(model, prompt, revision):
    constants = _constants(_source(model, prompt=Prompt(prompt), revision=revision))
    assert constants == {
        "MODEL": model,
        "REVISION": revision,
        "PROMPT": prompt,
        "NEW_TOKENS": 32,
        "DTYPE": "bfloat16",
        "CORES": 1,
    }


@given(HOSTILE)
def test_literals_are_what_they_were(text):
    assert ast.literal_eval(literal(text)) == text


def test_an_unknown_task_is_a_sentence():
    with pytest.raises(UnknownTask, match="there is no test for the task 'cooking'"):
        find("cooking")


def _run(folder: Path, source: str, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a user would by hand: outside the repository, with Python's own search path."""
    (folder / "run.py").write_text(source)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "run.py", *options],
        cwd=folder,
        env=environment | settings,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_by_hand_it_prints_the_text_and_writes_nothing(tmp_path, tiny_qwen3):
    ran = _run(tmp_path, _source(tiny_qwen3), "--device", "cpu")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[:3] == ["run.py: load", "run.py: compile", "run.py: run"]
    assert lines[3].startswith("ab")
    assert os.listdir(tmp_path) == ["run.py"]


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory, tiny_qwen3: Path) -> Path:
    """A folder with the reports of a run on the CPU and of its replay."""
    folder = tmp_path_factory.mktemp("cpu")
    ran = _run(folder, _source(tiny_qwen3), "--device", "cpu", "--report", "free")
    assert ran.returncode == 0, ran.stderr
    facts = json.loads((folder / "free/report.json").read_text())
    facts["tokens"][5] = (facts["tokens"][5] + 1) % 256 + 1
    (folder / "fed.json").write_text(json.dumps(facts))
    ran = _run(folder, _source(tiny_qwen3), "--device", "cpu", "--report", "replay", "--replay", "fed.json")
    assert ran.returncode == 0, ran.stderr
    return folder


def test_the_report_is_whole_and_nothing_half_written_is_left(on_cpu):
    report = read(on_cpu / "free")
    assert len(report.tokens) == 32
    assert report.tokens == report.first_call_tokens
    assert report.logits.shape == (32, 257)
    assert report.input_tokens == tuple(byte - 32 for byte in b"ab")
    assert report.end_tokens == (0,)
    assert report.parameter_devices == ("cpu",)
    assert sorted(os.listdir(on_cpu / "free")) == ["outputs.safetensors", "phase", "report.json"]
    assert (on_cpu / "free/phase").read_text() == "run"


def test_end_tokens_are_held_back(on_cpu):
    assert 0 not in read(on_cpu / "free").tokens


def test_a_replay_feeds_other_tokens_and_records_what_would_have_been_chosen(on_cpu):
    free, replay = read(on_cpu / "free"), read(on_cpu / "replay")
    fed = json.loads((on_cpu / "fed.json").read_text())["tokens"]
    assert list(replay.tokens) == fed
    assert replay.later_call_s is None
    assert (replay.logits[:6] == free.logits[:6]).all()
    assert (replay.logits[6] != free.logits[6]).any()


NAMES_OF_TORCH_NEURON = {
    "is_available", "device_count", "current_device", "set_device", "synchronize",
    "get_device_name", "get_device_properties", "get_device_capability", "is_bf16_supported",
    "manual_seed", "manual_seed_all", "get_rng_state", "set_rng_state", "get_rng_state_all",
    "set_rng_state_all", "empty_cache", "memory_allocated", "max_memory_allocated",
    "reset_peak_memory_stats", "memory_stats", "memory_summary", "Stream", "Event",
    "current_stream", "stream", "get_dynamo_metrics",
}  # fmt: skip

STUB = """
import importlib.machinery, sys, types
import torch
real = torch.neuron
# What PyTorch itself asks of a device's module, and nothing else, stays as it is.
of_pytorch = {"_lazy_init", "_is_in_bad_fork", "is_initialized", "get_amp_supported_dtype", "device"}
offered = set(NAMES)
class Limited(types.ModuleType):
    def __getattr__(self, name):
        if name in offered | of_pytorch:
            return getattr(real, name)
        raise AttributeError(f"the stub offers no {name}")
torch.neuron = sys.modules["torch.neuron"] = Limited("torch.neuron")
stub = types.ModuleType("torch_neuronx")
stub.__spec__ = importlib.machinery.ModuleSpec("torch_neuronx", None)
stub.__version__ = "2.13.3.0"
sys.modules["torch_neuronx"] = stub
"""

COUNTERS = {"get_dynamo_metrics", "max_memory_allocated", "get_device_properties", "device_count"}


@pytest.mark.parametrize("offered", [NAMES_OF_TORCH_NEURON, NAMES_OF_TORCH_NEURON - COUNTERS])
def test_on_a_device_that_offers_few_names_what_it_cannot_count_is_null(
    tmp_path, tiny_qwen3, neuron, offered
):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(STUB.replace("NAMES", repr(sorted(offered))))
    ran = _run(
        tmp_path,
        _source(tiny_qwen3),
        "--report",
        "report",
        PYTHONPATH=str(tmp_path / "site"),
        NEURON_COMPILER_OPT_LEVEL="-O0",
        TORCH_NEURONX_NEFF_CACHE_DIR=str(tmp_path / "neff"),
    )
    assert ran.returncode == 0, ran.stderr
    facts = json.loads((tmp_path / "report/report.json").read_text())
    assert facts["versions"]["torch_neuronx"] == "2.13.3.0"
    assert facts["parameter_devices"] == ["neuron:0"]
    assert facts["fallback_ops"] is None
    counted = "get_dynamo_metrics" in offered
    for name in ("graphs", "graphs_first_call", "peak_bytes", "instance"):
        assert (facts[name] is not None) == counted, name
    read(tmp_path / "report")


def test_by_hand_on_neuron_it_compiles_by_itself(tmp_path, tiny_qwen3, neuron):
    settings = {"NEURON_COMPILER_OPT_LEVEL": "-O0", "TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "neff")}
    ran = _run(tmp_path, _source(tiny_qwen3), "--report", "report", **settings)
    assert ran.returncode == 0, ran.stderr
    report = read(tmp_path / "report")
    assert report.parameter_devices == ("neuron:0",)
    assert report.graphs is not None
    assert report.graphs_first_call is not None
    assert 1 <= len(report.graphs_first_call) <= 2
    assert len(report.graphs) == len(report.graphs_first_call)
    assert report.peak_bytes is not None
    assert report.peak_bytes[0] >= report.parameter_bytes
    assert not any(report.peak_bytes[1:])
    assert report.fallback_ops == ()
