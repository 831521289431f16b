"""Models left to Accelerate and Transformers: the CPU with one warning, or cores where the library knows them
or that is asked for."""

from __future__ import annotations

import warnings
from pathlib import Path

import accelerate
import pytest
import torch
import torch_neuronx
from packaging.version import Version
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import softneuron.integrations.placement as placement

CHOOSES_NEURON = Version(accelerate.__version__) >= Version("1.16")
with_1_15 = pytest.mark.skipif(CHOOSES_NEURON, reason="Accelerate 1.16 chooses neuron by itself")
with_1_16 = pytest.mark.skipif(not CHOOSES_NEURON, reason="Accelerate 1.15 does not choose neuron")


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


def continued(model: torch.nn.Module, checkpoint: Path) -> list[list[int]]:
    inputs = AutoTokenizer.from_pretrained(checkpoint)("Bread is", return_tensors="pt")
    return model.generate(**inputs, do_sample=False, max_new_tokens=4).tolist()


@with_1_15
@pytest.mark.parametrize("device_map", ["auto", "balanced", "sequential"])
def test_an_automatic_map_ends_on_the_cpu_with_one_warning_at_the_callers_line(tiny_qwen3, device_map):
    models: list[torch.nn.Module] = []
    seen = warned(lambda: models.extend(load(tiny_qwen3, device_map=device_map) for _ in range(2)))
    assert [devices(model) for model in models] == [{"cpu"}] * 2
    (warning,) = seen
    assert "Accelerate 1.15 does not choose neuron" in str(warning.message)
    assert 'Write device_map="neuron" to put it on a core' in str(warning.message)
    assert "SOFTNEURON_AUTO_PLACEMENT=1" in str(warning.message)
    assert warning.filename == __file__


# Core 0 keeps room for the largest layer, and two layers are more than a core's even share.
SPREAD = {
    "model.embed_tokens": 0,
    "lm_head": 0,
    "model.layers.0": 1,
    "model.layers.1": 2,
    "model.norm": 2,
    "model.rotary_emb": 2,
}


@with_1_16
@pytest.mark.parametrize("device_map", ["auto", "balanced"])
def test_an_automatic_map_is_accelerates_own_and_spreads_over_the_cores_without_a_warning(
    tiny_qwen3, device_map
):
    models: list[torch.nn.Module] = []
    assert warned(lambda: models.append(load(tiny_qwen3, device_map=device_map))) == []
    assert models[0].hf_device_map == SPREAD
    assert devices(models[0]) == {"neuron:0", "neuron:1", "neuron:2"}
    assert models[0].lm_head.weight is models[0].model.embed_tokens.weight
    assert continued(models[0], tiny_qwen3) == continued(load(tiny_qwen3), tiny_qwen3)


@with_1_16
def test_a_sequential_map_is_accelerates_own_and_begins_with_the_first_core_without_a_warning(tiny_qwen3):
    models: list[torch.nn.Module] = []
    assert warned(lambda: models.append(load(tiny_qwen3, device_map="sequential"))) == []
    assert devices(models[0]) == {"neuron:0"}
    assert continued(models[0], tiny_qwen3) == continued(load(tiny_qwen3), tiny_qwen3)


@with_1_16
def test_a_spread_model_is_one_graph_that_is_refused_or_runs_uncompiled(
    tiny_qwen3, neff_cache, fresh_dynamo, monkeypatch
):
    model = load(tiny_qwen3, device_map="auto")
    inputs = AutoTokenizer.from_pretrained(tiny_qwen3)("Bread is", return_tensors="pt").to(model.device)
    static = {"cache_implementation": "static", "do_sample": False, "max_new_tokens": 4}
    message = 'SeveralCores: .* tensors on neuron:0, neuron:1, neuron:2\n.*device_map="neuron"'
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
        model.generate(**inputs, **static)

    monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0")
    torch._dynamo.reset()
    assert model.generate(**inputs, **static).tolist() == continued(load(tiny_qwen3), tiny_qwen3)
    assert torch_neuronx.get_dynamo_metrics() == []
    assert [graph["role"] for graph in torch_neuronx.get_fallback_graphs()] == ["inference"]
    torch_neuronx.clear_op_tracking()


@with_1_16
def test_a_pipeline_with_an_automatic_map_is_spread_without_a_warning(tiny_qwen3):
    def made(**options):
        return pipeline("text-generation", str(tiny_qwen3), dtype="bfloat16", **options)

    def text(pipe) -> str:
        return pipe("Bread is", do_sample=False, max_new_tokens=4)[0]["generated_text"]

    pipes = []
    assert warned(lambda: pipes.append(made(device_map="auto"))) == []
    assert pipes[0].model.hf_device_map == SPREAD
    assert text(pipes[0]) == text(made(device="cpu"))


@with_1_16
def test_memory_of_the_cores_is_known_and_sizes_given_are_kept():
    from accelerate.utils import get_max_memory

    free = get_max_memory()
    assert list(free) == [0, 1, 2, 3, "cpu"]
    # Accelerate tries each core with a number of eight bytes.
    assert [free[core] for core in range(4)] == [torch.neuron.mem_get_info(core)[0] - 8 for core in range(4)]
    assert get_max_memory({1: "1KiB", 0: 5, "cpu": "2KiB"}) == {0: 5, 1: 1024, "cpu": 2048}


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
    assert "Transformers does not choose neuron" in str(warning.message)
    assert f'Write pipeline(..., device="{line}")' in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"device": -1}, {"device": "neuron"}])
def test_a_pipeline_that_is_told_where_is_not_warned_of(tiny_qwen3, options):
    assert warned(lambda: pipeline("text-generation", str(tiny_qwen3), **options)) == []


def test_a_model_that_fits_goes_to_one_core(tiny_qwen3, chosen):
    assert devices(load(tiny_qwen3, device_map="auto")) == {"neuron:0"}


def test_a_model_that_is_too_large_for_a_core_goes_to_several_by_their_free_memory(
    tiny_qwen3, chosen, no_garbage
):
    whole = torch.neuron.mem_get_info(0)[1]
    expected = load(tiny_qwen3)
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
    assert continued(model, tiny_qwen3) == continued(expected, tiny_qwen3)


@pytest.mark.parametrize("switch", ["0", "1"])
@pytest.mark.parametrize(
    ("device_map", "sizes", "places"),
    [
        ("auto", {0: "1MiB"}, {"neuron:0"}),
        ("auto", {0: "110KiB", 1: "1MiB", "cpu": "1MiB"}, {"neuron:0", "neuron:1"}),
        ("sequential", {3: "1MiB", 2: "110KiB"}, {"neuron:2", "neuron:3"}),
        ("auto", {0: "110KiB", "cpu": "1GiB"}, {"neuron:0", "meta"}),
        ("auto", {0: 110 * 1024, "cpu": 0}, {"neuron:0", "meta"}),
    ],
    ids=["one core", "two cores", "cores out of order", "the rest in host memory", "the rest on disk"],
)
def test_a_model_keeps_to_the_sizes_given_and_says_what_it_says_on_the_cpu(
    tiny_qwen3, tmp_path, monkeypatch, switch, device_map, sizes, places
):
    monkeypatch.setenv("SOFTNEURON_AUTO_PLACEMENT", switch)
    # Accelerate changes the sizes in place.
    model = load(tiny_qwen3, device_map=device_map, max_memory=dict(sizes), offload_folder=tmp_path)
    assert devices(model) == places
    assert continued(model, tiny_qwen3) == continued(load(tiny_qwen3), tiny_qwen3)


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


@with_1_15
def test_sizes_given_for_cores_are_kept(chosen):
    from accelerate.utils import get_max_memory

    assert get_max_memory({1: "1KiB", 0: 5, "cpu": "2KiB"}) == {0: 5, 1: 1024, "cpu": 2048}
    free = get_max_memory()
    assert {core: free[core] for core in range(4)} == {
        core: torch.neuron.mem_get_info(core)[0] for core in range(4)
    }
    assert list(free) == [0, 1, 2, 3, "cpu"]
