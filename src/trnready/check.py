"""A test of one model from its name to its row: resolve, render, run, reference, verdict. The command
`trnready check` calls it; everything it uses is in the folders beside it, in that order."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trnready.errors import TrnreadyError
from trnready.hub import preflight
from trnready.hub.checkpoint import Checkpoint, NotTestable
from trnready.hub.resolve import resolve
from trnready.results import dataset, journal
from trnready.results.row import Row
from trnready.run import process, stack
from trnready.run.failure import Failure, explain, fingerprint, tail
from trnready.run.process import Ended, Finished
from trnready.run.report import BadReport, Report, read
from trnready.script.task import Prompt, Script, Task, find
from trnready.verdict import rule
from trnready.verdict.rule import Reference, Verdict

DTYPES = ("bfloat16", "float16", "float32")
CORES = 1
LOG_BYTES = 1_000_000
"""As much of a log's end as is read to explain a failure."""

_PHASES = ("load", "compile", "run")
_ASK_THE_CPU = {"error", "unsupported_dtype", "unsupported_operator"}
"""Failures that may be the checkpoint's own: the CPU is asked before the device is blamed."""


class NoDevice(TrnreadyError):
    """There is no neuron device to test on, or none that works."""


class NoRoom(TrnreadyError):
    """The disk was full, which says nothing about the model."""


NO_ROOM = "No space left on device"


class Watch(Protocol):
    """Who looks on: told of every stage as it begins, and often while one goes on."""

    def stage(self, name: str) -> None:
        """A stage begins."""
        ...

    def tick(self) -> None:
        """A stage goes on."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be tested: a folder or Hub id, and how. `timeout_s` limits each process that runs the model;
    None for `prompt` takes the task's own, for `dtype` the checkpoint's."""

    name: str
    task: str
    results: Path
    timeout_s: float
    prompt: str | None = None
    dtype: str | None = None
    device: str = "neuron"


@dataclass(frozen=True, slots=True)
class Done:
    """A finished test: its row, the folder with `run.py` and `run.log` (None when nothing was run), and why
    the dataset does not hold the row yet, if so."""

    row: Row
    folder: Path | None
    not_folded: TrnreadyError | None


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a script on the device."""

    script: Script
    source: str
    ended: Ended
    log: str
    phase: str
    report: Report | None
    flaw: str | None


@dataclass(slots=True)
class _Test:
    """What the steps of one test share."""

    request: Request
    task: Task
    checkpoint: Checkpoint
    watch: Watch
    folder: Path
    run_id: str
    tested_at: datetime = field(default_factory=lambda: datetime.now(UTC))


def check(request: Request, watch: Watch) -> Done:
    """Test a model and record the result.

    Raises `TrnreadyError` (`NoCheckpoint`, `HubUnreachable`, `UnknownTask`, `ResultsNotWritable`, `NoDevice`,
    `NoRoom`) when nothing was tested. Any other exception, Ctrl-C among them, leaves nothing behind.
    """
    task = find(request.task)
    journal.check_writable(request.results)
    watch.stage("resolve")
    try:
        checkpoint = resolve(request.name)
        preflight.check(checkpoint, task)
    except NotTestable as refusal:
        return _record(request, _skipped(request, refusal), None)
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"
    folder = (request.results / "runs" / run_id).absolute()
    test = _Test(request, task, checkpoint, watch, folder, run_id)
    try:
        folder.mkdir(parents=True)
        row = _test(test)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _record(request, row, folder)


def _record(request: Request, row: Row, folder: Path | None) -> Done:
    journal.write(request.results, row)
    try:
        dataset.compact(request.results)
    except TrnreadyError as error:
        return Done(row, folder, error)
    return Done(row, folder, None)


def _test(test: _Test) -> Row:
    run = _run_until_telling(test)
    if run.report is None:
        return _failed_row(test, run)
    kind = _stack(run.report).device_kind
    verdict = rule.without_reference(run.report, kind)
    if verdict is None:
        reference, why = _reference(test, run.report, run.script, kind)
        test.watch.stage("verify")
        verdict = rule.decide(run.report, reference, kind)
        if reference is None and verdict.reason == "reference_failed":
            verdict = Verdict("SKIPPED", "reference_failed", why, verdict.hint)
        text = reference.same.text if reference is not None else None
    else:
        text = None
    for logits in test.folder.glob("*/logits.safetensors"):
        logits.unlink()
    return _judged_row(test, run, run.report, verdict, text)


def _run_until_telling(test: _Test) -> _Run:
    """Run on the device with one prompt after another until the text is no mere repetition."""
    prompts = list(_prompts(test))
    for prompt in prompts[:-1]:
        run = _run_on_device(test, prompt)
        if run.report is None or not _should_ask_again(run.report):
            return run
    return _run_on_device(test, prompts[-1])


def _prompts(test: _Test) -> Iterator[Prompt]:
    if test.request.prompt is not None:
        yield Prompt(test.request.prompt)
        return
    for prompt in test.task.prompts:
        if not prompt.chat or test.checkpoint.has_chat_template:
            yield prompt


def _should_ask_again(report: Report) -> bool:
    """A broken device repeats itself too; another prompt would only hide that."""
    return rule.is_degenerate(report) and bool(np.isfinite(report.logits).all())


def _run_on_device(test: _Test, prompt: Prompt) -> _Run:
    script = Script(
        model=test.checkpoint.source,
        revision=test.checkpoint.source_revision,
        prompt=prompt,
        dtype=test.request.dtype or _default_dtype(test.checkpoint),
        cores=CORES,
    )
    source = test.task.render(script)
    (test.folder / "run.py").write_text(source, encoding="utf-8")
    report = test.folder / "device"
    shutil.rmtree(report, ignore_errors=True)
    test.watch.stage("load")
    ended, log = _python(test, report, test.folder / "run.log", ["--device", test.request.device])
    found, flaw = _read_report(report, ended)
    return _Run(script, source, ended, log, _phase(report), found, flaw)


def _python(test: _Test, report: Path, log: Path, options: list[str]) -> tuple[Ended, str]:
    """Run the test's `run.py` with these options; give how it ended and the end of its log."""
    seen = _PHASES[0]

    def tick() -> None:
        nonlocal seen
        phase = _phase(report)
        if phase != seen and report.name == "device":
            seen = phase
            test.watch.stage(phase)
        test.watch.tick()

    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    if test.checkpoint.source_revision is not None:
        # All files are in the cache: a Hub that stops answering in mid-run must not decide the verdict.
        environment["HF_HUB_OFFLINE"] = "1"
    ended = process.run(
        [sys.executable, "run.py", "--report", str(report), *options],
        folder=test.folder,
        log=log,
        environment=environment,
        timeout_s=test.request.timeout_s,
        tick=tick,
    )
    return ended, _log_end(log)


def _log_end(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - LOG_BYTES, 0))
        return file.read().decode("utf-8", "replace")


def _phase(report: Path) -> str:
    """Give how far `run.py` says it has got."""
    try:
        phase = (report / "phase").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return _PHASES[0]
    return phase if phase in _PHASES else _PHASES[0]


def _read_report(folder: Path, ended: Ended) -> tuple[Report | None, str | None]:
    """A report counts only when the process that wrote it also ended well."""
    if not isinstance(ended.ending, Finished):
        return None, None
    try:
        return read(folder), None
    except BadReport as error:
        return None, str(error)


def _reference(
    test: _Test, device: Report, script: Script, kind: stack.DeviceKind
) -> tuple[Reference | None, str | None]:
    """Run the same script on the CPU, fed the device's tokens; or say why that cannot be done."""
    test.watch.stage(f"reference on the CPU, {script.dtype}")
    same, why = _on_cpu(test, script.dtype, replay=True)
    if same is None:
        return None, why
    other_dtype = rule.noise_dtype(script.dtype, kind)
    if other_dtype is None:
        return Reference(same, None), None
    test.watch.stage(f"reference on the CPU, {other_dtype}")
    other, why = _on_cpu(test, other_dtype, replay=True)
    return (None, why) if other is None else (Reference(same, other), None)


def _on_cpu(test: _Test, dtype: str, *, replay: bool) -> tuple[Report | None, str | None]:
    report = test.folder / f"cpu-{dtype}"
    options = ["--device", "cpu", "--dtype", dtype]
    if replay:
        options += ["--replay", str(test.folder / "device" / "report.json")]
    ended, log = _python(test, report, test.folder / f"cpu-{dtype}.log", options)
    found, flaw = _read_report(report, ended)
    if found is None:
        return None, f"The CPU cannot run it: {flaw or explain(ended.ending, log).error}"
    return found, None


def _default_dtype(checkpoint: Checkpoint) -> str:
    return checkpoint.dtype if checkpoint.dtype in DTYPES else DTYPES[0]


def _failed_row(test: _Test, run: _Run) -> Row:
    """The row of a run that left no report."""
    found = stack.installed()
    if test.request.device == "neuron" and "torch_neuronx" not in found.versions:
        raise NoDevice(
            "there is no neuron device here: this Python has neither torch-neuronx nor the software device."
        )
    failure = explain(run.ended.ending, run.log)
    if NO_ROOM in failure.error:
        raise NoRoom(
            f"the disk of {test.folder.parent} is full, so the run could not be recorded. Make room."
        )
    if run.flaw is not None:
        failure = Failure("FAIL", "error", run.flaw, None, fingerprint("error", run.flaw))
    if failure.reason in _ASK_THE_CPU and test.request.device != "cpu":
        _ask_the_device(test)
        failure = _or_the_checkpoints_own(test, run, failure)
    return Row(
        **_common(test, run, found),
        result=failure.result,
        reason=failure.reason,
        stage=run.phase,
        error=failure.error,
        fingerprint=failure.fingerprint,
        hint=failure.hint,
    )


def _ask_the_device(test: _Test) -> None:
    """Raise `NoDevice` when the device cannot hold a single number: then no model is to blame."""
    ended, log = _probe(test)
    if not isinstance(ended.ending, Finished):
        said = explain(ended.ending, log).error
        raise NoDevice(f"the neuron device does not work here: {said}")


def _probe(test: _Test) -> tuple[Ended, str]:
    log = test.folder / "probe.log"
    ended = process.run(
        [sys.executable, "-c", "import torch; torch.ones(1, device='neuron').item()"],
        folder=test.folder,
        log=log,
        environment=dict(os.environ),
        timeout_s=test.request.timeout_s,
        tick=test.watch.tick,
    )
    return ended, _log_end(log)


def _or_the_checkpoints_own(test: _Test, run: _Run, failure: Failure) -> Failure:
    """Give the failure, or `reference_failed` when the CPU ends with the same exception."""
    test.watch.stage("the same on the CPU")
    report = test.folder / "cpu"
    ended, log = _python(test, report, test.folder / "cpu.log", ["--device", "cpu"])
    if _read_report(report, ended)[0] is not None:
        return failure
    on_cpu = explain(ended.ending, log)
    if on_cpu.error.partition(":")[0] != failure.error.partition(":")[0]:
        return failure
    error = f"The CPU cannot run it either: {on_cpu.error}"
    hint = "The checkpoint, not the device, is at fault."
    return Failure("SKIPPED", "reference_failed", error, hint, fingerprint("reference_failed", on_cpu.error))


def _judged_row(test: _Test, run: _Run, report: Report, verdict: Verdict, reference_text: str | None) -> Row:
    found = _stack(report)
    numbers = verdict.comparison
    per_step = [later - earlier for earlier, later in zip(report.step_s, report.step_s[1:], strict=False)]
    decoding_s = sum(per_step)
    graphs = report.graphs or ()
    cold = [each.compile_s for each in graphs if not each.cache_hit and each.compile_s is not None]
    warm = [each.compile_s for each in graphs if each.cache_hit and each.compile_s is not None]
    modules = [each.neff_module for each in graphs if each.neff_module is not None]
    hits = [each.cache_hit for each in graphs if each.cache_hit is not None]
    return Row(
        **_common(test, run, found),
        result=verdict.result,
        reason=verdict.reason,
        stage="verify",
        error=verdict.error,
        fingerprint=None if verdict.error is None else fingerprint(verdict.reason, verdict.error),
        hint=verdict.hint,
        warnings=list(verdict.warnings),
        peak_memory_bytes=max(report.peak_bytes) if report.peak_bytes else None,
        text=report.text,
        text_reference=reference_text if numbers is not None else None,
        tokens_device=list(report.tokens),
        tokens_reference=None if numbers is None else list(numbers.tokens_reference),
        score=None if numbers is None else numbers.score,
        score_steps=None if numbers is None else list(numbers.ratios),
        first_divergence=None if numbers is None else numbers.first_divergence,
        margin_at_divergence=None if numbers is None else numbers.margin,
        noise=None if numbers is None else numbers.noise,
        load_s=report.load_s,
        compile_s=sum(cold) if cold else None,
        compile_warm_s=sum(warm) if warm else None,
        first_token_s=report.step_s[0] if report.step_s else None,
        tokens_per_s=len(per_step) / decoding_s if decoding_s > 0 else None,
        graphs=None if report.graphs is None else len(report.graphs),
        recompiles=rule.recompiles(report),
        graph_breaks=report.graph_breaks,
        fallback_ops=None if report.fallback_ops is None else sorted(set(report.fallback_ops)),
        bytes_per_core=_bytes_per_core(report),
        neff_modules=modules if modules or report.graphs == () else None,
        neff_hits=sum(hits) if len(hits) == len(graphs) and report.graphs is not None else None,
    )


def _bytes_per_core(report: Report) -> list[int] | None:
    """The cores of the run, and any other that was touched."""
    if report.peak_bytes is None:
        return None
    touched = [index + 1 for index, peak in enumerate(report.peak_bytes) if peak > 0]
    return list(report.peak_bytes[: max([report.cores, *touched])])


def _stack(report: Report) -> stack.Stack:
    return stack.stack_of(report.versions, report.instance, stack.this_machine())


def _common(test: _Test, run: _Run, found: stack.Stack) -> dict[str, Any]:
    """The columns that every run fills."""
    return {
        "model_id": test.checkpoint.model_id,
        "revision": test.checkpoint.revision,
        "task": test.task.name,
        "library": test.task.packages[0],
        "library_version": found.library_version,
        "neuronx_cc": found.neuronx_cc,
        "neuron_cores": run.script.cores,
        "wall_time_s": run.ended.wall_s,
        "model_type": test.checkpoint.model_type,
        "dtype": run.script.dtype,
        "device_kind": found.device_kind,
        "instance": found.instance,
        "host_cpu": stack.host_cpu(),
        "versions": found.versions,
        "packages": stack.packages(test.task.packages, found.versions),
        "run_py": run.source,
        "prompt": run.script.prompt.text,
        "log_tail": tail(run.log),
        "tested_at": test.tested_at,
        "run_id": test.run_id,
    }


def _skipped(request: Request, refusal: NotTestable) -> Row:
    """The row of a model that exists but is not run."""
    found = stack.installed()
    now = datetime.now(UTC)
    task = find(request.task)
    return Row(
        model_id=refusal.model_id,
        revision=refusal.revision,
        task=task.name,
        library=task.packages[0],
        library_version=found.library_version,
        neuronx_cc=found.neuronx_cc,
        result="SKIPPED",
        reason=refusal.reason,
        stage="resolve",
        error=str(refusal),
        device_kind=found.device_kind,
        versions=found.versions,
        tested_at=now,
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}",
    )
