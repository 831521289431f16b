"""What single architectures need beyond the rules of `trnready.plan.shrink`: numbers that their configuration
class leaves to the checkpoint, or whose names tell nothing. Dotted names lead into a part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MROPE = {"text_config.rope_parameters.mrope_section": [2, 3, 3]}
_MROPE_HALF = {"text_config.rope_parameters.mrope_section": [1, 1, 2]}

PECULIAR: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {
        "encoder_hash_byte_group_vocab": 500,
        "encoder_config.hidden_size_global": 96,
        "decoder_config.hidden_size_global": 96,
    },
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1},
    "dots1": {"n_shared_experts": 1},
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "gemma3n_text": {"hidden_size_per_layer_input": 16, "intermediate_size": [96, 96, 96, 96]},
    "gemma4_text": {"hidden_size_per_layer_input": 16},
    "glm46v": _MROPE,
    "glm4v": _MROPE,
    "glm_ocr": _MROPE,
    "glmga": _MROPE,
    "glm4v_moe": _MROPE_HALF,
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hrm_text": {"num_layers_per_stack": 1},
    "hy_v4_vl": _MROPE_HALF,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "llama4": {"text_config.intermediate_size_mlp": 96, "text_config.moe_layers": [0]},
    "llama4_text": {"intermediate_size_mlp": 96, "moe_layers": [0]},
    "molmo2": {"adapter_config.vision_feature_layer": [1, 0]},
    "paddleocr_vl": _MROPE,
    "qwen2_5_omni_thinker": {"vision_start_token_id": 5} | _MROPE,
    "qwen2_5_vl": _MROPE,
    "qwen2_vl": _MROPE | {"vision_config.embed_dim": 64},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 5} | _MROPE,
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 48]},
    "udop": {"decoder_start_token_id": 0},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"num_query_groups": 4, "hybrid_layer_ids": [1], "attention_head_dim": 32},
}
