"""A worker process: takes the name of an architecture per line on its standard input, runs the twin, answers
with one line; or, given a folder, runs the one twin it describes. `trnready.sweep.pool` starts it as
`python -m trnready.plan.twin_worker`, and ends it when it hangs."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnready.plan.architectures import AUTO_CLASSES, Architecture
from trnready.plan.twin_row import TwinRow

if TYPE_CHECKING:
    from trnready.plan.twin import Twin

LEVEL = "NEURON_COMPILER_OPT_LEVEL"


def main() -> None:
    """Answer until the input ends."""
    # Models print what they like; the answers go out on a channel of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        row = run_architecture(Architecture(**json.loads(line)))
        answers.write(row.to_line() + "\n")
        answers.flush()
        gc.collect()


def answer_once(folder: Path) -> None:
    """Run the twin of the model that `request.json` in the folder describes; leave its row in `row.json`."""
    from trnready.plan import twin

    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    auto_class, config = request["auto_class"], request["config"]
    task = next(name for name, each in AUTO_CLASSES.items() if each == auto_class)
    row = _row(str(config["model_type"]), task, lambda: twin.of_config(config, auto_class))
    (folder / "row.json").write_text(row.to_line(), encoding="utf-8")


def run_architecture(architecture: Architecture) -> TwinRow:
    """Make the twin of an architecture, run it and give its row."""
    from trnready.plan import twin

    return _row(
        architecture.model_type,
        architecture.task,
        lambda: twin.of_model_type(architecture.model_type, architecture.auto_class),
    )


def _row(model_type: str, task: str, make: Callable[[], Twin]) -> TwinRow:
    from trnready.plan import twin, twin_run
    from trnready.plan.blueprint import InvalidConfiguration

    start = time.perf_counter()
    common: dict[str, Any] = {
        "model_type": model_type,
        "task": task,
        "level": os.environ.get(LEVEL, "") or "-O1",
        "versions": twin_run.versions(),
    }
    try:
        made = make()
    except InvalidConfiguration as error:
        seconds = round(time.perf_counter() - start, 1)
        return TwinRow(
            **common,
            result="SKIPPED",
            reason="unsupported_architecture",
            stage="load",
            error=str(error)[:400],
            seconds=seconds,
        )
    outcome = twin_run.run(made)
    sensitivity = outcome.sensitivity
    told = {field.name: getattr(outcome, field.name) for field in dataclasses.fields(outcome)}
    del told["sensitivity"]
    told |= {name: list(value) for name, value in told.items() if isinstance(value, tuple)}
    return TwinRow(
        **common,
        **told,
        parallel=twin.parallel_kind(made),
        counts=outcome.result == "PASS"
        and sensitivity is not None
        and bool(sensitivity.scores)
        and not sensitivity.blind,
        parts=None if sensitivity is None else len(sensitivity.scores),
        least_part=None if sensitivity is None else sensitivity.least,
        blind=[] if sensitivity is None else list(sensitivity.blind),
        kept=twin.kept(made),
        cut={name: list(change) for name, change in made.cut.changed.items() if _is_number(change)},
        seconds=round(time.perf_counter() - start, 1),
    )


def _is_number(change: tuple[Any, Any]) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in change)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        answer_once(Path(sys.argv[1]))
    else:
        main()
