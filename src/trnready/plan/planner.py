"""The decision itself: the fewest cores that hold a model's weights, and why every other count was not taken.
A pure function of a blueprint and a machine; `trnready.plan.read` and the tests call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trnready.plan.layout import Divisor, Layout
from trnready.plan.trainium import LARGER_SIZES, MOST_CORES, Machine
from trnready.results.units import size as in_words

if TYPE_CHECKING:
    from trnready.plan.blueprint import Blueprint

TEST_TOKENS = 64
"""Length of the cache that a plan counts: a short prompt and the 32 tokens of a test."""

LIVE_COPIES = 8
"""Tensors of a layer's width that a forward pass holds at once, at most, by the allowance."""


@dataclass(frozen=True, slots=True)
class Size:
    """One number of cores: bytes on the fullest of them, whether it may and can be used, and why not."""

    cores: int
    weight_bytes: int
    cache_bytes: int
    activation_bytes: int
    legal: bool
    holds_weights: bool
    holds_all: bool
    why_not: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """Whether a run on so many cores may be tried."""
        return self.legal and self.holds_weights


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run a model, or why not.

    `cores` is None when it cannot be run; `reason` is then one of the dataset's reasons to skip and `because`
    a sentence. `next_cores` are the counts to try when `cores` runs out of memory. `cores_needed` is the
    count by bytes alone, None when no count holds it. `distributed` holds the arguments of Transformers'
    DistributedConfig. All bytes are of the executed type.
    """

    model_id: str
    revision: str | None
    source: str
    model_type: str
    model_class: str
    dtype: str
    stored_as: str | None
    parameters: int
    tied: tuple[str, ...]
    bytes_per_core: int
    sizes: tuple[Size, ...]
    kind: str | None
    cores: int | None
    parallelism: str | None
    distributed: Mapping[str, Any] | None
    instance: str | None
    next_cores: tuple[int, ...]
    cores_needed: int | None
    reason: str | None
    because: str | None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Give the plan as values that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a plan is about: the model's name, where its facts were read, and what else was found there."""

    model_id: str
    revision: str | None = None
    source: str = "folder"
    stored_as: str | None = None
    notes: tuple[str, ...] = ()


def decide(blueprint: Blueprint, subject: Subject, where: Machine, tokens: int = TEST_TOKENS) -> Plan:
    """Decide on how many cores a model runs and how it is split. `tokens` is what the cache was drawn for."""
    layout = blueprint.split or blueprint.plain
    sizes = tuple(_size(blueprint, layout, cores, where, tokens) for cores in where.sizes)
    usable = [each.cores for each in sizes if each.usable]
    cores = usable[0] if usable else None
    needed = _needed(layout, where)
    reason, because = (None, None) if cores else _refusal(blueprint, layout, sizes, where, needed)
    kind = layout.kind if cores and cores > 1 else None
    return Plan(
        model_id=subject.model_id,
        revision=subject.revision,
        source=subject.source,
        model_type=blueprint.model_type,
        model_class=blueprint.model_class,
        dtype=blueprint.dtype,
        stored_as=subject.stored_as,
        parameters=blueprint.parameters,
        tied=blueprint.tied,
        bytes_per_core=where.bytes_per_core,
        sizes=sizes,
        kind=layout.kind,
        cores=cores,
        parallelism=f"{kind}={cores}" if kind else None,
        distributed=_arguments(blueprint, cores) if kind else None,
        instance=where.instance_of(cores) if cores else None,
        next_cores=tuple(usable[1:]),
        cores_needed=needed,
        reason=reason,
        because=because,
        notes=subject.notes,
    )


def _size(blueprint: Blueprint, layout: Layout, cores: int, where: Machine, tokens: int) -> Size:
    weights = layout.bytes_on(cores)
    # Without tensor parallelism every core keeps all heads.
    cache = sum(each.bytes_on(cores if layout.kind == "tp" else 1) for each in blueprint.cache)
    activations = activation_allowance(blueprint, tokens)
    why = []
    if cores > 1 and layout.kind is None:
        why.append("Transformers has neither a tensor-parallel nor an expert-parallel plan for it")
    why += [_does_not_divide(each, cores) for each in layout.obstacles(cores) if cores > 1]
    legal = not why
    holds = weights <= where.bytes_per_core
    if not holds:
        why.append(
            f"its weights need {in_words(weights)} on each core, which has {in_words(where.bytes_per_core)}"
        )
    total = weights + cache + activations
    return Size(cores, weights, cache, activations, legal, holds, total <= where.bytes_per_core, tuple(why))


def _does_not_divide(what: Divisor, cores: int) -> str:
    return f"its {what.count} {what.what} ({what.where}) do not divide by {cores}"


def activation_allowance(blueprint: Blueprint, tokens: int) -> int:
    """Give the bytes set aside for what a forward pass holds at once: the logits in the executed type and in
    float32, and some tensors of the widest layer's width. An allowance, not a measurement."""
    element = 4 if blueprint.dtype == "float32" else 2
    logits = blueprint.vocabulary * (element + 4)
    return tokens * (logits + LIVE_COPIES * max(blueprint.widest, blueprint.hidden_size) * element)


def _arguments(blueprint: Blueprint, cores: int | None) -> dict[str, Any] | None:
    if blueprint.distributed is None:
        return None
    return {name: cores if value is None else value for name, value in blueprint.distributed.items()}


def _needed(layout: Layout, where: Machine) -> int | None:
    """Give the fewest cores that would hold the weights, were every count allowed that Trainium has."""
    sizes = (*where.sizes, *(each for each in (1, 2, 4, 8, 16, *LARGER_SIZES) if each > where.sizes[-1]))
    return next((each for each in sizes if layout.bytes_on(each) <= where.bytes_per_core), None)


def _refusal(
    blueprint: Blueprint, layout: Layout, sizes: tuple[Size, ...], where: Machine, needed: int | None
) -> tuple[str, str]:
    """Say why no count of cores will do."""
    room = in_words(where.bytes_per_core)
    most = sizes[-1]
    if layout.kind is None:
        return (
            "no_parallel_plan",
            f"Its weights need {in_words(layout.whole_bytes)}, more than one core's {room}, and Transformers "
            f"has neither a tensor-parallel nor an expert-parallel plan for {blueprint.model_type} models.",
        )
    if needed is not None and needed <= most.cores:
        stuck = next(each for each in sizes if each.holds_weights)
        return (
            "no_parallel_plan",
            f"{stuck.cores} cores would hold its weights, but {stuck.why_not[0]}, and no other count "
            "will do.",
        )
    if needed is not None:
        limit = "the most that a test uses" if most.cores == MOST_CORES else "the most allowed here"
        cores = "1 core" if most.cores == 1 else f"each of {most.cores} cores"
        obstacles = [_does_not_divide(each, needed) for each in layout.obstacles(needed)]
        return (
            "too_large",
            f"Its weights need {in_words(layout.whole_bytes)}, of which {cores} of {room}, {limit}, would "
            f"hold {in_words(most.weight_bytes)}. By their bytes alone {needed} cores would hold them"
            f"{', but ' + ' and '.join(obstacles) if obstacles else ''}.",
        )
    return (
        "too_large",
        f"Its weights need {in_words(layout.whole_bytes)}, of which {in_words(layout.replicated_bytes)} are "
        f"whole on every core: no number of cores of {room} holds them.",
    )
