"""The carried models: parameter counts exact, and bytes per core as Transformers itself cuts the
parameters."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from trnready.hub import known
from trnready.plan import blueprint, known_plans

SHARDED = """
import json, sys
import torch
import torch.distributed as dist
import transformers
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.distributed import DistributedConfig
from transformers.distributed.utils import initialize_distributed_mesh
from transformers.initialization import no_tie_weights
from trnready.hub import known
from trnready.plan import blueprint, known_plans

transformers.logging.set_verbosity(60)
cores = int(sys.argv[1])
dist.init_process_group("fake", rank=0, world_size=cores, store=FakeStore())
for name in sys.argv[2:]:
    model_id, _, kind = name.partition(" ")
    facts = known.find(model_id)
    drawn = blueprint.draw(facts.config, facts.auto_class, "bfloat16", 64, kind or None)
    with no_tie_weights():  # as from_pretrained does; it ties them once they are loaded
        model = blueprint.build(blueprint.configuration(facts.config), facts.auto_class, "bfloat16")
    config = DistributedConfig(**{key: value or cores for key, value in drawn.distributed.items()})
    mesh = initialize_distributed_mesh(config)[1]
    model = type(model).maybe_distribute_model(model, config, mesh)
    held = sum(
        (each.to_local() if hasattr(each, "to_local") else each).nbytes
        for weight, each in (*model.named_parameters(), *model.named_buffers())
        if weight not in drawn.tied
    )
    print(json.dumps([name, drawn.split.bytes_on(cores), held]))
"""


@pytest.mark.parametrize("facts", known.all_known(), ids=lambda facts: facts.model_id)
def test_parameters_are_counted_exactly(facts: known.Known):
    model = blueprint.build(blueprint.configuration(facts.config), facts.auto_class, "bfloat16")
    assert sum(each.numel() for each in model.parameters()) == facts.parameters
    assert blueprint.auto_class_of(facts.config) == facts.auto_class


@pytest.mark.parametrize("name", ["Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3"])
def test_plans_made_beforehand_are_those_that_the_planner_makes(name: str):
    assert known_plans.find(name.lower()) == known_plans.make(name)


def test_every_carried_model_has_a_plan_made_beforehand():
    plans = {facts.model_id: known_plans.find(facts.model_id) for facts in known.all_known()}
    assert [name for name, plan in plans.items() if plan is None] == []
    assert known_plans.find("no/such-model") is None


def test_there_are_enough_of_them_and_of_enough_kinds():
    everyone = known.all_known()
    assert len(everyone) == 73
    assert len({facts.config["model_type"] for facts in everyone}) >= 30


@pytest.mark.parametrize("cores", [2, 4])
def test_bytes_per_core_are_those_of_transformers_own_shards(cores: int):
    names = [
        "Qwen/Qwen3-30B-A3B",
        "Qwen/Qwen3-30B-A3B ep",
        "deepseek-ai/DeepSeek-V2-Lite ep",
        "meta-llama/Llama-3.2-1B",
        "openai/gpt-oss-20b",
        "microsoft/Phi-4-mini-instruct",
        "deepseek-ai/DeepSeek-V2-Lite",
        "google/gemma-3-4b-it",
        "allenai/OLMo-2-0425-1B",
        "EleutherAI/pythia-160m",
    ]
    ran = subprocess.run(
        [sys.executable, "-c", SHARDED, str(cores), *names],
        env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert [name for name, _, _ in told] == names
    for name, planned, held in told:
        assert planned == held, name
