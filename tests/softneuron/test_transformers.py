"""Unmodified Transformers on the device: the documented examples, with the tokens of a CPU run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch_neuronx
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    TrainingArguments,
    pipeline,
)

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


TRAINING = """
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("CHECKPOINT", dtype="float32")
before = model.model.embed_tokens.weight.detach().clone()
tokens = torch.randint(1, 257, (8, 16), generator=torch.Generator().manual_seed(0))
arguments = TrainingArguments(output_dir="OUTPUT", bf16=True, max_steps=3, logging_steps=1, report_to="none")
rows = [{"input_ids": row, "labels": row} for row in tokens]
trainer = Trainer(model=model, args=arguments, train_dataset=rows)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
weight = trainer.model.model.embed_tokens.weight
print(
    arguments.device, len(losses), losses[-1] < losses[0],
    {str(parameter.device) for parameter in trainer.model.parameters()},
    torch.equal(weight.cpu(), before), trainer.model.lm_head.weight is weight,
)
"""


def test_the_documented_arguments_train_on_the_device(tiny_qwen3: Path, tmp_path: Path, run_python):
    program = TRAINING.replace("CHECKPOINT", str(tiny_qwen3)).replace("OUTPUT", str(tmp_path))
    assert run_python(program).splitlines()[-1] == "neuron:0 3 True {'neuron:0'} False True"
    assert (tmp_path / "checkpoint-3" / "model.safetensors").exists()


COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
ATTENTION = COMMON | {
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
KINDS = {
    # A sliding-window layer counts its tokens in a Python integer, so every step is a graph of its own.
    "sliding window": (MistralForCausalLM, MistralConfig(**ATTENTION, sliding_window=8), 3),
    "mixture of experts": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **ATTENTION, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, head_dim=8
        ),
        1,
    ),
    "state space": (MambaForCausalLM, MambaConfig(**COMMON, state_size=8), 1),
    "encoder and decoder": (
        T5ForConditionalGeneration,
        T5Config(
            vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, decoder_start_token_id=1
        ),
        1,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_other_kinds_have_the_tokens_of_the_cpu(kind, neff_cache, fresh_dynamo, monkeypatch):
    monkeypatch.setenv("NEURON_COMPILER_OPT_LEVEL", "-O0")
    torch.manual_seed(0)
    architecture, config, compiled = KINDS[kind]
    model = architecture(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2, generator=generator)
    model.generation_config.eos_token_id = None
    ids = torch.tensor([[5, 7, 11, 13]])
    options = {"do_sample": False, "max_new_tokens": 4, "cache_implementation": "static"}
    expected = model.generate(ids, **options, disable_compile=True)
    model.to("neuron")
    # Transformers moves what a decoder consumes, but not what goes into an encoder.
    given = ids.to("neuron") if config.is_encoder_decoder else ids
    for _ in range(2):
        assert torch.equal(model.generate(given, **options).cpu(), expected)
        assert len(torch_neuronx.get_dynamo_metrics()) == compiled
