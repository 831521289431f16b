"""Tiny checkpoints of random weights for the tasks, spread so that what they compute stands well above the
rounding noise. Made in a process of its own, `python tiny.py NAME FOLDER`, since the libraries take seconds
to import."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

CHAT = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}:"
)


def _tokenizer(**options: Any) -> Any:
    """The tokenizer of bytes that all tests share."""
    path = Path(__file__).resolve().parents[2] / "conftest.py"
    spec = importlib.util.spec_from_file_location("shared_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module._tiny_tokenizer(pad_token="<end>", **options)


def _spread(model: Any, std: float = 0.2, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, std, generator=generator)
    return model.to(torch.bfloat16)


def t5(folder: Path) -> None:
    config = transformers.T5Config(
        vocab_size=257,
        d_model=64,
        d_kv=16,
        d_ff=96,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    _spread(transformers.T5ForConditionalGeneration(config), 0.4, 2).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def whisper(folder: Path) -> None:
    config = transformers.WhisperConfig(
        vocab_size=257,
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        num_mel_bins=16,
        max_source_positions=50,
        max_target_positions=64,
        decoder_start_token_id=1,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    _spread(transformers.WhisperForConditionalGeneration(config), 0.4, 1).save_pretrained(folder)
    ears = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=1)
    transformers.WhisperProcessor(ears, _tokenizer()).save_pretrained(folder)


def llava(folder: Path) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = _tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    image = tokenizer.convert_tokens_to_ids("<image>")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    ends = {"eos_token_id": 0, "pad_token_id": 0}
    vision = transformers.CLIPVisionConfig(num_hidden_layers=1, image_size=32, patch_size=8, **sizes)
    text = transformers.Qwen3Config(
        vocab_size=258, num_hidden_layers=1, num_key_value_heads=2, head_dim=16, **sizes, **ends
    )
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_id=image, vision_feature_layer=-1, **ends
    )
    _spread(transformers.LlavaForConditionalGeneration(config)).save_pretrained(folder)
    eyes = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    transformers.LlavaProcessor(
        eyes,
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT,
        image_token="<image>",
    ).save_pretrained(folder)


def diffusion(folder: Path) -> None:
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16,),
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=32,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D",),
        mid_block_type=None,
        up_block_types=("CrossAttnUpBlock2D",),
    )
    decoder = AutoencoderKL(block_out_channels=(16,), norm_num_groups=8, latent_channels=4, sample_size=8)
    reader = transformers.CLIPTextModel(
        transformers.CLIPTextConfig(
            vocab_size=257,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            max_position_embeddings=77,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )
    StableDiffusionPipeline(
        vae=_spread(decoder, 0.1, 1),
        text_encoder=_spread(reader, 0.1, 2),
        tokenizer=_tokenizer(model_max_length=77),
        unet=_spread(unet, 0.1, 3),
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)


def moe(folder: Path) -> None:
    config = transformers.Qwen3MoeConfig(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=2,
        eos_token_id=0,
    )
    _spread(transformers.Qwen3MoeForCausalLM(config)).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def sliding(folder: Path) -> None:
    """Layers that see 8 tokens back, and fewer than a generation has."""
    config = transformers.Gemma3TextConfig(
        sliding_window=8, layer_types=["sliding_attention", "full_attention"], **_SMALL
    )
    _spread(transformers.Gemma3ForCausalLM(config)).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def shared(folder: Path) -> None:
    """A last layer that reuses the keys and values of another."""
    config = transformers.Gemma4TextConfig(
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=8,
        vocab_size_per_layer_input=257,
        hidden_size_per_layer_input=16,
        global_head_dim=16,
        **_SMALL | {"num_hidden_layers": 4},
    )
    _spread(transformers.Gemma4ForCausalLM(config)).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def linear(folder: Path) -> None:
    """A layer of linear attention, and one of the usual kind."""
    config = transformers.Qwen3NextConfig(
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        **_SMALL,
    )
    _spread(transformers.Qwen3NextForCausalLM(config)).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


_SMALL: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}

MAKERS: dict[str, Callable[[Path], None]] = {
    "t5": t5,
    "whisper": whisper,
    "llava": llava,
    "diffusion": diffusion,
    "moe": moe,
    "sliding": sliding,
    "shared": shared,
    "linear": linear,
}

if __name__ == "__main__":
    for name in sys.argv[2:]:
        MAKERS[name](Path(sys.argv[1]) / name)
