"""A worker process: takes the name of an architecture per line on its standard input, runs the twin, answers
with one line; or, given a folder, runs the one twin it describes. `trnready.sweep.pool` starts it as
`python -m trnready.plan.twin_worker`, and ends it when it hangs."""

from __future__ import annotations

import contextlib
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
from trnready.plan.twin_ranks import Ranks
from trnready.plan.twin_row import LEVEL, TwinRow

if TYPE_CHECKING:
    from trnready.plan.twin import Parallel, Twin
    from trnready.plan.twin_run import Control, Outcome


def main() -> None:
    """Answer until the input ends."""
    # Models print what they like; the answers go out on a channel of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        ranks: Ranks | None = None
        for line in sys.stdin:
            order = json.loads(line)
            cores = int(order.pop("cores"))
            if cores > 1 and ranks is None:
                ranks = stack.enter_context(Ranks(cores))
            row = run_architecture(Architecture(**order), cores, ranks)
            answers.write(row.to_line() + "\n")
            answers.flush()
            gc.collect()


def answer_once(folder: Path) -> None:
    """Run the twin of the model that `request.json` in the folder describes; leave its row in `row.json`."""
    from trnready.plan import twin

    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    auto_class, config = request["auto_class"], request["config"]
    task = next(name for name, each in AUTO_CLASSES.items() if each == auto_class)
    cores = int(request["cores"])
    with contextlib.ExitStack() as stack:
        ranks = stack.enter_context(Ranks(cores)) if cores > 1 else None
        row = _row(
            str(config["model_type"]), task, lambda: twin.of_config(config, auto_class, cores), cores, ranks
        )
    (folder / "row.json").write_text(row.to_line(), encoding="utf-8")


def run_architecture(architecture: Architecture, cores: int = 1, ranks: Ranks | None = None) -> TwinRow:
    """Make the twin of an architecture, run it on so many cores and give its row; `ranks` are the processes
    that drive them, None for one core."""
    from trnready.plan import twin

    return _row(
        architecture.model_type,
        architecture.task,
        lambda: twin.of_model_type(architecture.model_type, architecture.auto_class, cores),
        cores,
        ranks,
    )


def _row(model_type: str, task: str, make: Callable[[], Twin], cores: int, ranks: Ranks | None) -> TwinRow:
    from trnready.plan import twin, twin_generate, twin_run
    from trnready.plan.blueprint import InvalidConfiguration

    start = time.perf_counter()
    common: dict[str, Any] = {
        "model_type": model_type,
        "task": task,
        "level": os.environ.get(LEVEL, "") or "-O1",
        "cores": cores,
        "versions": twin_generate.versions(),
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
    parallel, obstacle = _split_of(made, cores)
    control = twin_run.Control()
    if ranks is None:
        outcome = _on_one_core(made)
    elif parallel is None or obstacle is not None:
        return TwinRow(
            **common,
            result="SKIPPED",
            reason="no_parallel_plan",
            stage="plan",
            error=obstacle,
            parallel=None if parallel is None else parallel.kind,
            seconds=round(time.perf_counter() - start, 1),
        )
    else:
        outcome, control = _on_cores(made, ranks, parallel)
    sensitivity = outcome.sensitivity
    told = {field.name: getattr(outcome, field.name) for field in dataclasses.fields(outcome)}
    del told["sensitivity"]
    told |= {name: list(value) for name, value in told.items() if isinstance(value, tuple)}
    return TwinRow(
        **common,
        **told,
        parallel=None if parallel is None else parallel.kind,
        planned_bytes=None
        if ranks is None or parallel is None
        else parallel.bytes_on(cores, outcome.dtypes[0]),
        cpu_split_error=control.error,
        cpu_split_score=control.score,
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


def _on_one_core(made: Twin) -> Outcome:
    """Run a twin in bfloat16; with experts also in float32, since a median over the steps does not see an
    expert that fewer than half of them use."""
    from trnready.plan import twin, twin_run

    outcome = twin_run.run(made)
    if outcome.result != "PASS" or not twin.routes(made):
        return outcome
    wide = twin_run.run(made, "float32")
    if wide.result != "PASS":
        return wide
    return dataclasses.replace(
        outcome,
        dtypes=(*outcome.dtypes, *wide.dtypes),
        sensitivity=wide.sensitivity,
        sensitivity_error=wide.sensitivity_error,
    )


def _split_of(made: Twin, cores: int) -> tuple[Parallel | None, str | None]:
    """Give how Transformers splits a twin, and why so many cores cannot share it."""
    from trnready.plan import twin

    try:
        found = twin.parallel(made)
    except twin.NoPlan as error:
        return None, str(error)
    return found, found.obstacle(cores)


def _on_cores(made: Twin, ranks: Ranks, parallel: Parallel) -> tuple[Outcome, Control]:
    """Run a twin split over the cores of `ranks`. Where it fails, the same split is run on the CPU, which
    tells a fault of the device from one of the split; recompiling is no matter of the split."""
    from trnready.plan import twin, twin_run

    # Summed in shares, bfloat16 rounds differently, and near a tie a token goes to another expert:
    # everything after it differs. In float32 the split itself can be judged.
    dtype = "float32" if twin.routes(made) else twin_run.DTYPE
    outcome = twin_run.run(made, dtype, twin_run.on_cores(ranks, parallel))
    if outcome.result != "FAIL" or outcome.reason == "recompiles":
        return outcome, twin_run.Control()
    with Ranks(ranks.size, "cpu") as on_cpu:
        return outcome, twin_run.control(made, dtype, on_cpu, parallel)


def _is_number(change: tuple[Any, Any]) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in change)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        answer_once(Path(sys.argv[1]))
    else:
        main()
