"""Cuts a configuration down to a twin's: every layer type, head grouping, expert, window and special
attribute kept, widths and counts cut alike wherever they were alike. `trnready.plan.twin` builds what
comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trnready.plan.peculiar import PECULIAR

HEAD_DIM = 16
WINDOW = 128
"""Windows and chunks of a twin: as in real models, longer than a test, which they therefore never fill."""
POSITIONS = 256
VOCABULARY = 320
EXPERTS = 4
LEAST_LAYERS = 2
MOST_LAYERS = 6

_HIDDEN = ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim", "model_dim", "hidden_dim")
_HEADS = (
    "num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads", "attention_heads",
    "encoder_attention_heads",
)  # fmt: skip
_KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_kv_heads",
    "num_global_key_value_heads",
    "multi_query_group_num",
)
_LAYERS = re.compile(
    r"^(num_hidden_layers|n_layers?|num_layers|depth|layers|(encoder|decoder)_(layers|depth)|num_decoder_layers|"
    r"num_encoder_layers|n_blocks|num_blocks)$"
)
_HEAD_DIM = re.compile(r"^(\w+_)?head_dim$|^kv_channels$|^d_kv$|^attention_head_dim$|^d_head$")
_INNER = re.compile(
    r"(intermediate|ffn|mlp|inner|feed_?forward|ff)_?(\w+_)?(size|dim|hidden|dims?)$|^n_inner$|^d_ff$|^ffn_dim$"
)
_WIDTH = re.compile(r"(size|dim|dims|rank|width|channels|embd|_embed)$")
_KEEP = re.compile(
    r"patch|kernel|image_size|window|temporal|merge|chunk|stride|batch|conv_size|downsample|scale|type_vocab|"
    r"input_size|num_channels|in_channels|^in_chans|block_size|group_size|spatial|factor|context"
)
EXPERT_COUNTS = (
    "num_experts",
    "n_routed_experts",
    "num_local_experts",
    "moe_num_experts",
    "num_routed_experts",
    "n_experts",
    "text_moe_num_experts",
)
_TOP_K = re.compile(
    r"(experts_per_tok|^top_k_experts|moe_top_?k|^num_selected_experts|^moe_topk|router_top_k|experts_top_k|^num_experts_per_token|^moe_k|^top_k|^topk)$"
)
_WINDOW = re.compile(
    r"^(sliding_window|sliding_window_size|attention_chunk_size|attention_window_size|window_size|local_attention_window|lru_window|attention_window)$"
)
_POSITIONS = re.compile(
    r"^(max_position_embeddings|n_positions|max_seq_len|max_sequence_length|seq_length|n_ctx|max_target_positions|max_context_len)$"
)
_TOKEN = re.compile(r"(token_id|token_index|token_ids|_token)$")
_VOCABULARY = re.compile(r"vocab_size(_\w+)?$")


@dataclass(slots=True)
class Cut:
    """What became of each number: `changed` maps the dotted name to the value before and after."""

    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class _Widths:
    """New widths by the old ones: what was equal stays equal, in every part of the configuration."""

    cores: int = 1
    new: dict[int, int] = field(default_factory=dict)

    def least(self, old: int, usual: int) -> int:
        """Give the twin's number of heads or experts: `usual`, or as many as the cores where the original's
        number can be shared by them."""
        return max(usual, self.cores) if old % self.cores == 0 else usual

    def of(self, old: int, wanted: int) -> int:
        return self.new.setdefault(old, wanted)


def shrink(config: Mapping[str, Any], cores: int = 1) -> tuple[dict[str, Any], Cut]:
    """Give a configuration's twin, and what was cut. Heads and experts stay as many as `cores` need where the
    original has enough of them. Deterministic; nothing of it is random."""
    cut = Cut()
    widths = _Widths(cores)
    # The language model first: what a vision tower hands to it has its width.
    order = sorted(config, key=lambda name: name not in ("text_config", "llm_config", "language_config"))
    shrunk = dict(config)
    for name in order:
        if isinstance(config[name], Mapping) and _is_model(config[name]):
            shrunk[name] = _part(config[name], f"{name}.", widths, cut)
    shrunk = _part(shrunk, "", widths, cut)
    text, vision = shrunk.get("text_config"), shrunk.get("vision_config")
    if isinstance(text, Mapping) and isinstance(vision, Mapping) and "out_hidden_size" in vision:
        shrunk["vision_config"] = dict(vision) | {"out_hidden_size": text.get("hidden_size")}
    return _with_peculiarities(shrunk), cut


def _with_peculiarities(config: dict[str, Any]) -> dict[str, Any]:
    """Set what only this architecture needs; a dotted name leads into a part."""
    for path, value in PECULIAR.get(str(config.get("model_type")), {}).items():
        *parts, name = path.split(".")
        table = config
        for part in parts:
            table[part] = dict(table.get(part) or {})
            table = table[part]
        table[name] = value
    return config


def _is_model(table: Mapping[str, Any]) -> bool:
    names = [name for name in table if isinstance(name, str)]
    if any(isinstance(table[name], Mapping) and name.endswith("config") for name in names):
        return True
    return any(_LAYERS.match(name) for name in names) or any(name in table for name in _HIDDEN)


def _part(config: Mapping[str, Any], within: str, widths: _Widths, cut: Cut) -> dict[str, Any]:
    shrunk = dict(config)

    def put(name: str, value: Any) -> None:
        if shrunk.get(name) != value:
            cut.changed[f"{within}{name}"] = (shrunk.get(name), value)
            shrunk[name] = value

    for name, value in config.items():
        if isinstance(value, Mapping) and _is_model(value) and within:
            shrunk[name] = _part(value, f"{within}{name}.", widths, cut)
    _cut_layers(shrunk, put)
    _cut_heads(shrunk, widths, put)
    _cut_numbers(shrunk, widths, put)
    _cut_mixers(shrunk, put)
    _fill(shrunk, put)
    _cut_rope(shrunk, put)
    _cut_tokens(shrunk, config, put)
    return shrunk


def _cut_layers(config: dict[str, Any], put: Any) -> None:
    names = [name for name in config if _LAYERS.match(name) and isinstance(config[name], int)]
    for name in names:
        count = config[name]
        if count <= LEAST_LAYERS:
            continue
        per_layer = {
            key: value
            for key, value in config.items()
            if isinstance(value, list | tuple) and len(value) == count and key != "id2label"
        }
        chosen = _chosen_layers(per_layer, count, config)
        shared = config.get("num_kv_shared_layers")
        if isinstance(shared, int) and shared:
            put("num_kv_shared_layers", len(chosen) // 2)
        put(name, len(chosen))
        for key, value in per_layer.items():
            put(key, [value[index] for index in chosen])
        indexed = config.get("per_layer_config")
        if isinstance(indexed, Mapping):
            put("per_layer_config", _per_layer(indexed, chosen))
    for name in ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "moe_layer_start"):
        if isinstance(config.get(name), int) and config[name] > 1:
            put(name, 1)


def _per_layer(indexed: Mapping[Any, Any], chosen: list[int]) -> dict[str, Any]:
    """Keep what single layers have of their own, under their new numbers, cut as the rest is."""
    old = {int(index): value for index, value in indexed.items()}
    new = {}
    for place, index in enumerate(chosen):
        if isinstance(old.get(index), Mapping):
            table = dict(old[index])
            _cut_numbers(table, _Widths(), table.__setitem__)
            alike = table.get("num_key_value_heads") == table.get("num_attention_heads")
            for name in (*_HEADS, *_KV_HEADS):
                if isinstance(table.get(name), int):
                    table[name] = 4 if alike or name in _HEADS else min(table[name], 2)
            new[f"{place:02d}"] = table
    return new


def _chosen_layers(per_layer: Mapping[str, Any], count: int, config: Mapping[str, Any]) -> list[int]:
    """One layer of each kind, at least two, in their order."""
    seen: dict[str, int] = {}
    for index in range(count):
        kind = repr([value[index] for value in per_layer.values() if isinstance(value[index], str)])
        seen.setdefault(kind, index)
    chosen = sorted(seen.values())[:MOST_LAYERS]
    least = LEAST_LAYERS
    kinds = config.get("block_types")
    if isinstance(kinds, list | tuple):
        # A pattern that is repeated over the layers: once round.
        least = max(least, min(len(kinds), MOST_LAYERS))
    shared = config.get("num_kv_shared_layers")
    if isinstance(shared, int) and shared and chosen:
        # Layers that take another's keys come after one of every kind that keeps its own.
        kinds_of = [repr([v[i] for v in per_layer.values() if isinstance(v[i], str)]) for i in range(count)]
        for index in list(chosen):
            later = [
                i for i in range(chosen[-1] + 1, count) if kinds_of[i] == kinds_of[index] and i not in chosen
            ]
            chosen += later[:1]
        return sorted(chosen)
    for index in range(count):
        if len(chosen) >= least:
            break
        if index not in chosen:
            chosen = sorted([*chosen, index])
    return chosen


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, int] | None:
    return next(
        ((name, config[name]) for name in names if isinstance(config.get(name), int) and config[name] > 0),
        None,
    )


def _cut_heads(config: dict[str, Any], widths: _Widths, put: Any) -> None:
    """Heads and KV heads in their proportion, heads of one size, the hidden width in its proportion to
    both."""
    hidden, heads = _first(config, _HIDDEN), _first(config, _HEADS)
    if heads is None:
        if hidden is not None:
            put(hidden[0], widths.of(hidden[1], 64))
        return
    kv = _first(config, _KV_HEADS)
    group = heads[1] // kv[1] if kv and heads[1] % kv[1] == 0 else 1
    group = max(each for each in (1, 2, 4) if each <= group)
    new_kv = 1 if kv and kv[1] == 1 else widths.least(kv[1] if kv else heads[1], 2)
    new_heads = new_kv * group if kv and kv[1] not in (1, heads[1]) else widths.least(heads[1], 4)
    explicit = _first(config, ("head_dim", "kv_channels", "d_kv", "attention_head_dim"))
    head_dim = explicit[1] if explicit else (hidden[1] // heads[1] if hidden else HEAD_DIM)
    for name in _HEADS:
        if isinstance(config.get(name), int):
            put(name, new_heads)
    for name in _KV_HEADS:
        if isinstance(config.get(name), int):
            put(name, new_heads if config[name] == heads[1] else new_kv)
    if hidden is None:
        return
    full = heads[1] * head_dim
    share = hidden[1] / full if full else 1.0
    new_hidden = new_heads * HEAD_DIM
    if share > 1.05:
        new_hidden *= 2
    elif share < 0.95:
        new_hidden = max(new_hidden // 2, 32)
    new_hidden = widths.of(hidden[1], new_hidden)
    for name in _HIDDEN:
        if config.get(name) == hidden[1]:
            put(name, new_hidden)
    if explicit is None and new_hidden % new_heads:
        for name in _HEADS:
            if isinstance(config.get(name), int):
                put(name, 4)


def _cut_numbers(config: dict[str, Any], widths: _Widths, put: Any) -> None:
    hidden = _first(config, _HIDDEN)
    new_hidden = hidden[1] if hidden else 64
    rope_dim = config.get("qk_rope_head_dim")
    rope_dim = rope_dim if isinstance(rope_dim, int) and rope_dim > 0 else None
    plain_dim = config.get("qk_nope_head_dim")
    groups = config.get("n_group")
    # Most experts see most tokens, so that the loss of one shows; experts in groups leave no such choice.
    grouped = isinstance(groups, int) and groups > 1
    for name, value in list(config.items()):
        if isinstance(value, bool) or not isinstance(value, int) or name in _HIDDEN:
            continue
        if name == "head_dim" and rope_dim is not None:
            both = isinstance(plain_dim, int) and value == plain_dim + rope_dim
            put(name, HEAD_DIM // 2 * (3 if both else max(value // rope_dim, 1)))
        elif name == "qk_head_dim" and rope_dim is not None:
            put(name, HEAD_DIM + HEAD_DIM // 2)
        elif _HEAD_DIM.match(name):
            if value > HEAD_DIM or ("rope" in name and value > HEAD_DIM // 2):
                rope = re.search(r"rope|rotary", name) is not None
                put(name, HEAD_DIM // 2 if rope else HEAD_DIM)
        elif _VOCABULARY.search(name) and "type_vocab" not in name:
            if value > VOCABULARY:
                put(name, VOCABULARY + value % 2)
        elif name in EXPERT_COUNTS:
            if value > EXPERTS:
                put(name, widths.least(value, EXPERTS))
        elif _TOP_K.search(name):
            if value > 2:
                put(name, 2 if grouped else EXPERTS - 1)
        elif name in ("n_group", "num_expert_group", "n_groups_experts"):
            put(name, min(value, 2))
        elif name in ("topk_group", "num_limited_groups"):
            put(name, 1)
        elif name in ("n_groups", "mamba_n_groups", "mamba_ngroups"):
            put(name, min(value, 2))
        elif name == "rotary_dim":
            put(name, min(value, HEAD_DIM // 2))
        elif _WINDOW.match(name):
            if value > WINDOW:
                put(name, WINDOW)
        elif _POSITIONS.match(name):
            if value > POSITIONS:
                put(name, POSITIONS)
        elif name == "image_size" and isinstance(config.get("patch_size"), int):
            put(name, min(value, 4 * config["patch_size"]))
        elif _KEEP.search(name):
            continue
        elif _INNER.search(name):
            if value > 0:
                put(name, widths.of(value, 96 if "moe" not in name and "expert" not in name else 48))
        elif name in ("q_lora_rank", "kv_lora_rank"):
            put(name, min(value, 24 if name == "q_lora_rank" else 16))
        elif _WIDTH.search(name) and value > 48:
            put(name, widths.of(value, new_hidden if value >= 256 else 32))


def _cut_mixers(config: dict[str, Any], put: Any) -> None:
    """Heads of a state-space mixer: as many as fill its inner width."""
    hidden = _first(config, _HIDDEN)
    expand = next(
        (config[n] for n in ("mamba_expand", "expand") if isinstance(config.get(n), int | float)), 2
    )
    for count, size in (
        ("mamba_n_heads", "mamba_d_head"),
        ("n_mamba_heads", "mamba_headdim"),
        ("mamba_num_heads", "mamba_head_dim"),
    ):
        if hidden is not None and isinstance(config.get(count), int) and isinstance(config.get(size), int):
            put(size, HEAD_DIM)
            put(count, int(expand * hidden[1]) // HEAD_DIM)
    for name in ("mamba_d_ssm",):
        if isinstance(config.get(name), int) and hidden is not None:
            put(name, int(expand * hidden[1]))
    if isinstance(config.get("attn_layer_period"), int):
        put("attn_layer_period", 2)
        put("attn_layer_offset", 1)


def _fill(config: dict[str, Any], put: Any) -> None:
    """Numbers that some classes leave open for the checkpoint to say."""
    heads = _first(config, _HEADS)
    if heads is None:
        return
    for name, value in list(config.items()):
        if value is not None:
            continue
        if name == "head_dim":
            put(name, HEAD_DIM)
        elif name in _KV_HEADS:
            put(name, heads[1])
        elif name in EXPERT_COUNTS:
            put(name, EXPERTS)
        elif _TOP_K.search(name) and name not in ("top_k", "topk"):
            put(name, 2)


def _cut_rope(config: dict[str, Any], put: Any) -> None:
    """Lists with one number for each pair of a head's dimensions are cut to the twin's heads."""
    head_dim = HEAD_DIM // 2 if isinstance(config.get("qk_rope_head_dim"), int) else HEAD_DIM
    for name in ("rope_parameters", "rope_scaling"):
        table = config.get(name)
        if not isinstance(table, Mapping):
            continue
        put(name, _rope(table, head_dim))


def mrope_sections(pairs: int) -> list[int]:
    """Give the pairs of a head's dimensions that turn with time, height and width."""
    return [pairs - 2 * (3 * pairs // 8), 3 * pairs // 8, 3 * pairs // 8]


def _rope(table: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    new = dict(table)
    share = table.get("partial_rotary_factor")
    pairs = int(head_dim * (share if isinstance(share, int | float) else 1.0)) // 2
    for key, value in table.items():
        if isinstance(value, Mapping):
            new[key] = _rope(value, head_dim)
        elif key == "mrope_section" and isinstance(value, list):
            new[key] = mrope_sections(pairs) if len(value) == 3 else [pairs // len(value)] * len(value)
        elif key in ("long_factor", "short_factor") and isinstance(value, list):
            new[key] = value[: HEAD_DIM // 2]
        elif key == "original_max_position_embeddings" and isinstance(value, int):
            new[key] = min(value, POSITIONS // 2)
    return new


def _cut_tokens(config: dict[str, Any], before: Mapping[str, Any], put: Any) -> None:
    """Special tokens move into the smaller vocabulary, each to an id of its own at its end."""
    size = config.get("vocab_size")
    if not isinstance(size, int):
        inner = config.get("text_config")
        size = inner.get("vocab_size") if isinstance(inner, Mapping) else None
    if not isinstance(size, int):
        size = VOCABULARY
    next_free = size - 1
    moved: dict[int, int] = {}
    for name in sorted(config):
        value = config[name]
        if not _TOKEN.search(name):
            continue
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(each, int) and not isinstance(each, bool) for each in values):
            continue
        new = []
        for each in values:
            if each >= size:
                if each not in moved:
                    moved[each] = next_free
                    next_free -= 1
                each = moved[each]
            new.append(each)
        put(name, new if isinstance(value, list) else new[0])
