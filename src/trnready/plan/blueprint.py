"""A model drawn on the meta device, without weights: its parameters and buffers, how Transformers' own
tensor-parallel and expert-parallel plans split them, and what its cache keeps. `trnready.plan.read` calls
it."""

from __future__ import annotations

import contextlib
import copy
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trnready.plan.cache import cache_layers
from trnready.plan.layout import CacheLayer, Divisor, Kind, Layout, Piece, Split
from trnready.plan.quantization import without

CAUSAL = "AutoModelForCausalLM"
IMAGE_TEXT = "AutoModelForImageTextToText"

MOST_LAYERS = 1000
MOST_WIDTH = 10_000_000
"""No model comes near these; a configuration beyond them is absurd, and building it would take for ever."""

_KEEPS_HEADS_APART = ("colwise", "packed_colwise")
_LAYER_NUMBER = re.compile(r"\.\d+(?=\.|$)")


class InvalidConfiguration(ValueError):
    """A configuration that no model can be built from. The message is a clause for a sentence."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What a plan needs to know of a model. `plain` is the layout without any split; `split` that of the
    parallelism to use, None where Transformers has neither plan for it.

    `parameters` counts each tied one once; `tied` names the parameters that only repeat another.
    `distributed` gives the arguments of Transformers' DistributedConfig, with None for the number of cores.
    """

    model_class: str
    model_type: str
    dtype: str
    parameters: int
    tied: tuple[str, ...]
    plain: Layout
    split: Layout | None
    distributed: Mapping[str, Any] | None
    cache: tuple[CacheLayer, ...]
    hidden_size: int
    widest: int
    vocabulary: int
    buffers: frozenset[str]


def auto_class_of(config: Mapping[str, Any]) -> str | None:
    """Give the Auto class that loads a checkpoint of this configuration for one of the tasks that are tested;
    None when neither does."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    tables = {
        CAUSAL: MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        IMAGE_TEXT: MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
    model_type = config.get("model_type")
    saved = config.get("architectures") or []
    holding = [name for name, table in tables.items() if model_type in table]
    for name in holding:
        entry = tables[name][model_type]
        if set(saved) & set((entry,) if isinstance(entry, str) else entry):
            return name
    # A model that takes images is tested with them.
    return holding[-1] if holding else None


def configuration(config: Mapping[str, Any]) -> Any:
    """Give Transformers' configuration object of a config.json. Raises `InvalidConfiguration`."""
    from transformers import CONFIG_MAPPING

    _check_numbers(config)
    try:
        with quiet():
            return CONFIG_MAPPING[str(config["model_type"])].from_dict(without(config))
    except Exception as error:
        # Anything at all may come out of a configuration that was not made for this class.
        raise InvalidConfiguration(f"no configuration can be made of it ({first_line(error)})") from error


def draw(
    config: Mapping[str, Any], auto_class: str, dtype: str, tokens: int, kind: Kind | None = None
) -> Blueprint:
    """Build the model on the meta device and give its blueprint; `dtype` is the executed type, `tokens` the
    length that the cache is to hold, `kind` the parallelism to use, None for what Transformers' plans allow.
    Raises `InvalidConfiguration`."""
    model = build(configuration(config), auto_class, dtype)
    with quiet():
        return blueprint_of(model, dtype, tokens, kind)


def build(config: Any, auto_class: str, dtype: str) -> nn.Module:
    """Build a model on the meta device. Raises `InvalidConfiguration`."""
    import transformers

    try:
        with quiet(), torch.device("meta"):
            # from_config writes the type into the configuration it is given.
            model: nn.Module = getattr(transformers, auto_class).from_config(
                copy.deepcopy(config), dtype=getattr(torch, dtype)
            )
    except Exception as error:
        raise InvalidConfiguration(f"no model can be built from it ({first_line(error)})") from error
    return model


def loaded_types(model: Any) -> dict[str, torch.dtype]:
    """Give the type that each parameter and buffer of a model on the meta device has after a checkpoint was
    loaded in the model's type."""
    kept = model._get_dtype_plan(model.dtype)
    types = {name: each.dtype for name, each in (*model.named_parameters(), *model.named_buffers())}
    return types | {
        name: torch.float32
        for name, each in model.named_parameters()
        if each.is_floating_point() and _matches(name, kept)
    }


def blueprint_of(model: nn.Module, dtype: str, tokens: int, kind: Kind | None = None) -> Blueprint:
    """Give the blueprint of a model on the meta device. The model is no longer of use afterwards."""
    config: Any = model.config
    parameters = dict(model.named_parameters())
    everything = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    text = config.get_text_config(decoder=True)
    split, distributed = _split_layout(model, parameters, kind)
    return Blueprint(
        model_class=type(model).__name__,
        model_type=str(config.model_type),
        dtype=dtype,
        parameters=sum(each.numel() for each in parameters.values()),
        tied=tuple(sorted(everything - set(parameters))),
        plain=Layout(None, _pieces(model, parameters, {})),
        split=split,
        distributed=distributed,
        cache=cache_layers(model, tokens, _splits_heads(model)),
        hidden_size=int(getattr(text, "hidden_size", 0) or 0),
        widest=max((max(each.shape[-2:], default=0) for each in _matrices(parameters)), default=0),
        vocabulary=int(getattr(text, "vocab_size", 0) or 0),
        buffers=frozenset(name for name, _ in model.named_buffers()),
    )


def split_of(model: Any) -> tuple[Layout | None, Mapping[str, Any] | None]:
    """Give the layout of a model on the meta device under the parallelism that Transformers has a plan for,
    and the arguments of DistributedConfig, None for the number of cores; None for both without a plan."""
    return _split_layout(model, dict(model.named_parameters()), None)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Transformers' and PyTorch's warnings about a configuration from the person who asked for a
    plan."""
    import warnings

    root = logging.getLogger("transformers")
    before = root.level
    root.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(before)


def first_line(error: BaseException) -> str:
    """Give the first line of an error's message, or its type where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Strict configuration classes say the field in the first line and what is wrong with it in the second.
    return " ".join(lines[:2])[:200] or type(error).__name__


def _check_numbers(config: Mapping[str, Any], within: str = "") -> None:
    """Refuse numbers that no model has, before a class tries to build from them."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            _check_numbers(value, f"{within}{name}.")
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        counts_layers = re.search(r"(num|n)_.*layers?$|^n_layer$|^depth$", name) is not None
        is_size = re.search(r"(_size|_dim|_heads|^n_embd|^n_head|_experts)$|^d_model$", name) is not None
        if counts_layers and not 0 <= value <= MOST_LAYERS:
            raise InvalidConfiguration(f"{within}{name} is {value}, which no model has")
        if is_size and not -1 <= value <= MOST_WIDTH:
            raise InvalidConfiguration(f"{within}{name} is {value}, which no model has")


def _matrices(parameters: Mapping[str, nn.Parameter]) -> list[nn.Parameter]:
    return [
        each
        for name, each in parameters.items()
        if each.ndim >= 2 and "embed" not in name and "head" not in name
    ]


def _pieces(
    model: Any, parameters: Mapping[str, torch.Tensor], splits: Mapping[str, Split]
) -> tuple[Piece, ...]:
    """Every parameter and buffer once, in the type that it is executed in."""
    types = loaded_types(model)
    return tuple(
        Piece(name, tuple(each.shape), types[name].itemsize, splits.get(name))
        for name, each in (*parameters.items(), *model.named_buffers())
    )


def _matches(name: str, kept: Mapping[str, Any]) -> bool:
    """Say whether a parameter is one of those that Transformers keeps in float32."""
    parts = name.split(".")
    return any(key in parts or re.search(rf"(^|\.){key}(\.|$)", name) is not None for key in kept)


def _split_layout(
    model: Any, parameters: Mapping[str, nn.Parameter], kind: Kind | None
) -> tuple[Layout | None, Mapping[str, Any] | None]:
    """Tensor parallel where Transformers has a plan for it that splits more than the embedding and the head,
    else expert parallel alone (S10), unless `kind` says which."""
    if not (model.tp_plan or model.ep_plan):
        return None, None
    ends = _ends(model)
    if model.tp_plan and kind != "ep":
        styles, _ = _expanded(model, {"tp_size": 2})
        splits = _splits(styles, parameters)
        if set(splits) - ends:
            divisors = _tp_divisors(model, styles, splits, parameters)
            return Layout("tp", _pieces(model, parameters, splits), divisors), {"tp_size": None}
    if model.ep_plan and kind != "tp":
        # Transformers groups the experts' ranks along tp, for which a model without a plan needs a rule; one
        # that replicates keeps all but the experts whole.
        rule = {} if model.tp_plan else {"tp_plan": {_head_name(model): "replicate"}}
        tp_styles, ep_styles = _expanded(model, {"tp_size": 2, "ep_size": 2} | rule)
        experts = _splits(ep_styles, parameters)
        if experts:
            dense = _splits(tp_styles, parameters)
            divisors = tuple(
                Divisor("experts", parameters[name].shape[0], generic(name.rpartition(".")[0]))
                for name in experts
            )
            if set(dense) - ends:
                divisors = (*_tp_divisors(model, tp_styles, dense, parameters), *divisors)
            layout = Layout("ep", _pieces(model, parameters, dense | experts), _distinct(divisors))
            return layout, {"tp_size": None, "ep_size": None} | rule
    return None, None


def _ends(model: Any) -> set[str]:
    """Give the names of the parameters of the embedding and the head."""
    ends = set()
    for end in (model.get_input_embeddings, model.get_output_embeddings):
        # Some classes cannot say which module it is.
        with contextlib.suppress(NotImplementedError):
            ends.add(id(end()))
    modules = [(name, module) for name, module in model.named_modules() if id(module) in ends]
    return {f"{name}.{leaf}" for name, module in modules for leaf, _ in module.named_parameters()}


def _expanded(model: Any, sizes: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Give Transformers' tensor-parallel and expert-parallel plans, one entry for each parameter and
    module."""
    from transformers.distributed import DistributedConfig

    tp_plan, ep_plan, _ = model._resolve_parallel_plans(DistributedConfig(**sizes))
    return dict(tp_plan), dict(ep_plan)


def _splits(styles: Mapping[str, str], parameters: Mapping[str, nn.Parameter]) -> dict[str, Split]:
    """Give how each parameter is cut; those that a style leaves whole are not in it."""
    found = {}
    for name, style in styles.items():
        if name not in parameters:
            continue
        split = _split(style, name.rpartition(".")[2], parameters[name].ndim)
        if split is not None:
            found[name] = split
    return found


def _split(style: str, leaf: str, dimensions: int) -> Split | None:
    """Give how a style of `transformers.distributed` cuts one parameter."""
    match style:
        case "colwise" | "colwise_gather_output" | "colwise_rep":
            return Split(max(dimensions - 2, 0))
        case "rowwise" | "rowwise_split_input" | "rowwise_rep":
            return None if leaf == "bias" else Split(dimensions - 1)
        case "embedding_rowwise" | "grouped_gemm":
            return Split(0)
        case "embedding_colwise":
            return Split(1)
        case "packed_colwise":
            return Split(0) if dimensions == 1 else Split(dimensions - 2, packed=2)
        case "packed_rowwise":
            return None if dimensions == 1 else Split(dimensions - 1, packed=2)
    return None


def _tp_divisors(
    model: nn.Module,
    styles: Mapping[str, str],
    splits: Mapping[str, Split],
    parameters: Mapping[str, nn.Parameter],
) -> tuple[Divisor, ...]:
    """Give what the cores must divide. Vocabularies and the widths of MLPs need not: the last core then holds
    a shorter slice. Heads must stay whole, and matrices packed side by side must be cut alike."""
    modules = dict(model.named_modules())
    found = []
    for name, split in splits.items():
        module_name = name.rpartition(".")[0]
        if split.packed > 1:
            width = parameters[name].shape[split.dim] // split.packed
            found.append(Divisor("packed width", width, generic(module_name)))
        if styles[name] in _KEEPS_HEADS_APART:
            parent = modules[module_name.rpartition(".")[0]]
            heads = _heads(parent, module_name.rpartition(".")[2], parameters[name].shape[split.dim])
            if heads is not None:
                found.append(Divisor(heads[0], heads[1], generic(module_name)))
    return _distinct(tuple(found))


def _heads(parent: nn.Module, leaf: str, width: int) -> tuple[str, int] | None:
    """Give the kind and number of the heads that a projection of an attention module puts out."""
    if leaf in ("kv_b_proj", "q_b_proj") or (leaf == "q_proj" and hasattr(parent, "qk_nope_head_dim")):
        heads = getattr(parent, "num_heads", None)
        return ("heads", heads) if isinstance(heads, int) else None
    head_dim = getattr(parent, "head_dim", None)
    if not isinstance(head_dim, int) or head_dim < 1 or width % head_dim:
        return None
    kinds = {"q_proj": "heads", "k_proj": "KV heads", "v_proj": "KV heads"}
    return (kinds[leaf], width // head_dim) if leaf in kinds else None


def _splits_heads(model: Any) -> bool:
    """Say whether tensor parallelism leaves each core only its own heads of keys and values."""
    projections = ("k_proj", "qkv_proj", "query_key_value", "kv_b_proj")
    return any(
        name.rpartition(".")[2] in projections and style in _KEEPS_HEADS_APART
        for name, style in model.tp_plan.items()
    )


def _head_name(model: Any) -> str:
    head = model.get_output_embeddings()
    return next((name for name, module in model.named_modules() if module is head and name), "lm_head")


def generic(name: str) -> str:
    """Give the name with `*` for the number of every layer."""
    return _LAYER_NUMBER.sub(".*", name)


def _distinct(divisors: tuple[Divisor, ...]) -> tuple[Divisor, ...]:
    """Each kind and count once, with the first place where it is met."""
    seen: dict[tuple[str, int], Divisor] = {}
    for each in divisors:
        seen.setdefault((each.what, each.count), each)
    return tuple(seen.values())
