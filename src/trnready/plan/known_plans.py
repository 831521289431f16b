"""Plans of the well-known models that trnready carries, made beforehand: the Space shows them without loading
Transformers. `python -m trnready.plan.known_plans` makes the file anew, after a change of the planner or of
Transformers' version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

FILE = "known_plans.json"


def find(name: str) -> Mapping[str, Any] | None:
    """Give the plan of the carried model of this name, whatever its capitals, as `Plan.to_json` does; None
    when it is not carried."""
    return _by_lower_name().get(name.lower())


@cache
def _by_lower_name() -> Mapping[str, Mapping[str, Any]]:
    table = json.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))["plans"]
    return {plan["model_id"].lower(): plan for plan in table}


def make(name: str) -> dict[str, Any]:
    """Make the plan of one carried model, as JSON holds it."""
    from trnready.hub.checkpoint import NotTestable
    from trnready.hub.description import describe
    from trnready.plan.read import plan
    from trnready.plan.trainium import MOST_CORES, machine

    try:
        made: dict[str, Any] = json.loads(
            json.dumps(plan(describe(name), machine(None, MOST_CORES)).to_json())
        )
    except NotTestable as refusal:
        room = machine(None, MOST_CORES).bytes_per_core
        return {
            "model_id": name,
            "cores": None,
            "reason": refusal.reason,
            "because": str(refusal),
            "sizes": [],
            "bytes_per_core": room,
        }
    return made


def main() -> None:
    """Write the file anew."""
    from trnready.hub import known

    plans = [make(each.model_id) for each in known.all_known()]
    lines = ",\n".join(json.dumps(plan, separators=(",", ":")) for plan in plans)
    about = {"about": f"Plans of known_models.json, made with transformers {version('transformers')}."}
    head = json.dumps(about)[:-1]
    Path(str(files(__package__).joinpath(FILE))).write_text(
        f'{head}, "plans": [\n{lines}\n]}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    main()
