"""Twins: what shrinking keeps, and that a twin notices the loss of any part. Run on the CPU; the device's
part is tested with the sweep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trnready.hub import known
from trnready.plan import twin
from trnready.plan.blueprint import InvalidConfiguration
from trnready.plan.sensitivity import Sensitivity, measure
from trnready.plan.shrink import EXPERTS, HEAD_DIM, shrink
from trnready.plan.twin_generate import Steps, generate, prepared, stage, takes_ids_on_its_device
from trnready.plan.twin_inputs import NoImage, with_image
from trnready.plan.twin_run import run

CAUSAL = "AutoModelForCausalLM"
IMAGE = "AutoModelForImageTextToText"


def _twin_of(name: str) -> tuple[Any, twin.Twin]:
    facts = known.find(name)
    assert facts is not None
    made = twin.of_config(facts.config, facts.auto_class)
    return made.config.get_text_config(decoder=True), made


def test_head_grouping_and_the_width_of_heads_are_kept():
    text, _ = _twin_of("Qwen/Qwen3-0.6B")
    # The original has 16 heads on 8, each of 128, in a hidden width of 1024: heads wider than the width.
    assert (text.num_attention_heads, text.num_key_value_heads) == (4, 2)
    assert text.num_attention_heads * text.head_dim > text.hidden_size
    text, _ = _twin_of("google/gemma-3-1b-it")
    assert (text.num_attention_heads, text.num_key_value_heads) == (4, 1)


def test_every_kind_of_layer_is_kept_in_order():
    text, _ = _twin_of("google/gemma-3-1b-it")
    assert text.layer_types == ["sliding_attention", "full_attention"]
    text, _ = _twin_of("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert text.layer_types == ["linear_attention", "full_attention"]
    text, _ = _twin_of("openai/gpt-oss-20b")
    assert set(text.layer_types) == {"sliding_attention", "full_attention"}


def test_experts_routing_and_compressed_attention_are_kept():
    text, made = _twin_of("deepseek-ai/DeepSeek-V2-Lite")
    assert (text.n_routed_experts, text.num_experts_per_tok) == (EXPERTS, EXPERTS - 1)
    assert text.kv_lora_rank == HEAD_DIM
    assert text.qk_rope_head_dim == HEAD_DIM // 2
    assert any("rank of compressed" in each for each in twin.kept(made))


def test_special_tokens_move_into_the_vocabulary():
    text, made = _twin_of("Qwen/Qwen2.5-VL-3B-Instruct")
    config = made.config
    ids = [getattr(config, name) for name in ("image_token_id", "video_token_id", "vision_start_token_id")]
    assert len(set(ids)) == 3
    assert all(0 <= each < text.vocab_size for each in ids)
    assert not set(ids) & set(made.prompt)


def test_what_was_cut_is_told():
    _, made = _twin_of("meta-llama/Llama-3.1-8B")
    assert made.cut.changed["hidden_size"] == (4096, 128)
    assert made.cut.changed["num_hidden_layers"] == (32, 2)


def test_an_odd_vocabulary_stays_odd():
    small, _ = shrink({"vocab_size": 50257, "hidden_size": 768, "num_attention_heads": 12})
    assert small["vocab_size"] % 2 == 1
    small, _ = shrink({"vocab_size": 50256, "hidden_size": 768, "num_attention_heads": 12})
    assert small["vocab_size"] % 2 == 0


def test_a_twin_is_the_same_every_time():
    made = twin.of_model_type("llama", CAUSAL)
    first, second = (made.build("bfloat16").state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert made.prompt == twin.of_model_type("llama", CAUSAL).prompt
    assert first["model.layers.0.mlp.up_proj.weight"].float().std() == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("model_type", ["llama", "qwen3_5_text", "mamba2", "rwkv"])
def test_a_twin_has_the_same_weights_in_every_type(model_type: str):
    # As if one checkpoint were loaded twice; what a class draws itself must not depend on the type either.
    made = twin.of_model_type(model_type, CAUSAL)
    built = [made.build(dtype) for dtype in ("bfloat16", "float32", "bfloat16", "float32")]
    first = dict(built[0].named_parameters())
    for model in built[1:]:
        for name, each in model.named_parameters():
            assert torch.equal(each.float(), first[name].float()), name
    assert {each.dtype for each in built[1].parameters()} == {torch.float32}


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "gpt2", "mamba"])
def test_no_part_can_be_lost_unnoticed(model_type: str):
    made = twin.of_model_type(model_type, CAUSAL)
    same, wide = made.build("bfloat16"), made.build("float32")
    ids = torch.tensor([made.prompt])
    tokens = same.generate(ids, max_new_tokens=16, min_new_tokens=16, do_sample=False)[0, -16:].tolist()
    found = measure(same, wide, made.prompt, tokens, {})
    kinds = {name.rpartition(".")[2].partition("[")[0] for name in found.scores}
    assert len(found.scores) >= 2
    if model_type == "qwen3_moe":
        assert {"self_attn", "gate", "experts"} <= kinds
        assert sum("experts[" in name for name in found.scores) == 2 * EXPERTS
        # Nothing after the last layer spreads what its experts do: one that few tokens see may be lost.
        assert all(name.startswith("model.layers.1.mlp.experts[") for name in found.blind)
    else:
        assert found.blind == ()
    # Everything is as it was: the same measurement again gives the same numbers.
    assert measure(same, wide, made.prompt, tokens, {}).scores == found.scores


def test_the_loss_of_what_looks_at_an_image_beside_the_text_is_noticed():
    made = twin.of_model_type("idefics", IMAGE)
    same, wide = prepared(made.build("bfloat16")), made.build("float32")
    inputs = with_image(same, made.prompt)
    tokens = generate(same, inputs.prompt, inputs.tensors, Steps())[1]
    found = measure(same, wide, inputs.prompt, tokens, inputs.tensors)
    assert found.blind == ()
    assert {
        "model.vision_model.encoder.layers.0.self_attn",
        "model.gated_cross_attn_layers.0",
    } <= set(found.scores)


def test_blind_parts_are_named():
    found = Sensitivity({"attention": 40.0, "mlp": 2.9, "router": float("nan")})
    assert found.blind == ("mlp", "router")
    assert found.least == 2.9


def test_an_image_becomes_tokens_of_the_prompt():
    made = twin.of_model_type("qwen3_vl", IMAGE)
    model = made.build("bfloat16")
    inputs = with_image(model, made.prompt)
    assert inputs.prompt.count(made.config.image_token_id) == 4
    assert tuple(inputs.tensors["image_grid_thw"][0].tolist()) == (1, 4, 4)
    assert inputs.tensors["mm_token_type_ids"].sum() == 4


@pytest.mark.parametrize(
    ("model_type", "shapes"),
    [
        ("llava", {"pixel_values": (1, 3, 56, 56)}),
        ("llava_next", {"pixel_values": (1, 2, 3, 56, 56), "image_sizes": (1, 2)}),
        ("smolvlm", {"pixel_values": (1, 1, 3, 128, 128)}),
        (
            "lfm2_vl",
            {"pixel_values": (1, 16, 768), "spatial_shapes": (1, 2), "pixel_attention_mask": (1, 16)},
        ),
        ("paddleocr_vl", {"pixel_values": (16, 3, 14, 14), "image_grid_thw": (1, 3)}),
        ("kimi_k25", {"pixel_values": (16, 3, 14, 14), "image_grid_thw": (1, 3)}),
        ("lighton_ocr", {"pixel_values": (1, 3, 56, 56), "image_sizes": (1, 2)}),
        (
            "gemma4",
            {"pixel_values": (1, 36, 768), "image_position_ids": (1, 36, 2), "mm_token_type_ids": (1, 16)},
        ),
        ("deepseek_vl_hybrid", {"pixel_values": (1, 3, 64, 64), "high_res_pixel_values": (1, 3, 64, 64)}),
        ("instructblip", {"pixel_values": (1, 3, 56, 56), "qformer_input_ids": (1, 12)}),
    ],
)
def test_an_image_has_the_form_that_the_model_takes(model_type: str, shapes: dict[str, tuple[int, ...]]):
    made = twin.of_model_type(model_type, IMAGE)
    inputs = with_image(made.build("bfloat16"), made.prompt)
    assert {name: tuple(inputs.tensors[name].shape) for name in shapes} == shapes
    assert len(inputs.prompt) > len(made.prompt)


@pytest.mark.parametrize(
    ("model_type", "shapes"),
    [
        ("mllama", {"pixel_values": (1, 1, 4, 3, 56, 56), "aspect_ratio_mask": (1, 1, 4)}),
        ("idefics", {"pixel_values": (1, 1, 3, 56, 56), "image_attention_mask": (1, 12, 1)}),
        ("udop", {"pixel_values": (1, 3, 64, 64), "bbox": (1, 12, 4)}),
        ("pix2struct", {"flattened_patches": (1, 16, 770), "attention_mask": (1, 16)}),
        ("vision-encoder-decoder", {"pixel_values": (1, 3, 64, 64)}),
    ],
)
def test_an_image_beside_the_text_is_looked_at(model_type: str, shapes: dict[str, tuple[int, ...]]):
    made = twin.of_model_type(model_type, IMAGE)
    model = prepared(made.build("float32"))
    inputs = with_image(model, made.prompt)
    assert inputs.prompt == made.prompt
    assert {name: tuple(inputs.tensors[name].shape) for name in shapes} == shapes
    image = next(iter(set(inputs.tensors) & {"pixel_values", "flattened_patches"}))
    other = inputs.tensors[image].clone()
    other[..., 2:] *= -1  # the first two values of a patch are its place
    shown, unlike = (
        generate(model, inputs.prompt, inputs.tensors | {image: each}, Steps())[0]
        for each in (inputs.tensors[image], other)
    )
    assert np.abs(shown[0] - unlike[0]).max() > 0.01


def test_a_mask_tells_the_places_of_an_image():
    made = twin.of_model_type("kosmos-2", IMAGE)
    inputs = with_image(made.build("bfloat16"), made.prompt)
    mask = inputs.tensors["image_embeds_position_mask"]
    assert (len(inputs.prompt), mask.sum(), mask.shape) == (12 + 64, 64, (1, 76))
    assert (*inputs.prompt[:2], *inputs.prompt[66:]) == made.prompt
    # Thousands of places would take most of a sweep's time.
    made = twin.of_model_type("kosmos-2.5", IMAGE)
    with pytest.raises(NoImage):
        with_image(made.build("bfloat16"), made.prompt)


def test_token_ids_stay_on_the_host_unless_the_model_looks_at_them_there():
    """Position ids of images, encoders, and a generate() of the model's own work on one device alone."""
    told = {}
    for model_type, task in (("llama", CAUSAL), ("llava", IMAGE), ("qwen2_vl", IMAGE), ("blip-2", IMAGE)):
        told[model_type] = takes_ids_on_its_device(twin.of_model_type(model_type, task).build("bfloat16"))
    assert told == {"llama": False, "llava": False, "qwen2_vl": True, "blip-2": True}


def test_a_language_model_takes_no_image():
    made = twin.of_model_type("llama", CAUSAL)
    with pytest.raises(NoImage):
        with_image(made.build("bfloat16"), made.prompt)


def test_what_cannot_be_built_says_why():
    with pytest.raises(InvalidConfiguration, match="no twin can be built"):
        twin.of_model_type("musicgen", CAUSAL)


def test_what_transformers_keeps_in_float32_is_kept_so():
    made = twin.of_model_type("deepseek_v3", CAUSAL)
    wide = dict(made.build("float32").named_parameters())
    kept = {
        name: each for name, each in made.build("bfloat16").named_parameters() if each.dtype == torch.float32
    }
    assert list(kept) == ["model.layers.1.mlp.gate.weight"]
    assert all(torch.equal(each, wide[name]) for name, each in kept.items())
    # A class may give single parameters a type of their own.
    moe = twin.of_model_type("hunyuan_v1_moe", CAUSAL).build("bfloat16")
    assert moe.model.layers[0].mlp.gate.wg.weight.dtype == torch.float32
    # Tables of angles are computed in float32 whatever the model's type.
    assert made.build("bfloat16").model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_reason_is_found_at_the_end_of_a_long_error():
    def fails(*_: Any) -> Any:
        with stage("run"):
            raise RuntimeError("frame " * 200 + "\"kernel\" not implemented for 'BFloat16'")

    outcome = run(_twin_of("Qwen/Qwen3-0.6B")[1], "bfloat16", fails)
    assert (outcome.result, outcome.reason, outcome.stage) == ("FAIL", "unsupported_dtype", "run")
    assert len(outcome.error) == 400
