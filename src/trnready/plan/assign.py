"""Which cores a test of one checkpoint uses, and with which arguments Transformers splits it over them.
`trnready.check` asks; only a model that does not fit on one core, or is wanted on several, is planned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trnready.hub.checkpoint import Checkpoint, NotTestable
from trnready.hub.description import from_folder
from trnready.plan import trainium
from trnready.plan.layout import Kind
from trnready.plan.planner import Plan
from trnready.plan.read import plan as make_plan
from trnready.plan.trainium import Machine, NoSuchSize

IN_WORDS: Mapping[Kind, str] = {"tp": "tensor-parallel", "ep": "expert-parallel"}

CUSTOM = "custom"
"""Name of the software instance that has any number of cores."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """How many cores a test uses. On more than one, `distributed` holds the arguments of DistributedConfig,
    `bytes_per_core` what the fullest core holds of parameters and buffers, and `plan` why."""

    cores: int
    distributed: Mapping[str, Any] | None = None
    bytes_per_core: int | None = None
    plan: Plan | None = None

    @property
    def parallelism(self) -> str | None:
        """The kind of parallelism and over how many cores, as in a row."""
        return None if self.plan is None else self.plan.parallelism


def assign(
    checkpoint: Checkpoint, cores: int | None, dtype: str, parallelism: Kind | None = None
) -> Assignment:
    """Give the cores for a checkpoint run in this type: as many as asked for, or the fewest that hold it.
    `parallelism` says how to split it, None to take tensor parallel where there is a plan for it.

    Raises `NotTestable` when it cannot be split so, and `NoSuchSize` for a count that Trainium does not have.
    """
    if cores == 1 or (cores is None and _fits_one_core(checkpoint)):
        return Assignment(1)
    where = trainium.machine(None, trainium.MOST_CORES)
    if cores is not None:
        if os.environ.get("SOFTNEURON_INSTANCE") != CUSTOM:
            _check_size(cores, where)
        where = Machine((cores,), where.bytes_per_core, where.instance)
    plan = make_plan(from_folder(checkpoint.folder), where, dtype, parallelism)
    if parallelism is not None and plan.kind != parallelism:
        because = f"Transformers has no {IN_WORDS[parallelism]} plan for {plan.model_type} models."
        raise NotTestable(
            "no_parallel_plan", because, model_id=checkpoint.model_id, revision=checkpoint.revision
        )
    if plan.cores is None:
        raise _refused(checkpoint, plan, cores, dtype, parallelism)
    return _as_planned(plan, plan.cores)


def larger(
    checkpoint: Checkpoint, than: int, dtype: str, parallelism: Kind | None = None
) -> Assignment | None:
    """Give the next larger count of cores that the model may be split over, None when there is none."""
    where = trainium.machine(None, trainium.MOST_CORES)
    sizes = tuple(each for each in where.sizes if each > than)
    if not sizes:
        return None
    machine = Machine(sizes, where.bytes_per_core, None)
    plan = make_plan(from_folder(checkpoint.folder), machine, dtype, parallelism)
    return None if plan.cores is None else _as_planned(plan, plan.cores)


def _check_size(cores: int, where: Machine) -> None:
    try:
        trainium.check_size(cores, where)
    except NoSuchSize as error:
        software = f"Software cores do with SOFTNEURON_INSTANCE={CUSTOM} SOFTNEURON_CORES={cores}."
        raise NoSuchSize(f"{error} {software}") from error


def _as_planned(plan: Plan, cores: int) -> Assignment:
    if cores == 1:
        return Assignment(1, plan=plan)
    size = next(each for each in plan.sizes if each.cores == cores)
    return Assignment(cores, plan.distributed, size.weight_bytes, plan)


def _fits_one_core(checkpoint: Checkpoint) -> bool:
    """Say whether the weights' files are smaller than a core by far. Stored in 8 or 4 bits they may be
    executed in 16."""
    stored = sum(path.stat().st_size for path in checkpoint.folder.glob("*.safetensors"))
    return stored * 4 <= trainium.SMALL.bytes_per_core


def _refused(
    checkpoint: Checkpoint, plan: Plan, cores: int | None, dtype: str, parallelism: Kind | None
) -> NotTestable:
    because = str(plan.because)
    if cores is not None:
        size = plan.sizes[0]
        because = f"{cores} cores cannot share it: {size.why_not[0]}."
        most = trainium.machine(None, trainium.MOST_CORES)
        others = make_plan(from_folder(checkpoint.folder), most, dtype, parallelism)
        usable = [str(each.cores) for each in others.sizes if each.usable]
        because += f" Of what Trainium has, it runs on {', '.join(usable)}." if usable else ""
    return NotTestable(str(plan.reason), because, model_id=checkpoint.model_id, revision=checkpoint.revision)
