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
from trnready.plan import quantization
from trnready.plan.planner import Plan
from trnready.plan.twin_row import LEVEL, TwinRow
from trnready.run import process
from trnready.run.failure import explain
from trnready.run.process import Finished
from trnready.run.runner import Watch

NO_TWIN = "The model's plan says that it cannot be run, so no twin was."


class NoAnswer(TrnreadyError):
    """The twin's process ended without an answer that could be read."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was predicted and from what: `result` is PASS, FAIL or SKIPPED with its `reason`; `from_plan` and
    `from_twin` say what each contributed. `twin` ran on one core, `split_twin` on as many as the plan says;
    None where there was no such run."""

    model_id: str
    result: str
    reason: str
    plan: Plan
    twin: TwinRow | None
    split_twin: TwinRow | None
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
            "split_twin": None if self.split_twin is None else json.loads(self.split_twin.to_line()),
        }


@dataclass(frozen=True, slots=True)
class Settings:
    """How twins are run: `level` of the compiler (`-O0`, `-O1`), and the seconds that each may take."""

    level: str
    timeout_s: float


def predict(model: Description, plan: Plan, auto_class: str, settings: Settings, watch: Watch) -> Prediction:
    """Predict how a test of the model would end; `watch` is told of every twin."""
    if plan.cores is None:
        return Prediction(
            model.model_id, "SKIPPED", str(plan.reason), plan, None, None, str(plan.because), NO_TWIN
        )
    how = f", {plan.parallelism}" if plan.parallelism else ""
    from_plan = f"{plan.cores} {'core' if plan.cores == 1 else 'cores'} hold its weights{how}."
    watch.stage("twin on one core")
    twin = _run_twin(model, auto_class, settings, (1, str(plan.instance)), watch)
    split = None
    # A twin that fails whole says all there is to say.
    if plan.cores > 1 and twin.result == "PASS":
        watch.stage(f"twin on {plan.cores} cores")
        split = _run_twin(model, auto_class, settings, (plan.cores, str(plan.instance)), watch)
    last = twin if split is None else split
    told = " ".join(_said(each) for each in (twin, split) if each is not None)
    if plan.stored_as is not None:
        told += f" Twins are not quantized: the {plan.stored_as} that the checkpoint stores was not tried."
    return Prediction(model.model_id, last.result, last.reason, plan, twin, split, from_plan, told)


def _said(twin: TwinRow) -> str:
    """Say what the twin shows, and what it does not."""
    # The class tells for what the model was taken: one without a head of its own gets a language model's.
    size = "" if twin.parameters is None else f" ({twin.model_class}, {twin.parameters:,} parameters)"
    where = "one core" if twin.cores == 1 else f"{twin.cores} cores"
    if twin.result == "PASS":
        told = f"A twin{size} passes on {where}"
        told += f" (score {twin.score:.2g} of at most 3)" if twin.score is not None else ""
        if not twin.counts:
            told += f"; it would not have noticed the loss of {_lost(twin)}, so it proves little"
    else:
        told = f"On {where} a twin{size} ends in {twin.reason} ({twin.stage}): {twin.error}"
    told = told.rstrip(".") + "."
    return f"{told} {twin.control}" if twin.control else told


def _lost(twin: TwinRow) -> str:
    return ", ".join(twin.blind) or "a part, which could not be tried"


def _run_twin(
    model: Description, auto_class: str, settings: Settings, machine: tuple[int, str], watch: Watch
) -> TwinRow:
    """Run the twin in a process of its own, on so many cores of an instance (hardware is what it is): a crash
    or a hang in it is an answer too."""
    cores, instance = machine
    with tempfile.TemporaryDirectory(prefix="trnready-predict-") as name:
        folder = Path(name)
        request = {
            "config": quantization.without(model.config),
            "auto_class": auto_class,
            "model_id": model.model_id,
            "cores": cores,
        }
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        ended = process.run(
            [sys.executable, "-m", "trnready.plan.twin_worker", str(folder)],
            folder=folder,
            log=folder / "log",
            environment=os.environ | {LEVEL: settings.level} | {"SOFTNEURON_INSTANCE": instance},
            timeout_s=settings.timeout_s,
            tick=watch.tick,
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
            cores=cores,
            level=settings.level,
        )
