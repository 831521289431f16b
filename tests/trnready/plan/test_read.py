"""From a folder to a plan or to the reason against one: bad input, odd checkpoints, and generated
configurations."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from trnready.cli import app
from trnready.hub import known
from trnready.hub.checkpoint import NoCheckpoint, NotTestable
from trnready.hub.description import Description, describe
from trnready.plan import quantization
from trnready.plan.planner import Plan
from trnready.plan.read import plan
from trnready.plan.trainium import Machine, NoSuchSize, machine

WHERE = machine(None, 16)
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "dtype": "bfloat16",
}


def _folder(path: Path, config: dict[str, Any] | None, *names: str) -> Path:
    path.mkdir(exist_ok=True)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    for name in names:
        (path / name).write_bytes(b"x")
    return path


def _plan(path: Path, config: dict[str, Any], *names: str) -> Plan:
    return plan(describe(str(_folder(path, config, *names))), WHERE)


def _refusal(path: Path, config: dict[str, Any] | None, *names: str) -> NotTestable:
    with pytest.raises(NotTestable) as caught:
        plan(describe(str(_folder(path, config, *names))), WHERE)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return caught.value


def _safetensors(path: Path, tensors: dict[str, tuple[int, ...]], dtype: str = "BF16") -> None:
    entries, position = {}, 0
    for name, shape in tensors.items():
        length = 2
        for each in shape:
            length *= each
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + length]}
        position += length
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(position))


def test_a_configuration_alone_is_enough(tmp_path):
    found = _plan(tmp_path, LLAMA)
    assert (found.cores, found.reason, found.source) == (1, None, "folder")
    # Worked out by hand: embedding and head 2*99*64; a layer q 128*64, k and v 32*64, o 64*128, MLP 3*96*64,
    # norms 2*64; a last norm of 64.
    layer = 128 * 64 + 2 * 32 * 64 + 64 * 128 + 3 * 96 * 64 + 2 * 64
    assert found.parameters == 2 * 99 * 64 + 2 * layer + 64
    # Keys and values of 2 heads of 16, 64 tokens, 2 layers, 2 bytes.
    assert found.sizes[0].cache_bytes == 2 * 2 * 16 * 64 * 2 * 2


def test_the_cache_has_the_size_of_the_heads_as_configured(tmp_path):
    wide = _plan(
        tmp_path, LLAMA | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32}
    )
    assert wide.sizes[0].cache_bytes == 2 * 2 * 32 * 64 * 2 * 2


def test_sliding_windows_keep_less(tmp_path):
    config = LLAMA | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    whole = _plan(tmp_path, config | {"sliding_window": None}).sizes[0].cache_bytes
    assert _plan(tmp_path, config | {"sliding_window": 16}).sizes[0].cache_bytes == whole // 4


def test_more_cores_than_kv_heads_are_ruled_out_and_an_odd_vocabulary_is_not(tmp_path):
    sizes = {each.cores: each for each in _plan(tmp_path, LLAMA).sizes}
    assert sizes[2].why_not == ()
    assert sizes[4].why_not == ("its 2 KV heads (model.layers.*.self_attn.k_proj) do not divide by 4",)
    assert [reason.split("(")[0].strip() for reason in sizes[16].why_not] == ["its 8 heads", "its 2 KV heads"]
    assert sizes[2].weight_bytes > sizes[1].weight_bytes // 2, "the longer half of 99 rows"


def test_a_fused_projection_that_is_gathered_keeps_all_heads_everywhere(tmp_path):
    config = LLAMA | {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "pad_token_id": 0}
    config.pop("head_dim")
    found = _plan(tmp_path, config)
    assert found.sizes[2].why_not == ()
    assert found.sizes[2].cache_bytes == found.sizes[0].cache_bytes


def test_tied_and_untied_heads(tmp_path):
    untied, tied = (_plan(tmp_path, LLAMA | {"tie_word_embeddings": each}) for each in (False, True))
    assert untied.parameters - tied.parameters == 99 * 64
    assert tied.tied == ("lm_head.weight",)
    assert untied.sizes[0].weight_bytes - tied.sizes[0].weight_bytes == 99 * 64 * 2


@pytest.mark.parametrize(
    ("stored", "executed", "width"),
    [("bfloat16", "bfloat16", 2), ("float32", "float32", 4), ("float64", "bfloat16", 2)],
)
def test_the_executed_type_counts(tmp_path, stored, executed, width):
    found = _plan(tmp_path, LLAMA | {"dtype": stored})
    assert found.dtype == executed
    assert found.sizes[0].weight_bytes >= found.parameters * width


@pytest.mark.parametrize("kind", ["FP8", "MXFP4"])
def test_what_is_dequantized_counts_its_dequantized_size(tmp_path, kind):
    plain = _plan(tmp_path, LLAMA)
    packed = _plan(tmp_path, LLAMA | {"quantization_config": {"quant_method": kind.lower()}})
    assert packed.sizes == plain.sizes
    assert packed.stored_as == kind
    assert packed.notes == (f"Stored as {kind}; Transformers dequantizes it to bfloat16 while loading.",)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("acme/Small-8B-GPTQ-Int4", "GPTQ"),
        ("acme/small-awq", "awq"),
        ("acme/Small-4bit", "4bit"),
        ("mlx-community/Small", "mlx"),
        ("acme/Small-FP8-dynamic", "FP8"),
        ("acme/small_w4a16", "w4a16"),
        ("acme/small.Q4_K_M", "Q4_K_M"),
        ("acme/Small-q4_0-unquantized", None),
        ("acme/Mint4x-fp8y", None),
        ("openai/gpt-oss-20b", None),
    ],
)
def test_what_a_name_tells_of_quantization(name, kind):
    assert quantization.in_name(name) == kind


@pytest.mark.parametrize("cores", [0, 3, 24, -1, 10**9])
def test_numbers_of_cores_that_trainium_does_not_have(tmp_path, cores):
    _folder(tmp_path, LLAMA)
    ran = CliRunner().invoke(app, ["plan", str(tmp_path), "--cores", str(cores)])
    assert isinstance(ran.exception, NoSuchSize)
    assert str(ran.exception) == (
        f"a program cannot have {cores} cores there; Trainium allows 1, 2, 4, 8, 16."
    )


def test_a_number_of_cores_that_it_has_is_planned_alone(tmp_path):
    _folder(tmp_path, LLAMA)
    ran = CliRunner().invoke(app, ["plan", str(tmp_path), "--cores", "2", "--json"])
    told = json.loads(ran.stdout)
    assert (ran.exit_code, told["cores"], told["parallelism"]) == (0, 2, "tp=2")
    ran = CliRunner().invoke(app, ["plan", str(tmp_path), "--cores", "4"])
    assert ran.exit_code == 2
    assert "its 2 KV heads" in ran.stdout


def test_experts_of_a_vision_language_model_are_those_of_its_text_part(tmp_path):
    text = LLAMA | {
        "model_type": "qwen3_vl_moe_text", "num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "num_key_value_heads": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    }  # fmt: skip
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
    config = {
        "model_type": "qwen3_vl_moe", "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "text_config": text, "vision_config": vision, "dtype": "bfloat16",
    }  # fmt: skip
    found = _plan(tmp_path, config)
    sizes = {each.cores: each for each in found.sizes}
    # Cut by their width, six experts can be shared by four cores.
    assert (sizes[2].why_not, sizes[4].why_not) == ((), ())
    # Six experts of 3 x 32 x 64 in each of two layers are 147,456 parameters; half of them leave each core.
    assert sizes[1].weight_bytes - sizes[2].weight_bytes > 147_456


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "unsupported_quantization", "gptq"),
        ({"quantization_config": {"bits": 4}}, "unsupported_quantization", "names no quant_method"),
        ({"quantization": {"bits": 4, "group_size": 64}}, "unsupported_quantization", "MLX"),
        ({"model_type": "tomorrow"}, "unsupported_architecture", "'tomorrow'"),
        ({"model_type": "tomorrow", "auto_map": {"AutoModel": "x.Y"}}, "remote_code", "its own Python code"),
        ({"model_type": None}, "invalid_config", "does not name a model_type"),
        ({"model_type": "vit"}, "incompatible", "neither generate text"),
        ({"num_hidden_layers": 10**9}, "invalid_config", "num_hidden_layers is 1000000000"),
        ({"hidden_size": -64}, "invalid_config", "hidden_size is -64"),
        ({"hidden_size": "wide"}, "invalid_config", "hidden_size"),
        ({"num_attention_heads": 0}, "invalid_config", ""),
        ({"vocab_size": 10**12}, "invalid_config", "vocab_size is 1000000000000"),
    ],
)
def test_each_obstacle_has_its_reason(tmp_path, change, reason, words):
    refusal = _refusal(tmp_path, LLAMA | change)
    assert refusal.reason == reason
    assert words in str(refusal)


@pytest.mark.parametrize(
    ("file", "kind"),
    [("model.gguf", "GGUF"), ("model.onnx", "ONNX"), ("pytorch_model.bin", "pickled PyTorch")],
)
@pytest.mark.parametrize("config", [None, LLAMA])
def test_other_kinds_of_weights_are_named(tmp_path, file, kind, config):
    refusal = _refusal(tmp_path, config, file)
    assert refusal.reason == "no_safetensors"
    assert kind in str(refusal)


def test_an_index_that_names_missing_files(tmp_path):
    _folder(tmp_path, LLAMA)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    refusal = _refusal(tmp_path, LLAMA)
    assert refusal.reason == "invalid_config"
    assert "model-1.safetensors, which is not there" in str(refusal)


def test_headers_that_disagree_with_the_configuration(tmp_path):
    _folder(tmp_path, LLAMA)
    _safetensors(tmp_path / "model.safetensors", {"model.embed_tokens.weight": (100, 64)})
    refusal = _refusal(tmp_path, LLAMA)
    assert refusal.reason == "invalid_config"
    assert "has the shape 100 x 64 in its file, and 99 x 64 by config.json" in str(refusal)


def test_headers_that_lack_most_of_the_model(tmp_path):
    _folder(tmp_path, LLAMA)
    _safetensors(tmp_path / "model.safetensors", {"model.embed_tokens.weight": (99, 64)})
    assert "its files hold 6,336 parameters" in str(_refusal(tmp_path, LLAMA))


def test_what_a_file_holds_beside_the_model_is_said(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = LLAMA | {"tie_word_embeddings": True}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    shapes |= {
        "lm_head.weight": (99, 64),
        "model.layers.2.mtp.weight": (5, 5),
        "model.rotary_emb.inv_freq": (8,),
    }
    _folder(tmp_path, config)
    _safetensors(tmp_path / "model.safetensors", shapes)
    assert _plan(tmp_path, config).notes == (
        "The files hold 6,336 elements in stored copies of tied weights.",
        "The files hold 8 elements in buffers.",
        "The files hold 25 elements in layers of MTP.",
    )


def test_of_tied_weights_either_name_may_be_stored(tmp_path):
    """As in T5-like checkpoints without `shared.weight`: Transformers ties the absent one to the other."""
    from transformers import AutoConfig, AutoModelForCausalLM

    bart = {
        "model_type": "bart", "architectures": ["BartForCausalLM"], "vocab_size": 99, "d_model": 64,
        "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 96, "dtype": "bfloat16",
    }  # fmt: skip
    for config, stored in (
        (LLAMA | {"tie_word_embeddings": True}, "lm_head.weight"),
        (bart, "lm_head.weight"),
    ):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
        shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
        (source,) = (name for name in shapes if name.endswith("embed_tokens.weight"))
        folder = tmp_path / str(config["model_type"])
        _folder(folder, config)
        for names in (
            shapes,
            {name: each for name, each in shapes.items() if name != source} | {stored: (99, 64)},
        ):
            _safetensors(folder / "model.safetensors", names)
            assert _plan(folder, config).notes == ()


@pytest.mark.parametrize("name", ["", "a b", "acme/tiny?x", "acme/a/b", "\x00", "../../etc", "x" * 300])
def test_odd_names_are_refused_in_one_sentence(name):
    with pytest.raises((NoCheckpoint, NotTestable)) as caught:
        describe(name)
    assert "\n" not in str(caught.value)


def test_carried_models_need_no_hub_and_no_right_capitals():
    found = describe("qwen/qwen3-0.6b")
    assert (found.model_id, found.source) == ("Qwen/Qwen3-0.6B", "carried")
    made = plan(found, WHERE)
    assert (made.cores, made.parameters) == (1, 596049920)
    assert "the file also stores the tied lm_head" in made.notes[0]


@pytest.mark.parametrize(
    ("name", "cores", "parallelism", "reason"),
    [
        ("meta-llama/Llama-3.1-8B", 1, None, None),
        ("Qwen/Qwen3-32B", 4, "tp=4", None),
        ("openai/gpt-oss-20b", 2, "ep=2", None),
        ("meta-llama/Llama-3.1-70B", 8, "tp=8", None),
        ("Qwen/Qwen3-235B-A22B", None, None, "too_large"),
        ("openai-community/gpt2", 1, None, None),
        ("Qwen/Qwen3-VL-4B-Instruct", 1, None, None),
    ],
)
def test_plans_of_well_known_models(name, cores, parallelism, reason):
    made = plan(describe(name), WHERE)
    assert (made.cores, made.parallelism, made.reason) == (cores, parallelism, reason)


@pytest.mark.parametrize(
    ("parallelism", "distributed", "obstacle"),
    [
        ("tp", {"tp_size": 4}, "its 4 KV heads"),
        ("ep", {"tp_size": 4, "ep_size": 4}, "its 4 KV heads"),
        (None, {"tp_size": 4}, "its 4 KV heads"),
    ],
)
def test_the_parallelism_asked_for(parallelism, distributed, obstacle):
    where = Machine((4, 8), 2**40, None)
    made = plan(describe("Qwen/Qwen3-30B-A3B"), where, None, parallelism)
    assert (made.cores, made.kind, made.distributed) == (4, parallelism or "tp", distributed)
    assert made.sizes[1].why_not[0].startswith(obstacle)


def test_a_large_model_without_a_plan():
    facts = known.find("tiiuae/falcon-7b")
    assert facts is not None
    config = dict(facts.config) | {"num_hidden_layers": 80}
    made = plan(Description("acme/falcon", None, "folder", config), WHERE)
    assert made.reason == "no_parallel_plan"
    assert "for falcon models" in str(made.because)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    kv = draw(st.sampled_from([1, 2, 3, 4, 8]))
    heads = kv * draw(st.sampled_from([1, 2, 3]))
    head_dim = draw(st.sampled_from([8, 16]))
    config = {
        "model_type": draw(
            st.sampled_from(["llama", "qwen3", "mistral", "mixtral", "qwen3_moe", "gemma2", "olmo2"])
        ),
        "vocab_size": draw(st.integers(50, 300)),
        "hidden_size": heads * head_dim,
        "intermediate_size": draw(st.integers(8, 99)),
        "num_hidden_layers": draw(st.integers(1, 2)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "tie_word_embeddings": draw(st.booleans()),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": draw(st.sampled_from(["bfloat16", "float32"])),
    }
    if config["model_type"] in ("mixtral", "qwen3_moe"):
        experts = draw(st.sampled_from([2, 3, 4, 6]))
        config |= {"num_local_experts": experts, "num_experts": experts, "num_experts_per_tok": 2}
        config["moe_intermediate_size"] = draw(st.integers(4, 33))
    return config


@settings(max_examples=40)
@given(configurations())
def test_plans_of_generated_configurations_hold(config):
    made = plan(Description("acme/tiny", None, "folder", config), WHERE)
    width = {"bfloat16": 2, "float32": 4}[config["dtype"]]
    assert made.cores == 1
    assert made.sizes[0].weight_bytes >= made.parameters * width
    needed = [each.weight_bytes for each in made.sizes]
    assert needed == sorted(needed, reverse=True)
    for each in made.sizes:
        assert each.weight_bytes * each.cores >= made.parameters * width
        if each.usable and each.cores > 1 and config["model_type"] != "olmo2":
            assert config["num_key_value_heads"] % each.cores == 0
            assert config["num_attention_heads"] % each.cores == 0
