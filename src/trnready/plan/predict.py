"""The command `trnready predict`: a plan from the configuration, and a twin of the model that really runs,
in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnready.errors import TrnreadyError
from trnready.hub.description import Description
from trnready.plan.planner import Plan
from trnready.plan.twin_row import TwinRow
from trnready.run import process
from trnready.run.failure import explain
from trnready.run.process import Finished

NO_TWIN = "The model's plan says that it cannot be run, so no twin was."


class NoAnswer(TrnreadyError):
    """The twin's process ended without an answer that could be read."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was predicted and from what: `result` is PASS, FAIL or SKIPPED with its `reason`; `from_plan` and
    `from_twin` say what each contributed. `twin` is None when the plan alone decided."""

    model_id: str
    result: str
    reason: str
    plan: Plan
    twin: TwinRow | None
    from_plan: str
    from_twin: str

    def to_json(self) -> dict[str, Any]:
        """Give it as values that JSON can hold."""
        return {
            "model_id": self.model_id,
            "result": self.result,
            "reason": self.reason,
            "from_plan": self.from_plan,
            "from_twin": self.from_twin,
            "plan": self.plan.to_json(),
            "twin": None if self.twin is None else json.loads(self.twin.to_line()),
        }


def predict(model: Description, plan: Plan, auto_class: str, level: str, timeout_s: float) -> Prediction:
    """Predict how a test of the model would end."""
    if plan.cores is None:
        return Prediction(model.model_id, "SKIPPED", str(plan.reason), plan, None, str(plan.because), NO_TWIN)
    twin = _run_twin(model, auto_class, level, timeout_s)
    how = f", {plan.parallelism}" if plan.parallelism else ""
    from_plan = f"{plan.cores} {'core' if plan.cores == 1 else 'cores'} hold its weights{how}."
    return Prediction(model.model_id, twin.result, twin.reason, plan, twin, from_plan, _said(twin, plan))


def _said(twin: TwinRow, plan: Plan) -> str:
    """Say what the twin shows, and what it does not."""
    size = "" if twin.parameters is None else f" of {twin.parameters:,} parameters"
    if twin.result == "PASS":
        told = f"A twin{size} passes on one core"
        told += f" (score {twin.score:.2g} of at most 3)" if twin.score is not None else ""
        if not twin.counts:
            told += f"; it would not have noticed the loss of {_lost(twin)}, so it proves little"
    else:
        told = f"A twin{size} ends in {twin.reason} ({twin.stage}): {twin.error}"
    if plan.cores and plan.cores > 1:
        told += f". It ran on one core, not on {plan.cores}: how the model behaves when split is not shown"
    return told.rstrip(".") + "."


def _lost(twin: TwinRow) -> str:
    return ", ".join(twin.blind) or "a part, which could not be tried"


def _run_twin(model: Description, auto_class: str, level: str, timeout_s: float) -> TwinRow:
    """Run the twin in a process of its own: a crash or a hang in it is an answer too."""
    with tempfile.TemporaryDirectory(prefix="trnready-predict-") as name:
        folder = Path(name)
        request = {"config": dict(model.config), "auto_class": auto_class, "model_id": model.model_id}
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        ended = process.run(
            [sys.executable, "-m", "trnready.plan.twin_worker", str(folder)],
            folder=folder,
            log=folder / "log",
            environment=os.environ | {"NEURON_COMPILER_OPT_LEVEL": level},
            timeout_s=timeout_s,
            tick=lambda: None,
        )
        if isinstance(ended.ending, Finished):
            try:
                return TwinRow.from_line((folder / "row.json").read_text(encoding="utf-8"))
            except OSError as error:
                raise NoAnswer("the twin's process ended well but left no answer.") from error
        log = (folder / "log").read_text(encoding="utf-8", errors="replace")
        failure = explain(ended.ending, log[-100_000:])
        return TwinRow(
            str(model.config.get("model_type")),
            "",
            failure.result,
            failure.reason,
            "run",
            failure.error,
            level=level,
        )
