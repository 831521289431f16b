"""A twin: a model's architecture, shrunk, with random weights of a sane scale from a fixed seed. Built here;
`trnready.plan.twin_run` runs it, `trnready predict` and `trnready sweep --architectures` ask for it."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trnready.plan import blueprint
from trnready.plan.blueprint import InvalidConfiguration, first_line, loaded_types, quiet
from trnready.plan.layout import Layout
from trnready.plan.shrink import EXPERT_COUNTS, EXPERTS, Cut, shrink

SEED = 7
MATRIX_STD = 0.2
"""Spreads a twin's logits well above its rounding noise; default initialisation gives one or two tokens."""
BIAS_STD = 0.02
ROUTER_STD = 0.05
"""Spreads a token over its experts; at a matrix's scale one of them has nearly all the weight, and the
loss of the others would not show."""
MOST_PARAMETERS = 100_000_000
PROMPT_TOKENS = 12
SAVED = "bfloat16"
"""Type of the checkpoint that a twin's weights stand for."""
DTYPES = (SAVED, "float32")
"""Types that a twin runs in."""
_CALM = re.compile(r"A_log|(^|\.)D$|dt_|time_decay|time_faaaa|\.A$|e_score_correction")
"""Parameters whose values mean rates, not weights: the class's own initialisation is kept."""
_ROUTER = re.compile(r"(gate|router)\b.*weight$")


@dataclass(frozen=True, slots=True)
class Twin:
    """A twin on the CPU in float32, the token ids to feed it, and what was cut from the original."""

    model_type: str
    auto_class: str
    config: Any
    cut: Cut
    prompt: tuple[int, ...]

    def build(self, dtype: str) -> nn.Module:
        """Give the model on the CPU with its weights; every call gives the same. They are those of a
        checkpoint saved in bfloat16, loaded in `dtype`: the model computes in it, but for what Transformers
        keeps in float32 when it loads a checkpoint in that type."""
        import transformers

        torch.manual_seed(SEED)
        with quiet():
            model: nn.Module = getattr(transformers, self.auto_class).from_config(
                copy.deepcopy(self.config), dtype=torch.float32
            )
        _fill(model)
        saved = self._types(SAVED)
        in_checkpoint = model.state_dict().keys()
        _cast(model, {name: each for name, each in saved.items() if name in in_checkpoint})
        _cast(model, saved if dtype == SAVED else self._types(dtype))
        return model.eval()

    def _types(self, dtype: str) -> dict[str, torch.dtype]:
        return loaded_types(blueprint.build(self.config, self.auto_class, dtype))


def of_model_type(model_type: str, auto_class: str, cores: int = 1) -> Twin:
    """Make the twin of an architecture from its configuration class alone, such that `cores` can share it
    where they can share the original. Raises `InvalidConfiguration`."""
    from transformers import CONFIG_MAPPING

    try:
        with quiet():
            full = CONFIG_MAPPING[model_type]().to_dict()
    except Exception as error:
        raise InvalidConfiguration(
            f"the configuration class alone makes no model ({first_line(error)})"
        ) from error
    return of_config(full | {"model_type": model_type}, auto_class, cores)


def of_config(config: Mapping[str, Any], auto_class: str, cores: int = 1) -> Twin:
    """Make the twin of a model from its configuration, such that `cores` can share it where they can share
    the original. Raises `InvalidConfiguration`."""
    import transformers
    from transformers import CONFIG_MAPPING

    model_type = str(config["model_type"])
    try:
        with quiet():
            table, cut = shrink(CONFIG_MAPPING[model_type].from_dict(dict(config)).to_dict(), cores)
            small = CONFIG_MAPPING[model_type].from_dict(table)
            small.dtype = None
            with torch.device("meta"):
                model = getattr(transformers, auto_class).from_config(small)
    except Exception as error:
        raise InvalidConfiguration(f"no twin can be built ({first_line(error)})") from error
    parameters = sum(each.numel() for each in model.parameters())
    if parameters > MOST_PARAMETERS:
        raise InvalidConfiguration(f"the twin still has {parameters:,} parameters")
    vocabulary = int(getattr(small.get_text_config(decoder=True), "vocab_size", 0) or 256)
    return Twin(model_type, auto_class, small, cut, prompt_ids(vocabulary))


def prompt_ids(vocabulary: int) -> tuple[int, ...]:
    """Give a twin's prompt: token ids away from both ends of the vocabulary, where special tokens are."""
    generator = torch.Generator().manual_seed(SEED)
    least, most = min(10, vocabulary // 4), max(vocabulary - 40, vocabulary // 2 + 1)
    return tuple(torch.randint(least, most, (PROMPT_TOKENS,), generator=generator).tolist())


def _fill(model: nn.Module) -> None:
    """Give every matrix random values of one scale; vectors keep their class's, biases get small ones."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point() or _CALM.search(name):
                continue
            if parameter.ndim >= 2:
                is_router = _ROUTER.search(name) is not None and parameter.shape[0] <= EXPERTS
                std = ROUTER_STD if is_router else MATRIX_STD
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * BIAS_STD)
            elif name.endswith("gate") and not parameter.any():
                # Shut before training: what is behind it would not be seen.
                parameter.fill_(1.0)


def _cast(model: nn.Module, types: Mapping[str, torch.dtype]) -> None:
    for name, each in (*model.named_parameters(), *model.named_buffers()):
        if each.is_floating_point() and name in types:
            each.data = each.data.to(types[name])


def routes(twin: Twin) -> bool:
    """Say whether the architecture sends each token to some of several experts."""
    text = twin.config.get_text_config(decoder=True)
    counts = (getattr(text, name, None) for name in EXPERT_COUNTS)
    return any(isinstance(count, int) and count > 1 for count in counts)


@dataclass(frozen=True, slots=True)
class Parallel:
    """How a twin is split, by the type it runs in; `distributed` holds the arguments of Transformers'
    DistributedConfig with None for the number of cores."""

    layouts: Mapping[str, Layout]
    distributed: Mapping[str, Any]

    @property
    def kind(self) -> str | None:
        """The kind of parallelism: `tp` or `ep`."""
        return self.layouts[DTYPES[0]].kind

    def bytes_on(self, cores: int, dtype: str) -> int:
        """Give the bytes of parameters and buffers on the fullest of so many cores."""
        return self.layouts[dtype].bytes_on(cores)

    def arguments(self, cores: int) -> dict[str, Any]:
        """Give the arguments of DistributedConfig for so many cores."""
        return {name: cores if value is None else value for name, value in self.distributed.items()}

    def obstacle(self, cores: int) -> str | None:
        """Say why so many cores cannot share it, or None."""
        found = self.layouts[DTYPES[0]].obstacles(cores)
        return f"its {found[0].count} {found[0].what} do not divide by {cores}" if found else None


class NoPlan(Exception):
    """Transformers has no plan that splits the architecture. The message is a clause for a sentence."""


def parallel(twin: Twin) -> Parallel:
    """Give how Transformers' own plan splits the architecture. Raises `NoPlan`."""
    layouts: dict[str, Layout] = {}
    arguments: Mapping[str, Any] = {}
    for dtype in DTYPES:
        try:
            model: Any = blueprint.build(twin.config, twin.auto_class, dtype)
            with quiet():
                layout, distributed = blueprint.split_of(model)
        except Exception as error:
            raise NoPlan(f"how Transformers would split it cannot be told ({first_line(error)})") from error
        if layout is None or distributed is None:
            raise NoPlan(
                "Transformers' plan for it splits no more than the embedding and the head"
                if model.tp_plan
                else "Transformers has no plan to split it"
            )
        layouts[dtype], arguments = layout, distributed
    return Parallel(layouts, arguments)


def kept(twin: Twin) -> list[str]:
    """Give what of the original is still in the twin, in a few words each."""
    text = twin.config.get_text_config(decoder=True)
    told = []
    layers = getattr(text, "layer_types", None)
    if isinstance(layers, list):
        told.append("layers: " + ", ".join(dict.fromkeys(str(each) for each in layers)))
    heads, kv = (getattr(text, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    if isinstance(heads, int) and isinstance(kv, int):
        told.append(f"{heads} heads on {kv} of keys and values")
    for name, words in (
        ("num_experts", "experts"),
        ("n_routed_experts", "experts"),
        ("num_local_experts", "experts"),
        ("num_experts_per_tok", "experts per token"),
        ("sliding_window", "tokens in the window"),
        ("kv_lora_rank", "rank of compressed keys and values"),
    ):
        value = getattr(text, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value:
            told.append(f"{value} {words}")
    if getattr(twin.config, "tie_word_embeddings", False):
        told.append("tied head")
    if twin.config.is_encoder_decoder:
        told.append("encoder and decoder")
    return told
