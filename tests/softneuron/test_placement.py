"""Models left to Accelerate and Transformers: the CPU with one warning, or cores where that is asked for."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import softneuron.integrations.placement as placement


@pytest.fixture(autouse=True)
def _not_warned_yet():
    placement._warn_once.cache_clear()
    yield
    placement._warn_once.cache_clear()


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTNEURON_AUTO_PLACEMENT", "1")


def load(checkpoint: Path, **options):
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype="bfloat16", **options)


def devices(model: torch.nn.Module) -> set[str]:
    return {str(parameter.device) for parameter in model.parameters()}


def warned(action) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        action()
    return [warning for warning in seen if warning.category is placement.EndsOnCpuWarning]


@pytest.mark.parametrize("device_map", ["auto", "balanced", "sequential"])
def test_an_automatic_map_ends_on_the_cpu_with_one_warning_at_the_callers_line(tiny_qwen3, device_map):
    models: list[torch.nn.Module] = []
    seen = warned(lambda: models.extend(load(tiny_qwen3, device_map=device_map) for _ in range(2)))
    assert [devices(model) for model in models] == [{"cpu"}] * 2
    (warning,) = seen
    assert 'Write device_map="neuron" to put it on a core' in str(warning.message)
    assert "SOFTNEURON_AUTO_PLACEMENT=1" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize(
    ("options", "line"), [({}, "neuron"), ({"device": 0}, "neuron:0"), ({"device": 2}, "neuron:2")]
)
def test_pipelines_without_a_device_or_with_a_number_end_on_the_cpu_with_one_warning(
    tiny_qwen3, options, line
):
    made = []
    seen = warned(
        lambda: made.append(pipeline("text-generation", str(tiny_qwen3), dtype="bfloat16", **options))
    )
    assert made[0].device == torch.device("cpu")
    (warning,) = seen
    assert f'Write pipeline(..., device="{line}")' in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"device": -1}, {"device": "neuron"}])
def test_a_pipeline_that_is_told_where_is_not_warned_of(tiny_qwen3, options):
    assert warned(lambda: pipeline("text-generation", str(tiny_qwen3), **options)) == []


def test_a_model_that_fits_goes_to_one_core(tiny_qwen3, chosen):
    assert devices(load(tiny_qwen3, device_map="auto")) == {"neuron:0"}


def test_a_model_that_is_too_large_for_a_core_goes_to_several_by_their_free_memory(tiny_qwen3, chosen):
    whole = torch.neuron.mem_get_info(0)[1]
    expected = load(tiny_qwen3)
    inputs = AutoTokenizer.from_pretrained(tiny_qwen3)("Bread is", return_tensors="pt")
    for core, kib in enumerate((100, 120, 300, 300)):
        torch.neuron.set_per_process_memory_fraction(kib * 1024 / whole, core)
    try:
        model = load(tiny_qwen3, device_map="auto")
        assert len(devices(model)) > 1
        assert all(device.startswith("neuron:") for device in devices(model))
        assert model.lm_head.weight is model.model.embed_tokens.weight
    finally:
        for core in range(4):
            torch.neuron.set_per_process_memory_fraction(1.0, core)
    options = {"do_sample": False, "max_new_tokens": 4}
    assert torch.equal(model.generate(**inputs, **options), expected.generate(**inputs, **options))


def test_pipelines_take_numbers_for_cores_and_leave_a_model_where_it_is(tiny_qwen3, chosen):
    def made(model, **options):
        tokenizer = AutoTokenizer.from_pretrained(tiny_qwen3)
        return str(pipeline("text-generation", model, tokenizer=tokenizer, **options).model.device)

    assert made(str(tiny_qwen3)) == "neuron:0"
    assert made(str(tiny_qwen3), device=2) == "neuron:2"
    assert made(load(tiny_qwen3).to("neuron:1")) == "neuron:1"
    assert made(load(tiny_qwen3, device_map="neuron:3")) == "neuron:3"
    assert made(load(tiny_qwen3), device="cpu") == "cpu"


def test_a_switch_that_is_not_understood_is_told(tiny_qwen3, monkeypatch):
    monkeypatch.setenv("SOFTNEURON_AUTO_PLACEMENT", "yes")
    with pytest.raises(
        ValueError, match="SOFTNEURON_AUTO_PLACEMENT='yes' is not understood: it takes 0 or 1"
    ):
        load(tiny_qwen3, device_map="auto")


def test_sizes_given_for_cores_are_kept(chosen):
    from accelerate.utils import get_max_memory

    assert get_max_memory({1: "1KiB", 0: 5, "cpu": "2KiB"}) == {0: 5, 1: 1024, "cpu": 2048}
    free = get_max_memory()
    assert {core: free[core] for core in range(4)} == {
        core: torch.neuron.mem_get_info(core)[0] for core in range(4)
    }
    assert list(free) == [0, 1, 2, 3, "cpu"]
