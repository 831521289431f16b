"""Transformers' `DistributedConfig` on several cores against one: tokens, losses, memory, checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

HERE = Path(__file__).parent
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dense and a mixture-of-experts Qwen3 with weights wide enough to give distinct tokens."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    models = {"dense": Qwen3ForCausalLM(Qwen3Config(**SHAPE))}
    models["moe"] = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **EXPERTS))
    for name, model in models.items():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(folder / name)
    return {name: folder / name for name in models}


def run(action: str, checkpoint: Path, ranks: int, **config: Any) -> Any:
    """What `sharded_model.py` reports from `ranks` ranks, alone when there is one."""
    name = "-".join(map(str, (action, checkpoint.name, ranks, *config.values())))
    out = checkpoint.parent / f"{name}.json"
    if not out.exists():
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "SOFTNEURON_INSTANCE": "trn2.3xlarge"}
        done = subprocess.run(
            [
                sys.executable,
                *(launcher if ranks > 1 else []),
                str(HERE / "sharded_model.py"),
                action,
                str(checkpoint),
                str(out),
                json.dumps(config),
            ],
            capture_output=True,
            text=True,
            timeout=280,
            env=environment,
        )
        assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "ranks", "config"),
    [
        ("dense", 2, {"tp_size": 2}),
        ("dense", 4, {"tp_size": 4}),
        ("moe", 2, {"tp_size": 2, "ep_size": 2}),
        ("moe", 2, {"fsdp_size": 2, "ep_size": 2}),
    ],
)
def test_generation_equals_one_core(
    checkpoints: dict[str, Path], model: str, ranks: int, config: dict[str, int]
) -> None:
    one = run("generate", checkpoints[model], 1)
    many = run("generate", checkpoints[model], ranks, **config)
    assert many["device"] == "neuron"
    assert many["tokens"] == one["tokens"]
    assert len(set(one["tokens"])) >= 6
    logits, wanted = torch.tensor(many["logits"]), torch.tensor(one["logits"])
    assert (logits - wanted).square().mean().sqrt() <= 1e-4 * wanted.square().mean().sqrt()
    assert max(many["held"]) < 0.75 * one["held"][0]
    # While loading, no rank holds more than its shard and one whole tensor (the embedding is the largest).
    assert max(many["loading"]) <= max(many["held"]) + 4 * SHAPE["vocab_size"] * SHAPE["hidden_size"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dense", "moe"])
def test_training_equals_one_core(checkpoints: dict[str, Path], model: str) -> None:
    one = run("train", checkpoints[model], 1)
    many = run("train", checkpoints[model], 4, tp_size=2, fsdp_size=2)
    assert many["device"] == "neuron"
    assert len(one["losses"]) == 20
    assert one["losses"][-1] < one["losses"][0] - 1
    torch.testing.assert_close(
        torch.tensor(many["losses"]), torch.tensor(one["losses"]), rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow
def test_checkpoint_of_shards_is_a_whole_one(checkpoints: dict[str, Path]) -> None:
    source = checkpoints["dense"]
    run("save", source, 2, tp_size=2)
    saved = Qwen3ForCausalLM.from_pretrained(f"{source}-saved-from-shards").state_dict()
    for name, value in Qwen3ForCausalLM.from_pretrained(source).state_dict().items():
        torch.testing.assert_close(saved[name], value, rtol=0, atol=0)
