"""Transformers' Trainer on the device, compiled: one forward and one backward graph, the losses of eager."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_neuronx
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

EXAMPLE = Path(__file__).parents[2] / "examples" / "train.py"

# From the documentation page "AWS Trainium" of Transformers, word for word.
EAGER = """
from transformers import TrainingArguments

training_args = TrainingArguments(
    output_dir="./outputs",
    bf16=True,
)
"""
COMPILED = """
from transformers import TrainingArguments

training_args = TrainingArguments(
    output_dir="./outputs",
    bf16=True,
    torch_compile=True,
)
"""


@pytest.fixture(scope="module", autouse=True)
def settings():
    with pytest.MonkeyPatch.context() as patched:
        # -O0 runs the captured graphs without generating code, which test_backend.py has at -O1.
        patched.setenv("NEURON_COMPILER_OPT_LEVEL", "-O0")
        # On the path of `python -m pytest` this repository's folder `datasets` looks like the library.
        patched.setattr("transformers.trainer.is_datasets_available", lambda: False)
        yield


@pytest.fixture(scope="module")
def texts(tiny_qwen3: Path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen3)
    tokenizer.pad_token = tokenizer.eos_token
    return runpy.run_path(str(EXAMPLE))["PaddedTexts"](tokenizer, 9)


def train(model: Path, texts: Any, folder: Path, *, resume: bool = False, **options: Any) -> Trainer:
    torch._dynamo.reset()
    torch_neuronx.reset_dynamo_metrics()
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        num_train_epochs=1,
        logging_steps=1,
        save_steps=2,
        learning_rate=1e-3,
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    trainer = Trainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
        args=arguments,
        train_dataset=texts,
    )
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2") if resume else None)
    return trainer


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def roles() -> list[object]:
    return [graph["role"] for graph in torch_neuronx.get_dynamo_metrics()]


def test_padded_and_dropped_batches_make_one_forward_and_one_backward_graph_and_training_resumes(
    tiny_qwen3: Path, texts, tmp_path: Path
):
    eager = losses(train(tiny_qwen3, texts, tmp_path / "eager", dataloader_drop_last=True))
    trainer = train(tiny_qwen3, texts, tmp_path / "one", dataloader_drop_last=True, torch_compile=True)
    assert trainer.args.torch_compile_backend == "neuron"
    assert {parameter.device.type for parameter in trainer.model.parameters()} == {"neuron"}
    assert roles() == ["forward", "backward"]
    compiled = losses(trainer)
    assert len(compiled) == 4
    assert compiled == pytest.approx(eager, rel=1e-4)
    assert compiled[-1] < compiled[0]

    resumed = train(
        tiny_qwen3, texts, tmp_path / "one", resume=True, dataloader_drop_last=True, torch_compile=True
    )
    assert losses(resumed) == pytest.approx(compiled, rel=1e-4)


def test_a_smaller_last_batch_is_a_second_pair_of_graphs(tiny_qwen3: Path, texts, tmp_path: Path):
    train(tiny_qwen3, texts, tmp_path, torch_compile=True)
    assert roles() == ["forward", "backward"] * 2
    rows = [graph["shapes"][0] for graph in torch_neuronx.get_dynamo_metrics() if graph["role"] == "forward"]
    assert rows == ["int64[2, 32]", "int64[1, 32]"]


@pytest.mark.parametrize("example", [EAGER, COMPILED], ids=["eager", "torch_compile"])
def test_the_documented_arguments_train_in_bfloat16(tiny_qwen3: Path, texts, tmp_path, monkeypatch, example):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    arguments: TrainingArguments = names["training_args"]
    assert arguments.device == torch.device("neuron:0")
    # One step, of the default batch of 8: the ninth text would be a batch, and a shape, of its own.
    arguments.max_steps, arguments.disable_tqdm = 1, True
    torch._dynamo.reset()
    torch_neuronx.reset_dynamo_metrics()
    model = AutoModelForCausalLM.from_pretrained(tiny_qwen3, dtype="float32")
    before = model.model.embed_tokens.weight.clone()
    trainer = Trainer(model=model, args=arguments, train_dataset=texts)
    result = trainer.train()
    assert result.training_loss > 0
    assert not torch.equal(trainer.model.model.embed_tokens.weight.cpu(), before)
    assert roles() == (["forward", "backward"] if arguments.torch_compile else [])
