"""What single architectures need beyond the rules of `trnready.plan.shrink`: numbers that their configuration
class leaves to the checkpoint, or whose names tell nothing. Dotted names lead into a part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MROPE = {"text_config.rope_parameters.mrope_section": [2, 3, 3]}
_ONE_TILE = {"image_grid_pinpoints": [[56, 56]]}
_MROPE_HALF = {"text_config.rope_parameters.mrope_section": [1, 1, 2]}
_ROPE_BY_KIND = {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
_SWA = {
    "02": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "head_dim": 24,
    }
}
_INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 32,
    "indexer_compress_ratio": 2,
}

PECULIAR: Mapping[str, Mapping[str, Any]] = {
    "aria": {"projector_patch_to_query_dict": {16: 16}},
    "bamba": {"attn_layer_indices": [1]},
    "blip-2": {"image_token_index": 5},
    "blt": {
        "encoder_hash_byte_group_vocab": 500,
        "encoder_config.hidden_size_global": 96,
        "decoder_config.hidden_size_global": 96,
    },
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "cohere_compass_text": {"rope_parameters": _ROPE_BY_KIND},
    "cohere_compass": {"text_config.rope_parameters": _ROPE_BY_KIND},
    # As every checkpoint has them; the class leaves them out.
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0},
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense", "sparse"]},
    "dots3_note": {"text_config.per_layer_config": _SWA, "audio_config.adapter_input_size": 64},
    "dots3_note_text": {"per_layer_config": _SWA},
    "dory": {
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp", "sliding_attention", "mlp"],
        "n_input_layers": 2,
        "n_recurrent_layers": 2,
        "n_output_layers": 2,
    },
    "deepseek_vl_hybrid": {"high_res_vision_config.global_attn_indexes": [0]},
    "dots1": {"n_shared_experts": 1},
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "ernie4_5_vl_moe": {
        "text_config.rope_parameters.mrope_section": [3, 3, 2],
        "text_config.moe_intermediate_size": [48, 48],
    },
    "gemma3n_text": {"hidden_size_per_layer_input": 16, "intermediate_size": [96, 96, 96, 96]},
    "gemma4_text": {"hidden_size_per_layer_input": 16},
    "gemma3": {"mm_tokens_per_image": 4},
    # The configuration class leaves the tower out.
    "gemma4": {
        f"vision_config.{name}": value
        for name, value in (
            ("model_type", "gemma4_vision"),
            ("hidden_size", 64),
            ("intermediate_size", 96),
            ("num_hidden_layers", 2),
            ("num_attention_heads", 4),
            ("num_key_value_heads", 4),
            ("head_dim", 16),
            ("max_position_embeddings", 256),
            ("position_embedding_size", 256),
        )
    },
    "glm46v": _MROPE,
    "glm4v": _MROPE,
    "glm_ocr": _MROPE,
    "glmga": _MROPE,
    "glm4v_moe": _MROPE_HALF,
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hrm_text": {"num_layers_per_stack": 1},
    "hunyuan_vl": {"text_config.rope_parameters.mrope_section": [2, 2, 2, 2]},
    "hy_v4_vl": _MROPE_HALF,
    "idefics": {"alpha_initializer": "ones"},
    "instructblip": {"image_token_index": 5},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "kimi_k25": {"vision_config.pos_emb_width": 64},
    "lighton_ocr": {"vision_config.head_dim": 8},
    "llama4": {
        "text_config.intermediate_size_mlp": 96,
        "text_config.moe_layers": [0],
        # Its projector takes four patches side by side.
        "vision_config.intermediate_size": 256,
    },
    "llama4_text": {"intermediate_size_mlp": 96, "moe_layers": [0]},
    "llava_next": _ONE_TILE,
    "llava_next_video": _ONE_TILE,
    "llava_onevision": _ONE_TILE,
    # A third of its heads turns, where half of the original's do.
    "mistral4": {"rope_parameters.partial_rotary_factor": 1 / 3},
    # The tower hands over its last layer beside the two that it took out on the way.
    "mllama": {
        "text_config.cross_attention_layers": [1],
        "vision_config.intermediate_layers_indices": [0, 1],
        "vision_config.num_global_layers": 2,
        "vision_config.vision_output_dim": 192,
    },
    "molmo2": {"adapter_config.vision_feature_layer": [1, 0]},
    # Its own size of the vocabulary is odd, the language model's is not; every token is in both.
    "ovis2": {"vocab_size": 320, "image_token_id": 314},
    "paddleocr_vl": _MROPE,
    "qwen2_5_omni_thinker": {"vision_start_token_id": 5} | _MROPE,
    "qwen2_5_vl": _MROPE,
    "qwen2_vl": _MROPE | {"vision_config.embed_dim": 64, "vision_config.hidden_size": 128},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 5} | _MROPE,
    "qwen4_exp": {f"text_config.{name}": value for name, value in _INDEXER.items()},
    "qwen4_exp_text": _INDEXER,
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 48]},
    "shieldgemma2": {"mm_tokens_per_image": 4},
    "udop": {"decoder_start_token_id": 0},
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "attention_head_dim": 16,
        "attention_hidden_size": 64,
    },
    "zamba2": {
        "num_query_groups": 4,
        "hybrid_layer_ids": [1],
        "attention_head_dim": 32,
        "attention_hidden_size": 128,
    },
}
