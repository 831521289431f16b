"""Unmodified Transformers on the device: the documented examples, with the tokens of a CPU run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch_neuronx
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments, pipeline

# From the documentation page "AWS Trainium" of Transformers; only the checkpoint's name is replaced.
DOCUMENTED = """
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen3-0.6B")
model = AutoModelForCausalLM.from_pretrained(
    "Qwen/Qwen3-0.6B", dtype="bfloat16", device_map="neuron"
)

# leave the inputs on CPU
inputs = tokenizer("The French Bread Law states", return_tensors="pt")
output = model.generate(
    **inputs, do_sample=False, max_new_tokens=50, cache_implementation="static"
)
print(tokenizer.decode(output[0], skip_special_tokens=True))
"""
REPORT = """
import torch_neuronx
print([graph["role"] for graph in torch_neuronx.get_dynamo_metrics()], output.device, output.shape[1])
"""


@pytest.mark.slow
def test_the_documented_generation_example_runs_word_for_word(tiny_qwen3: Path, neff_cache: Path, run_python):
    program = DOCUMENTED.replace("Qwen/Qwen3-0.6B", str(tiny_qwen3))
    text, _, report = run_python(program + REPORT).rpartition("\n")
    assert report == "['inference'] cpu 77"
    assert text.startswith("The French Bread Law states")
    assert len(list(neff_cache.glob("MODULE_*"))) == 1


@pytest.fixture(scope="module")
def on_cpu(tiny_qwen3: Path):
    return AutoModelForCausalLM.from_pretrained(tiny_qwen3, dtype="bfloat16")


@pytest.fixture(scope="module")
def on_core(tiny_qwen3: Path):
    return AutoModelForCausalLM.from_pretrained(tiny_qwen3, dtype="bfloat16", device_map="neuron:1")


@pytest.fixture(scope="module")
def inputs(tiny_qwen3: Path):
    return AutoTokenizer.from_pretrained(tiny_qwen3)("Bread is", return_tensors="pt")


def test_from_pretrained_puts_every_parameter_on_the_core_and_keeps_ties(on_core):
    assert {str(parameter.device) for parameter in on_core.parameters()} == {"neuron:1"}
    assert on_core.lm_head.weight is on_core.model.embed_tokens.weight


def test_moving_a_loaded_model_keeps_ties(tiny_qwen3: Path):
    model = AutoModelForCausalLM.from_pretrained(tiny_qwen3, dtype="bfloat16")
    used = torch.neuron.memory_allocated(2)
    model.to("neuron:2")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    unique = sum(parameter.nbytes for parameter in model.parameters())
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    assert torch.neuron.memory_allocated(2) - used == unique + buffers


@pytest.mark.parametrize(
    "options",
    [{}, {"cache_implementation": "static", "disable_compile": True}],
    ids=["dynamic cache", "static cache, not compiled"],
)
def test_generation_has_the_tokens_and_logits_of_the_cpu(on_cpu, on_core, inputs, options):
    options = options | {
        "do_sample": False,
        "max_new_tokens": 12,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    expected, got = on_cpu.generate(**inputs, **options), on_core.generate(**inputs, **options)
    assert got.sequences.device == torch.device("cpu")
    assert torch.equal(got.sequences, expected.sequences)
    assert torch.equal(torch.stack(got.logits).cpu(), torch.stack(expected.logits))


def test_a_static_cache_compiles_one_graph_and_a_second_generation_none(
    on_cpu, on_core, inputs, neff_cache, fresh_dynamo, monkeypatch
):
    # -O0 runs the captured graph without generating code, so the tokens are the CPU's to the last bit.
    monkeypatch.setenv("NEURON_COMPILER_OPT_LEVEL", "-O0")
    options = {"do_sample": False, "max_new_tokens": 12, "cache_implementation": "static"}
    first = on_core.generate(**inputs, **options)
    assert len(torch_neuronx.get_dynamo_metrics()) == 1
    assert torch.equal(on_core.generate(**inputs, **options), first)
    assert len(torch_neuronx.get_dynamo_metrics()) == 1
    assert torch.equal(first, on_cpu.generate(**inputs, **options))


def test_sampling_with_a_seed_has_the_tokens_of_the_cpu(on_cpu, on_core, inputs):
    def sample(model) -> torch.Tensor:
        torch.manual_seed(11)
        return model.generate(**inputs, do_sample=True, max_new_tokens=12)

    assert torch.equal(sample(on_core), sample(on_cpu))


def test_a_pipeline_on_the_device_gives_the_text_of_the_cpu(tiny_qwen3: Path):
    texts = [
        pipeline("text-generation", str(tiny_qwen3), device=device, dtype="bfloat16")(
            "Bread is", do_sample=False, max_new_tokens=8
        )[0]["generated_text"]
        for device in ("neuron", "cpu")
    ]
    assert texts[0] == texts[1]


def test_training_arguments_choose_the_device_and_its_compiler(tmp_path: Path):
    arguments = TrainingArguments(output_dir=str(tmp_path), bf16=True, torch_compile=True)
    assert arguments.device == torch.device("neuron:0")
    assert arguments.torch_compile_backend == "neuron"
