"""From what the runs of a test came to, to the row of the dataset. `trnready.check` leads the test and calls
it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from trnready.hub.checkpoint import Checkpoint, NotTestable
from trnready.plan.assign import Assignment
from trnready.results.row import Judge, Row
from trnready.run import stack
from trnready.run.failure import Failure, fingerprint, tail
from trnready.run.report import Evidence, Report
from trnready.run.runner import Ran
from trnready.script.task import Script, Task
from trnready.verdict import rule
from trnready.verdict.rule import Verdict


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a script on the device."""

    script: Script
    source: str
    ran: Ran


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a run, the CPU's text if there is one, and what the judge measured if it was asked."""

    verdict: Verdict
    text_reference: str | None
    judge: Judge | None


@dataclass(frozen=True, slots=True)
class Warm:
    """A later process: its report, the modules that those before had left in the cache, those it compiled all
    the same, and whether another had already built nothing but modules that were left to it."""

    report: Evidence | None
    left: Sequence[str]
    compiled: Sequence[str]
    again: bool = False

    @property
    def built_the_same(self) -> bool:
        """Whether all it compiled were modules that it should have found: the graphs are the same, and the
        cache was emptied, or is not read."""
        return bool(self.compiled) and set(self.compiled) <= set(self.left)


@dataclass(frozen=True, slots=True)
class Long:
    """A long generation: its length in tokens, and what it came to."""

    tokens: int
    outcome: Judged | Failure


@dataclass(frozen=True, slots=True)
class Facts:
    """What every row of a test says."""

    task: Task
    checkpoint: Checkpoint
    interpreter: str
    run_id: str
    tested_at: datetime
    assignment: Assignment


def told(outcome: Judged | Failure) -> tuple[str, str, str | None]:
    """Give result, reason and error."""
    found = outcome.verdict if isinstance(outcome, Judged) else outcome
    return found.result, found.reason, found.error


def stack_of(report: Evidence) -> stack.Stack:
    """Give the stack of a run from its report and this machine."""
    return stack.stack_of(report.versions, report.instance, stack.this_machine())


def content_of(checkpoint: Checkpoint) -> str:
    """Give a name for the checkpoint's content. A folder's revision rests on samples of its weights, so that
    the times and sizes of all its files are part of the name as well."""
    if checkpoint.source_revision is not None:
        return checkpoint.revision
    walked = os.walk(checkpoint.folder, followlinks=True)
    files = sorted(path for root, _, names in walked for path in map(Path(root).joinpath, names))
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file()]
    return json.dumps([checkpoint.revision, stats])


def of_verdict(facts: Facts, run: Attempt, judged: Judged) -> Row:
    """Give the row of a run that left a report."""
    report, verdict = run.ran.report, judged.verdict
    if report is None:
        raise ValueError("a run without a report has no verdict")
    numbers = verdict.comparison
    graphs = report.graphs or ()
    cold = [each.compile_s for each in graphs if not each.cache_hit and each.compile_s is not None]
    warm = [each.compile_s for each in graphs if each.cache_hit and each.compile_s is not None]
    modules = [each.neff_module for each in graphs if each.neff_module is not None]
    return Row(
        **_common(facts, run, stack_of(report), report.imported_later or {}),
        **(_of_generation(report, verdict) if isinstance(report, Report) else {}),
        result=verdict.result,
        reason=verdict.reason,
        stage="verify",
        error=verdict.error,
        fingerprint=None if verdict.error is None else fingerprint(verdict.reason, verdict.error),
        hint=verdict.hint,
        warnings=list(verdict.warnings),
        peak_memory_bytes=max(report.peak_bytes) if report.peak_bytes else None,
        text=report.shown,
        text_reference=judged.text_reference if numbers is not None else None,
        score=None if numbers is None else numbers.score,
        score_steps=None if numbers is None else list(numbers.ratios),
        noise=None if numbers is None else numbers.noise,
        judge=judged.judge,
        load_s=report.load_s,
        compile_s=sum(cold) if cold else None,
        compile_warm_s=sum(warm) if warm and not cold else None,
        graphs=None if report.compiled_graphs is None else len(report.compiled_graphs),
        recompiles=rule.recompiles(report, facts.task.graphs),
        graph_breaks=report.graph_breaks,
        fallback_ops=None if report.fallback_ops is None else sorted(set(report.fallback_ops)),
        bytes_per_core=_bytes_per_core(report),
        neff_modules=modules if modules or report.graphs == () else None,
        neff_hits=_neff_hits(report),
    )


def of_failure(facts: Facts, run: Attempt, failure: Failure, found: stack.Stack) -> Row:
    """Give the row of a run that left none, on an interpreter with this stack."""
    return Row(
        **_common(facts, run, found, {}),
        result=failure.result,
        reason=failure.reason,
        stage=run.ran.phase,
        error=failure.error,
        fingerprint=failure.fingerprint,
        hint=failure.hint,
    )


def as_flaky(red: Row, other: Row) -> Row:
    """Give the row of a test whose two runs disagree: the red one, with a word on the other."""
    words = f"Of two runs in fresh processes the other ended as {other.result} {other.reason}."
    return replace(red, flaky=True, hint=words if red.hint is None else f"{words} {red.hint}")


def with_warm(row: Row, warm: Warm) -> Row:
    """Give the row with what a second process found in the NEFF cache: all of it, or the row is red."""
    if warm.report is None:
        return row
    seconds = [each.compile_s for each in warm.report.graphs or () if each.compile_s is not None]
    row = replace(row, neff_hits=_neff_hits(warm.report))
    found = {each.neff_module for each in warm.report.graphs or () if each.cache_hit}
    missed = [each for each in warm.left if each not in found]
    hint = "Something in the graph differs from run to run."
    if warm.again and warm.built_the_same:
        error = (
            f"Two more processes built the same {len(warm.compiled)} of {len(warm.report.graphs or ())} "
            "graphs again, each of which should have found them in the NEFF cache."
        )
        hint = "See whether something empties the cache, and whether its disk has room."
    elif warm.compiled:
        error = (
            f"A second process compiled {len(warm.compiled)} of {len(warm.report.graphs or ())} graphs "
            "again, though the first had left them in the NEFF cache."
        )
    elif missed:
        error = (
            f"A second process did without {len(missed)} of the {len(warm.left)} graphs that the first had "
            "left in the NEFF cache."
        )
    else:
        return replace(row, compile_warm_s=sum(seconds) if seconds else None)
    return replace(
        row,
        result="FAIL",
        reason="recompiles",
        error=error,
        fingerprint=fingerprint("recompiles", error),
        hint=hint,
    )


def with_warnings(row: Row, verdict: Verdict) -> Row:
    """Give the row with what was not quite right about another run as well."""
    return replace(row, warnings=list(dict.fromkeys((*row.warnings, *verdict.warnings))))


def with_long(row: Row, long: Long) -> Row:
    """Give the row with a long generation, which must pass as well: one that could not be judged is no
    PASS."""
    result, reason, error = told(long.outcome)
    row = replace(row, long_tokens=long.tokens, long_reason=reason)
    if isinstance(long.outcome, Judged):
        row = with_warnings(row, long.outcome.verdict)
    if result == "PASS":
        return row
    error = f"With {long.tokens} tokens: {error}"
    return replace(
        row, result=result, reason=reason, error=error, fingerprint=fingerprint(reason, error), hint=None
    )


def skipped(
    task: Task,
    refusal: NotTestable,
    found: stack.Stack,
    tested_at: datetime,
    run_id: str,
    stage: str = "resolve",
) -> Row:
    """Give the row of a model that exists but is not run, refused at this stage."""
    return Row(
        model_id=refusal.model_id,
        revision=refusal.revision,
        task=task.name,
        library=task.library,
        library_version=found.version_of(task.library),
        neuronx_cc=found.neuronx_cc,
        result="SKIPPED",
        reason=refusal.reason,
        stage=stage,
        error=str(refusal),
        device_kind=found.device_kind,
        versions=found.versions,
        tested_at=tested_at,
        run_id=run_id,
    )


def _of_generation(report: Report, verdict: Verdict) -> dict[str, Any]:
    """The columns that only generated tokens fill."""
    numbers = verdict.comparison
    per_step = [later - earlier for earlier, later in zip(report.step_s, report.step_s[1:], strict=False)]
    decoding_s = sum(per_step)
    return {
        "tokens_device": list(report.tokens),
        "tokens_reference": None if numbers is None else list(numbers.tokens_reference),
        "first_divergence": None if numbers is None else numbers.first_divergence,
        "margin_at_divergence": None if numbers is None else numbers.margin,
        "first_token_s": report.step_s[0] if report.step_s else None,
        "tokens_per_s": len(per_step) / decoding_s if decoding_s > 0 else None,
    }


def _neff_hits(report: Evidence) -> int | None:
    hits = [each.cache_hit for each in report.graphs or () if each.cache_hit is not None]
    return sum(hits) if report.graphs is not None and len(hits) == len(report.graphs) else None


def _bytes_per_core(report: Evidence) -> list[int] | None:
    """The cores of the run, and any other that was touched."""
    if report.peak_bytes is None:
        return None
    touched = [index + 1 for index, peak in enumerate(report.peak_bytes) if peak > 0]
    return list(report.peak_bytes[: max([report.cores, *touched])])


def _common(facts: Facts, run: Attempt, found: stack.Stack, imported_later: dict[str, str]) -> dict[str, Any]:
    """The columns that every run fills."""
    task, checkpoint, plan = facts.task, facts.checkpoint, facts.assignment.plan
    return {
        "model_id": checkpoint.model_id,
        "revision": checkpoint.revision,
        "task": task.name,
        "library": task.library,
        "library_version": found.version_of(task.library),
        "neuronx_cc": found.neuronx_cc,
        "neuron_cores": run.script.cores,
        "parallelism": facts.assignment.parallelism,
        "plan": None if plan is None else json.dumps(plan.to_json()),
        "wall_time_s": run.ran.ended.wall_s,
        "model_type": checkpoint.model_type,
        "dtype": run.script.dtype,
        "device_kind": found.device_kind,
        "instance": found.instance,
        "host_cpu": stack.host_cpu(),
        "versions": found.versions,
        "packages": stack.packages(facts.interpreter, task.packages, imported_later, found.versions),
        "run_py": run.source,
        "prompt": run.script.prompt.text,
        "log_tail": tail(run.ran.log),
        "tested_at": facts.tested_at,
        "run_id": facts.run_id,
    }
