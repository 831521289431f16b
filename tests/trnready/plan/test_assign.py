"""Which cores a test takes, of a model with the heads of SmolLM2-135M: 9, and 3 of keys and values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trnready.hub.checkpoint import Checkpoint, NotTestable
from trnready.plan.assign import Assignment, assign
from trnready.plan.trainium import NoSuchSize


@pytest.fixture
def nine_heads(tmp_path: Path) -> Checkpoint:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 96,
        "hidden_size": 144,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return Checkpoint("acme/nine", "1", tmp_path, str(tmp_path), None, config)


def test_no_number_that_trainium_allows_divides_its_heads(nine_heads, monkeypatch):
    monkeypatch.delenv("SOFTNEURON_INSTANCE", raising=False)
    for cores in (2, 4, 8, 16):
        with pytest.raises(NotTestable) as caught:
            assign(nine_heads, cores, "bfloat16")
        assert caught.value.reason == "no_parallel_plan"
        assert str(caught.value) == (
            f"{cores} cores cannot share it: its 9 heads (model.layers.*.self_attn.q_proj) do not divide by "
            f"{cores}. Of what Trainium has, it runs on 1."
        )
    assert assign(nine_heads, None, "bfloat16") == Assignment(1)


def test_three_cores_are_no_number_of_trainiums_but_one_of_software_cores(nine_heads, monkeypatch):
    monkeypatch.delenv("SOFTNEURON_INSTANCE", raising=False)
    with pytest.raises(NoSuchSize) as caught:
        assign(nine_heads, 3, "bfloat16")
    assert str(caught.value) == (
        "a program cannot have 3 cores there; Trainium allows 1, 2, 4, 8, 16. "
        "Software cores do with SOFTNEURON_INSTANCE=custom SOFTNEURON_CORES=3."
    )
    monkeypatch.setenv("SOFTNEURON_INSTANCE", "custom")
    found = assign(nine_heads, 3, "bfloat16")
    assert (found.cores, found.parallelism, found.distributed) == (3, "tp=3", {"tp_size": 3})
