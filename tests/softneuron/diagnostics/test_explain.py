"""`softneuron explain` runs any script and says what it made the device do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from softneuron.diagnostics.explain import Recompile, _alike, _cause, _graph_line

SCRIPT = """
import sys
import torch

x = torch.ones(2, 3, device="neuron")
for rows in range(1, 5):
    torch.ones(rows, 3, device="neuron") @ x.t()

@torch.compile(backend="neuron")
def double(t):
    return t * 2

double(x)
double(torch.ones(4, 3, device="neuron"))
double(torch.ones(4, 7, device="neuron"))
print("arguments", sys.argv[1:], torch.ones(3).to("neuron").sum().item())
sys.exit(3)
"""


def explain(folder: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    command = [sys.executable, "-c", "from softneuron.cli import main; main()", "explain", *options]
    return subprocess.run(
        [*command, str(folder / "script.py"), "--epochs", "2"],
        env=os.environ | {"NEURON_COMPILER_OPT_LEVEL": "-O0"},
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
    )


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict]:
    folder = tmp_path_factory.mktemp("explain")
    done = explain(folder, SCRIPT, "--json", str(folder / "report.json"))
    assert (folder / "report.json").exists(), done.stderr
    return done, json.loads((folder / "report.json").read_text())


def test_the_script_runs_with_its_arguments_and_its_exit_status(explained):
    done, _ = explained
    assert done.returncode == 3
    assert "arguments ['--epochs', '2'] 3.0" in done.stdout


def test_graphs_and_recompiles_with_the_guard_that_failed(explained):
    done, report = explained
    assert [graph["shapes"] for graph in report["graphs"]] == [
        ["float32[2, 3]"],
        ["float32[4, 3]"],
        ["float32[4, 7]"],
    ]
    assert [recompile["function"] for recompile in report["recompiles"]] == ["double", "double"]
    assert "size mismatch at index 0. expected 2, actual 4" in report["recompiles"][0]["guard"]
    assert "script.py:9" in report["recompiles"][0]["place"]
    assert "recompiles         2" in done.stdout


def test_the_line_that_makes_operator_shapes_grow_is_named(explained):
    _, report = explained
    most = report["lines"][0]
    assert most["place"].endswith("script.py:7")
    assert most["source"] == 'torch.ones(rows, 3, device="neuron") @ x.t()'
    # Four shapes of fill and four of the product.
    assert most["pairs"] == 8 - 1  # the first fill, of 2 x 3, was seen at line 5


def test_a_reason_that_comes_again_is_printed_once_with_its_count(tmp_path: Path):
    script = (
        "import torch\n"
        "@torch.compile(backend='neuron')\n"
        "def scale(t, factor):\n"
        "    return t * factor\n"
        "for factor in range(2, 14):\n"
        "    scale(torch.ones(2, 3, device='neuron'), factor)\n"
    )
    done = explain(tmp_path, script, "--json", str(tmp_path / "report.json"))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["recompiles"]) == 7
    assert {each["function"] for each in report["recompiles"]} == {"scale"}
    assert report["given_up"] == ["Dynamo recompile limit exceeded"]
    assert "    8 × model_inference: 1 nodes, interpreted, ready in" in done.stdout
    assert done.stdout.count("factor == ") == 2
    place = f"{tmp_path / 'script.py'}:2"
    assert f"    7 × scale at {place}\n      0/0: factor == 2 " in done.stdout
    assert "      the last time: 0/6: factor == 8 " in done.stdout
    assert "  given up           1, run operator by operator from there on\n" in done.stdout
    assert "\n    Dynamo recompile limit exceeded\n" in done.stdout


def test_a_guard_that_fails_in_another_dimension_is_another_reason():
    first = Recompile("f", "a.py:1", "0/0: tensor 't' size mismatch at index 0. expected 2, actual 4")
    again = Recompile("f", "a.py:1", "0/1: tensor 't' size mismatch at index 0. expected 4, actual 6")
    other = Recompile("f", "a.py:1", "0/2: tensor 't' size mismatch at index 1. expected 3, actual 7")
    assert _alike([first, other, again], _cause) == [[first, again], [other]]


GENERATE = """
import sys
import torch
from transformers import {config}, {auto}

torch.manual_seed(0)
config = {config}({sizes})
model = {auto}.from_config(config).to("neuron").eval()
model.generate(torch.ones(1, 4, dtype=torch.long, device="{device}"), max_new_tokens=3, min_new_tokens=3)
"""
SMALL = "vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2"
SMALL_T5 = "vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0"


@pytest.mark.parametrize(
    ("config", "auto", "sizes", "device", "told"),
    [
        ("LlamaConfig", "AutoModelForCausalLM", SMALL, "cpu", False),
        ("LlamaConfig", "AutoModelForCausalLM", SMALL, "neuron", True),
        ("T5Config", "AutoModelForSeq2SeqLM", SMALL_T5, "neuron", False),
    ],
)
def test_inputs_on_the_device_are_told_where_they_are_and_belong_elsewhere(
    tmp_path: Path, config: str, auto: str, sizes: str, device: str, told: bool
):
    script = GENERATE.format(config=config, auto=auto, sizes=sizes, device=device)
    done = explain(tmp_path, script, "--json", str(tmp_path / "report.json"))
    assert done.returncode == 0, done.stderr
    hints = json.loads((tmp_path / "report.json").read_text())["hints"]
    assert any("leave them on the CPU" in hint for hint in hints) == told


def test_traffic_and_memory_are_counted(explained):
    _, report = explained
    assert (report["traffic"]["to_core_copies"], report["traffic"]["to_core_bytes"]) == (1, 12)
    assert report["traffic"]["to_host_copies"] == 1
    assert report["peak_bytes_per_core"][0] > 0
    assert report["peak_bytes_per_core"][1:] == [0, 0, 0]


@pytest.mark.parametrize(
    ("told", "how"),
    [
        ({"cache_hit": True, "neff_module": "MODULE_1"}, "loaded"),
        ({"neff_module": "MODULE_1"}, "compiled"),
        ({"neff_module": None}, "compiled"),  # the cache could not take it
        ({"interpreted": True}, "interpreted, ready"),
        ({"graph_node_count": 0}, "interpreted, ready"),
    ],
)
def test_a_graph_is_told_as_what_it_is(told, how):
    graph = {"graph_name": "g", "graph_node_count": 9, "cache_hit": False, "interpreted": False, "shapes": []}
    line, _ = _graph_line(graph | {"neff_module": None} | told)
    assert line.endswith(f" nodes, {how}")


def test_hints_name_the_line_to_write(explained):
    done, report = explained
    assert any("dataloader_drop_last=True" in hint for hint in report["hints"])
    assert "hint " in done.stdout


def test_a_missing_script_is_one_sentence(tmp_path: Path):
    command = [sys.executable, "-c", "from softneuron.cli import main; main()", "explain", "nothing.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stderr) == (2, "softneuron: there is no script nothing.py.\n")


def test_a_script_that_raises_keeps_its_own_trace_and_is_explained(tmp_path: Path):
    done = explain(tmp_path, "import torch\ntorch.ones(2, device='neuron')\nraise ValueError('mine')")
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr
    assert "softneuron" not in done.stderr
    assert "softneuron explain" in done.stdout


def test_a_backward_pass_runs_as_without_explain(tmp_path: Path):
    script = (
        "import torch\n"
        "x = torch.randn(4, device='neuron', requires_grad=True)\n"
        "(x * 2).sin().sum().backward()\n"
        "assert x.grad.shape == (4,)\n"
    )
    ran = explain(tmp_path, script)
    assert ran.returncode == 0, ran.stderr
    assert "call stack" not in ran.stderr
