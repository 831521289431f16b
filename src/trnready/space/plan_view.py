"""A plan as a page shows it: why that many cores, and every other number with what rules it out. It comes
from the row of a run, or from the plans of well-known models that trnready carries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trnready.results import units

KINDS = {"tp": "tensor parallel", "ep": "expert parallel"}


@dataclass(frozen=True, slots=True)
class SizeLine:
    """One number of cores: bytes on the fullest of them in words, the share of a core that weights, cache and
    activations take (0 to 100), and what is to be said of it."""

    cores: int
    weights: str
    rest: str
    percent: float
    fits: bool
    chosen: bool
    remark: str


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan for people. `sizes` may be empty, when only the outcome was recorded."""

    sentence: str
    refused: bool
    reason: str | None
    sizes: list[SizeLine]
    room: str
    load_with: str | None
    notes: list[str]


ONE_CORE = PlanView(
    sentence="1 core is the fewest there is, and it held the whole model.",
    refused=False,
    reason=None,
    sizes=[],
    room="",
    load_with=None,
    notes=[],
)


def from_text(text: str | None) -> PlanView | None:
    """Read the plan that a row holds; None when there is none, or none that can be read."""
    try:
        plan = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    return from_json(plan) if isinstance(plan, dict) else None


def from_json(plan: Mapping[str, Any]) -> PlanView | None:
    """Lay out a plan of `trnready.plan.planner`; None when it is no such plan."""
    try:
        return _laid_out(plan)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _laid_out(plan: Mapping[str, Any]) -> PlanView:
    room = int(plan["bytes_per_core"])
    cores = None if plan["cores"] is None else int(plan["cores"])
    sizes = [_line(size, cores, room) for size in plan["sizes"]]
    distributed = plan.get("distributed") or {}
    arguments = ", ".join(f"{name}={value}" for name, value in distributed.items())
    return PlanView(
        sentence=str(plan["because"]) if cores is None else _why(plan, cores, sizes, room),
        refused=cores is None,
        reason=None if plan.get("reason") is None else str(plan["reason"]),
        sizes=sizes,
        room=units.size(room),
        load_with=f"DistributedConfig({arguments})" if arguments else None,
        notes=[str(note) for note in plan.get("notes") or ()],
    )


def _why(plan: Mapping[str, Any], cores: int, sizes: list[SizeLine], room: int) -> str:
    kind = KINDS.get(str(plan.get("parallelism") or "").partition("=")[0])
    where = f" of {plan['instance']}" if plan.get("instance") else ""
    how = f", {kind}" if kind else ""
    if cores == 1:
        weights = next((f" ({line.weights})" for line in sizes if line.chosen), "")
        return f"1 core{where}: one core's {units.size(room)} hold all weights{weights}."
    smaller = [line for line in sizes if line.cores < cores]
    start = f"{units.count(cores, 'core')}{where}{how}: the fewest that hold the weights"
    if not smaller:
        return f"{start}."
    last = smaller[-1]
    return f"{start}. With {units.count(last.cores, 'core')}, {last.remark}."


def _line(size: Mapping[str, Any], chosen: int | None, room: int) -> SizeLine:
    weights = int(size["weight_bytes"])
    rest = int(size["cache_bytes"]) + int(size["activation_bytes"])
    usable = bool(size["legal"]) and bool(size["holds_weights"])
    if size["why_not"]:
        remark = "; ".join(str(why) for why in size["why_not"])
    elif not size["holds_all"]:
        remark = "holds the weights, but cache and activations may not fit beside them"
    else:
        remark = "taken" if size["cores"] == chosen else "fits"
    return SizeLine(
        cores=int(size["cores"]),
        weights=units.size(weights),
        rest=units.size(rest),
        percent=round(min(100.0, 100 * (weights + rest) / max(room, 1)), 2),
        fits=usable,
        chosen=size["cores"] == chosen,
        remark=remark,
    )
