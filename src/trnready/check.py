"""A test of one model from its name to its row: resolve, render, run, reference, verdict, and once more
where once is not enough. The command `trnready check` calls it; everything it uses is in the folders beside
it, in that order."""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import numpy as np

from trnready import check_row
from trnready.check_row import Attempt, Facts, Judged, Long, Warm
from trnready.errors import TrnreadyError
from trnready.hub import preflight
from trnready.hub.checkpoint import Checkpoint, NotTestable
from trnready.hub.installed_models import known
from trnready.hub.resolve import resolve
from trnready.plan import assign
from trnready.plan.assign import Assignment
from trnready.plan.layout import Kind
from trnready.results import dataset, journal
from trnready.results.row import Judge, Row, age
from trnready.run import stack
from trnready.run.failure import Failure, explain, fingerprint
from trnready.run.memory import host_memory
from trnready.run.process import Finished, TimedOut
from trnready.run.report import ArrayReport, BadReport, Evidence, Report
from trnready.run.runner import Ran, Runner, Watch, read_report
from trnready.script.task import NEW_TOKENS, STACK, Prompt, Script, Task, find
from trnready.verdict import arrays, rule
from trnready.verdict.arrays import ArrayReference
from trnready.verdict.kept import Question, References
from trnready.verdict.rule import Reference, Verdict

__all__ = ["Done", "NoDevice", "NoRoom", "Request", "TooShort", "Watch", "check"]

DTYPES = ("bfloat16", "float16", "float32")
FLOAT32_BYTES = 4
REFERENCE_SHARE = 0.75
"""Share of the host's memory that a reference in float32 may take, unless told otherwise."""

_ASK_THE_CPU = {"error", "unsupported_dtype", "unsupported_operator"}
"""Failures that may be the checkpoint's own: the CPU is asked before the device is blamed."""


class NoDevice(TrnreadyError):
    """There is no neuron device to test on, or none that works."""


class NoRoom(TrnreadyError):
    """The disk was full, which says nothing about the model."""


class CheckpointChanged(TrnreadyError):
    """The checkpoint's files changed during the test, so its runs are not runs of one model."""


class TooShort(TrnreadyError):
    """The time limit was shorter than what the model's last PASS took, so its end says nothing."""


class NotInstalled(TrnreadyError):
    """The environment that is to run the model lacks a library of the task."""


class NotForThisTask(TrnreadyError):
    """An option that makes no sense for the task."""


class Judgement(Protocol):
    """What the judge measured on a text."""

    def to_row(self) -> Judge:
        """Give what a row of the dataset keeps."""
        ...


JudgeRun = Callable[[Report, stack.DeviceKind, int], tuple[Verdict, Judgement | None]]
"""Judges a run of so many tokens, which the CPU cannot repeat, by its text alone; without a judgement when it
never came to that."""

NO_ROOM = "No space left on device"
THE_CHECKPOINTS_OWN = "The checkpoint, not the device, is at fault."


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be tested: a folder or Hub id, and how. `timeout_s` and `memory_bytes` limit each process
    that runs the model; None for `prompt` takes the task's own, for `dtype` the checkpoint's. `long` is the
    length of a second, longer generation, in tokens. `python` is the interpreter that runs the model.
    `reference_bytes` is how large the model may be in float32 to be run on the CPU; None takes three
    quarters of the host's memory. A text of a larger one is read by `judge`. None for `cores` takes the
    fewest that hold the weights, and the next larger count when memory runs out. None for `parallelism` takes
    tensor parallelism where Transformers has a plan for it, else expert parallelism."""

    name: str
    task: str
    results: Path
    timeout_s: float
    memory_bytes: int | None = None
    prompt: str | None = None
    dtype: str | None = None
    device: str = "neuron"
    long: int | None = None
    python: Path | None = None
    reference_bytes: int | None = None
    judge: JudgeRun | None = None
    source: str | None = None
    cores: int | None = None
    parallelism: Kind | None = None

    @property
    def interpreter(self) -> str:
        """The Python that runs the model."""
        if self.python is None:
            return sys.executable
        # A name alone, such as python3.12, is looked for as a shell does.
        return str(Path(shutil.which(self.python) or self.python).absolute())


@dataclass(frozen=True, slots=True)
class Done:
    """A finished test: its row, the folder with `run.py` and `run.log` (None when nothing was run), why the
    dataset does not hold the row yet, if so, and the row of the same that is dated later, if there is one."""

    row: Row
    folder: Path | None
    not_folded: TrnreadyError | None
    newer: Row | None = None


@dataclass(slots=True)
class _Test:
    """What the steps of one test share."""

    request: Request
    task: Task
    checkpoint: Checkpoint
    watch: Watch
    folder: Path
    run_id: str
    references: References
    assignment: Assignment
    content: str
    """Names the files that are tested, as they were at first."""
    tested_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    installed: stack.Stack | None = None

    @property
    def runner(self) -> Runner:
        """How this test's script is run."""
        return Runner(
            python=self.request.interpreter,
            folder=self.folder,
            output=self.task.output,
            timeout_s=self.request.timeout_s,
            memory_bytes=self.request.memory_bytes,
            # All files are in the cache: a Hub that stops answering in mid-run must not decide the verdict.
            offline=self.checkpoint.source_revision is not None,
            watch=self.watch,
        )

    @property
    def facts(self) -> Facts:
        """What every row of this test says."""
        return Facts(
            self.task,
            self.checkpoint,
            self.request.interpreter,
            self.run_id,
            self.tested_at,
            self.assignment,
        )


def check(request: Request, watch: Watch) -> Done:
    """Test a model and record the result.

    Raises `TrnreadyError` (`NoCheckpoint`, `HubUnreachable`, `UnknownTask`, `ResultsNotWritable`,
    `NoDevice`, `NoRoom`, `TooShort`, `CheckpointChanged`, `NoInterpreter`, `NotInstalled`,
    `NotForThisTask`) when nothing was tested. Any other exception, Ctrl-C among them, leaves nothing
    behind."""
    task = find(request.task)
    if request.long is not None and task.output != "logits":
        raise NotForThisTask(
            f"{task.name} generates no tokens, so it has no long generation; leave --long out."
        )
    lacking = stack.missing(request.interpreter, task.packages)
    if lacking:
        raise NotInstalled(
            f"{task.name} needs {' and '.join(lacking)}, which {request.interpreter} does not have; "
            "trnready[tasks] brings all that the tasks need."
        )
    references = References.of_user()
    journal.check_writable(request.results)
    watch.stage("resolve")
    try:
        checkpoint = resolve(request.name, task.layout)
        knows = None if request.python is None else known(request.interpreter, task.tables)
        preflight.check(checkpoint, task, knows)
    except NotTestable as refusal:
        found = stack.installed(request.interpreter, _libraries(task))
        return _record(request, check_row.skipped(task, refusal, found, datetime.now(UTC), _new_id()), None)
    content = check_row.content_of(checkpoint)
    dtype = request.dtype or _default_dtype(checkpoint)
    try:
        assignment = _assigned(request, task, checkpoint, dtype, watch)
    except NotTestable as refusal:
        found = stack.installed(request.interpreter, _libraries(task))
        row = check_row.skipped(task, refusal, found, datetime.now(UTC), _new_id(), "plan")
        return _record(request, row, None)
    while True:
        done = _on_cores(request, task, checkpoint, content, references, assignment, watch)
        larger = None
        if done.row.reason == "out_of_memory" and request.cores is None and task.splits:
            watch.stage("plan")
            larger = assign.larger(checkpoint, assignment.cores, dtype, request.parallelism)
        if larger is None:
            return done
        assignment = larger


def _assigned(request: Request, task: Task, checkpoint: Checkpoint, dtype: str, watch: Watch) -> Assignment:
    if not task.splits:
        if request.cores not in (None, 1) or request.parallelism is not None:
            raise NotForThisTask(f"{task.name} runs on one core; leave --cores and --parallelism out.")
        return Assignment(1)
    if request.cores != 1:
        watch.stage("plan")
    return assign.assign(checkpoint, request.cores, dtype, request.parallelism)


def _on_cores(
    request: Request,
    task: Task,
    checkpoint: Checkpoint,
    content: str,
    references: References,
    assignment: Assignment,
    watch: Watch,
) -> Done:
    """Test on the cores that were assigned, and record what came of it."""
    run_id = _new_id()
    folder = (request.results / "runs" / run_id).absolute()
    test = _Test(request, task, checkpoint, watch, folder, run_id, references, assignment, content)
    try:
        folder.mkdir(parents=True)
        row = _test(test)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return _record(request, row, folder)


def _new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"


def _libraries(task: Task) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*STACK, *task.packages)))


def _record(request: Request, row: Row, folder: Path | None) -> Done:
    journal.write(request.results, row)
    try:
        dataset.compact(request.results)
    except TrnreadyError as error:
        return Done(row, folder, error)
    newest = dataset.latest(request.results, row)
    return Done(row, folder, None, newest if newest is not None and age(row) < age(newest) else None)


def _test(test: _Test) -> Row:
    first = _run_until_telling(test)
    one = _judge(test, first)
    row = _row(test, first, one)
    before = dataset.latest(test.request.results, row)
    _refuse_too_short(test, first, one, before)
    if _is_worth_repeating(row, before, first):
        row = _repeated(test, first, one, row)
    if test.request.long is not None and row.result == "PASS":
        row = check_row.with_long(row, _long(test, first, test.request.long))
    for outputs in test.folder.glob("*/outputs.safetensors"):
        outputs.unlink()
    return row


def _row(test: _Test, run: Attempt, outcome: Judged | Failure) -> Row:
    if isinstance(outcome, Judged):
        return check_row.of_verdict(test.facts, run, outcome)
    return check_row.of_failure(test.facts, run, outcome, _installed(test))


def _installed(test: _Test) -> stack.Stack:
    """Ask once: the answer takes seconds."""
    if test.installed is None:
        test.installed = stack.installed(test.request.interpreter, _libraries(test.task))
    return test.installed


# The run on the device


def _run_until_telling(test: _Test) -> Attempt:
    """Run on the device with one prompt after another until the text is no mere repetition."""
    prompts = list(_prompts(test))
    for prompt in prompts[:-1]:
        run = _run_on_device(test, prompt)
        if not _should_ask_again(run.ran.report) or _is_red(test, run):
            return run
    return _run_on_device(test, prompts[-1])


def _prompts(test: _Test) -> Iterator[Prompt]:
    if test.request.prompt is not None:
        yield Prompt(test.request.prompt)
        return
    for prompt in test.task.prompts:
        if not prompt.chat or test.checkpoint.has_chat_template:
            yield prompt


def _should_ask_again(report: Report | ArrayReport | None) -> bool:
    """A broken device repeats itself too; another prompt would only hide that."""
    if not isinstance(report, Report):
        return False
    return rule.is_degenerate(report) and bool(np.isfinite(report.logits).all())


def _is_red(test: _Test, run: Attempt) -> bool:
    """Say whether the run is a failure of the device, whatever another prompt would show."""
    outcome = _judge(test, run)
    return isinstance(outcome, Judged) and outcome.verdict.result == "FAIL"


def _run_on_device(test: _Test, prompt: Prompt) -> Attempt:
    script = Script(
        model=test.checkpoint.source,
        revision=test.checkpoint.source_revision,
        prompt=prompt,
        dtype=test.request.dtype or _default_dtype(test.checkpoint),
        cores=test.assignment.cores,
        distributed=test.assignment.distributed,
    )
    source = test.request.source or test.task.render(script)
    (test.folder / "run.py").write_text(source, encoding="utf-8")
    shutil.rmtree(test.folder / "device", ignore_errors=True)
    ran = test.runner.on_device("device", ["--device", test.request.device])
    _refuse_changed(test)
    return Attempt(script, source, ran)


def _default_dtype(checkpoint: Checkpoint) -> str:
    return checkpoint.dtype if checkpoint.dtype in DTYPES else DTYPES[0]


# What a run comes to


def _judge(test: _Test, run: Attempt, name: str = "device", steps: int = NEW_TOKENS) -> Judged | Failure:
    """Say what a run of so many steps on the device comes to; `name` is its report's."""
    report = run.ran.report
    if report is None:
        return _failure(test, run.ran, _steps(steps))
    kind = check_row.stack_of(report).device_kind
    early = _without_reference(test, report, kind, steps) or _off_plan(test, report)
    if early is not None:
        return Judged(_unless_the_cpu_ends_so(test, early, kind, steps), None, None)
    needed = _reference_bytes(report)
    limit = test.request.reference_bytes
    if needed > (int(host_memory() * REFERENCE_SHARE) if limit is None else limit):
        return _read_by_the_judge(test, report, kind, steps, needed)
    return _compared(test, run, report, name, kind, steps)


def _steps(steps: int) -> list[str]:
    """Give the options of a script for so many steps."""
    return [] if steps == NEW_TOKENS else ["--new-tokens", str(steps)]


def _without_reference(
    test: _Test, report: Report | ArrayReport, kind: stack.DeviceKind, steps: int
) -> Verdict | None:
    if isinstance(report, Report):
        return rule.without_reference(report, kind, steps)
    return arrays.without_reference(report, test.task.output, kind)


def _unless_the_cpu_ends_so(test: _Test, early: Verdict, kind: stack.DeviceKind, steps: int) -> Verdict:
    """Give the verdict, or `reference_failed` when a report that does not hold together is the CPU's too."""
    if early.reason != "error" or test.request.device == "cpu":
        return early
    test.watch.stage("the same on the CPU")
    ran = test.runner.on_cpu("cpu", _steps(steps))
    _refuse_changed(test)
    if ran.report is None or _without_reference(test, ran.report, kind, steps) != early:
        return early
    error = f"The CPU's run has the same fault. {early.error}"
    return Verdict("SKIPPED", "reference_failed", error, THE_CHECKPOINTS_OWN)


def _off_plan(test: _Test, report: Evidence) -> Verdict | None:
    """A core that holds more than its share does not hold a share."""
    planned = test.assignment.bytes_per_core
    if planned is None or report.parameter_bytes_per_core is None:
        return None
    most = max(report.parameter_bytes_per_core)
    if most <= planned:
        return None
    core = report.parameter_bytes_per_core.index(most)
    return Verdict(
        "FAIL", "shard_error", f"Core {core} holds {most} bytes of parameters, where the plan has {planned}."
    )


def _reference_bytes(report: Evidence) -> int:
    """Give what the weights take in float32; where their number is not known, as many bytes as could be."""
    count = report.parameters if report.parameters is not None else report.parameter_bytes
    return count * FLOAT32_BYTES


def _read_by_the_judge(
    test: _Test, report: Report | ArrayReport, kind: stack.DeviceKind, steps: int, needed: int
) -> Judged:
    judge = test.request.judge
    if judge is None or not isinstance(report, Report):
        why = f"In float32 the model takes {needed} bytes, which is more than the CPU is allowed."
        return Judged(
            Verdict(
                "SKIPPED", "reference_failed", why, "Raise --reference-memory, on a machine that has it."
            ),
            None,
            None,
        )
    test.watch.stage("judge")
    verdict, judgement = judge(report, kind, steps)
    return Judged(verdict, None, None if judgement is None else judgement.to_row())


def _compared(
    test: _Test, run: Attempt, report: Report | ArrayReport, name: str, kind: stack.DeviceKind, steps: int
) -> Judged:
    """Compare a run with the CPU's."""
    same, why = _reference(test, run, report, name, run.script.dtype, steps)
    other_dtype = rule.noise_dtype(run.script.dtype, kind)
    other = None
    if same is not None and other_dtype is not None:
        other, why = _reference(test, run, report, name, other_dtype, steps)
    test.watch.stage("verify")
    complete = same is not None and (other is not None or other_dtype is None)
    verdict = _non_finite(report, same)
    if verdict is None:
        verdict = _decide(test, report, same if complete else None, other, kind, steps)
        if not complete and verdict.reason == "reference_failed":
            verdict = replace(verdict, error=why)
    return Judged(verdict, same.shown if same is not None else None, None)


def _non_finite(report: Report | ArrayReport, same: Report | ArrayReport | None) -> Verdict | None:
    """Judge numbers that are NaN or infinite, for which one run on the CPU is enough; None where none are."""
    if isinstance(report, Report):
        return rule.non_finite(report, same if isinstance(same, Report) else None)
    return arrays.non_finite(report, same if isinstance(same, ArrayReport) else None)


def _decide(
    test: _Test,
    report: Report | ArrayReport,
    same: Report | ArrayReport | None,
    other: Report | ArrayReport | None,
    kind: stack.DeviceKind,
    steps: int,
) -> Verdict:
    if isinstance(report, Report):
        tokens = None
        if isinstance(same, Report) and not isinstance(other, ArrayReport):
            tokens = Reference(same, other)
        return rule.decide(report, tokens, kind, steps)
    numbers = None
    if isinstance(same, ArrayReport) and not isinstance(other, Report):
        numbers = ArrayReference(same, other)
    return arrays.decide(report, numbers, test.task.output, kind, test.task.graphs)


def _reference(
    test: _Test, run: Attempt, device: Report | ArrayReport, name: str, dtype: str, steps: int
) -> tuple[Report | ArrayReport | None, str | None]:
    """Run the same script on the CPU, fed the device's tokens, or take what was kept of such a run; or say
    why that cannot be done."""
    options = ["--dtype", dtype, *_steps(steps)]
    question = Question(
        content=test.content,
        script=run.source,
        options=tuple(options),
        fed=device.tokens if isinstance(device, Report) else None,
        versions=stack.without_device(device.versions),
        cpu=stack.host_cpu(),
    )
    if isinstance(device, Report):
        options += ["--replay", str(test.folder / name / "report.json")]
    test.watch.stage(f"reference on the CPU, {dtype}")
    with test.references.place(question) as place:
        kept = place.found()
        if kept is not None:
            with suppress(BadReport):
                return read_report(kept, test.task.output), None
        report = f"cpu-{dtype}" if name == "device" else f"{name}-cpu-{dtype}"
        ran = test.runner.on_cpu(report, options)
        _refuse_changed(test)
        if ran.report is not None:
            place.keep(test.folder / report)
            return ran.report, None
    _refuse_full_disk(test, ran)
    return None, f"The CPU cannot run it: {ran.flaw or explain(ran.ended.ending, ran.log).error}"


# Failures


def _failure(test: _Test, ran: Ran, options: list[str]) -> Failure:
    """Say why a run with these options left no report."""
    if test.request.device == "neuron" and "torch_neuronx" not in _installed(test).versions:
        raise NoDevice(
            "there is no neuron device here: this Python has neither torch-neuronx nor the software device."
        )
    failure = explain(ran.ended.ending, ran.log)
    _refuse_full_disk(test, ran)
    if ran.flaw is not None:
        failure = Failure("FAIL", "error", ran.flaw, None, fingerprint("error", ran.flaw))
    if failure.reason in _ASK_THE_CPU and test.request.device != "cpu":
        _ask_the_device(test)
        failure = _or_the_checkpoints_own(test, failure, options)
    return failure


def _refuse_changed(test: _Test) -> None:
    if check_row.content_of(test.checkpoint) != test.content:
        raise CheckpointChanged(
            f"the files of {test.checkpoint.source} changed while it was being tested: nothing was recorded. "
            "Test it again when they are at rest."
        )


def _refuse_full_disk(test: _Test, ran: Ran) -> None:
    if ran.report is None and NO_ROOM in explain(ran.ended.ending, ran.log).error:
        raise NoRoom(
            f"the disk of {test.folder.parent} is full, so the run could not be recorded. Make room."
        )


def _ask_the_device(test: _Test) -> None:
    """Raise `NoDevice` when the device cannot hold a single number: then no model is to blame."""
    ended, log = test.runner.probe("import torch; torch.ones(1, device='neuron').item()")
    if not isinstance(ended.ending, Finished):
        said = explain(ended.ending, log).error
        raise NoDevice(f"the neuron device does not work here: {said}")


def _or_the_checkpoints_own(test: _Test, failure: Failure, options: list[str]) -> Failure:
    """Give the failure, or `reference_failed` when the CPU ends with the same exception."""
    test.watch.stage("the same on the CPU")
    ran = test.runner.on_cpu("cpu", options)
    if ran.report is not None:
        return failure
    on_cpu = ran.flaw or explain(ran.ended.ending, ran.log).error
    if on_cpu.partition(":")[0] != failure.error.partition(":")[0]:
        return failure
    error = f"The CPU cannot run it either: {on_cpu}"
    key = fingerprint("reference_failed", on_cpu)
    return Failure("SKIPPED", "reference_failed", error, THE_CHECKPOINTS_OWN, key)


def _refuse_too_short(test: _Test, run: Attempt, outcome: Judged | Failure, before: Row | None) -> None:
    """A time limit below what the last PASS took decides nothing, and must not take that PASS's place."""
    if before is None or before.result != "PASS" or before.wall_time_s is None:
        return
    limit = test.request.timeout_s
    if isinstance(run.ran.ended.ending, TimedOut) and before.wall_time_s > limit:
        raise TooShort(
            f"still running after {limit:g} s, but the last PASS took {before.wall_time_s:.0f} s: nothing "
            "was recorded. Give it more time with --timeout."
        )
    if not isinstance(outcome, Judged) or outcome.verdict.reason != "reference_failed":
        return
    if explain(TimedOut(limit), "").error in (outcome.verdict.error or ""):
        raise TooShort(
            f"the CPU's reference was still running after {limit:g} s, but the model has passed before: "
            "nothing was recorded. Give it more time with --timeout."
        )


# Once more


def _is_worth_repeating(row: Row, before: Row | None, run: Attempt) -> bool:
    """A new red, a changed result, or graphs that were compiled, which a second process must find."""
    if row.result == "SKIPPED":
        return False
    told = (row.result, row.reason, row.fingerprint)
    known = before is not None and told == (before.result, before.reason, before.fingerprint)
    if row.result == "FAIL":
        return not known
    changed = before is not None and before.result == "FAIL"
    return changed or bool(_compiled(run.ran.report))


def _compiled(report: Evidence | None) -> list[str]:
    """Give the modules that a run built and did not find in the NEFF cache."""
    graphs = report.graphs or () if report is not None else ()
    return [each.neff_module for each in graphs if each.neff_module is not None and each.cache_hit is False]


def _repeated(test: _Test, first: Attempt, one: Judged | Failure, row: Row) -> Row:
    """Run once more in a fresh process, and give the row with what both say."""
    test.watch.stage("once more, in a fresh process")
    ran = test.runner.on_device("again", ["--device", test.request.device])
    _refuse_changed(test)
    second = replace(first, ran=ran)
    equal = _equal(first.ran.report, ran.report)
    other = one if equal else _judge(test, second, "again")
    if not _agree(one, other):
        red = row if row.result == "FAIL" else _row(test, second, other)
        ended = _row(test, second, other) if red is row else row
        return check_row.as_flaky(red, ended)
    if row.result == "PASS" and isinstance(other, Judged):
        row = check_row.with_warnings(row, other.verdict)
    left = _compiled(first.ran.report)
    if row.result == "PASS" and left:
        return check_row.with_warm(replace(row, flaky=False), _warm(test, ran, left))
    return replace(row, flaky=False)


def _warm(test: _Test, second: Ran, left: list[str]) -> Warm:
    """Say what a second process found of the modules that the first left. A cache that somebody emptied in
    between says nothing about the graphs, so one that had to build the very same is followed by a third."""
    warm = Warm(second.report, left, _compiled(second.report))
    if not warm.built_the_same:
        return warm
    test.watch.stage("once more, with what that process left in the NEFF cache")
    ran = test.runner.on_device("third", ["--device", test.request.device])
    _refuse_changed(test)
    return warm if ran.report is None else Warm(ran.report, left, _compiled(ran.report), again=True)


def _agree(one: Judged | Failure, other: Judged | Failure) -> bool:
    """Say whether two runs came to the same. Within noise or equal is both a PASS."""
    first, second = check_row.told(one), check_row.told(other)
    return first[0] == second[0] and (first[0] == "PASS" or first[1] == second[1])


def _equal(one: Report | ArrayReport | None, other: Report | ArrayReport | None) -> bool:
    """Say whether two runs computed the same bits and tell the same of how: then they are judged the same."""
    if isinstance(one, Report) and isinstance(other, Report):
        same = one.logits.tobytes() == other.logits.tobytes() and one.tokens == other.tokens
        repeats = one.first_call_tokens == other.first_call_tokens
        return same and repeats and _evidence(one) == _evidence(other)
    if isinstance(one, ArrayReport) and isinstance(other, ArrayReport):
        pairs = [(one.arrays[name].tobytes(), other.arrays[name].tobytes()) for name in one.arrays]
        same = all(a == b for a, b in pairs) and one.repeats == other.repeats
        return same and _evidence(one) == _evidence(other)
    return False


def _evidence(report: Evidence) -> tuple[object, ...]:
    """What of a report besides its numbers a verdict may rest on."""
    return (
        report.parameter_devices,
        report.parameter_bytes_per_core,
        report.dtypes,
        None if report.graphs is None else len(report.graphs),
        None if report.graphs_first_call is None else len(report.graphs_first_call),
        None if report.compiled_graphs is None else len(report.compiled_graphs),
        report.graphs_per_core,
        report.fallback_ops,
        report.graph_breaks,
        report.peak_bytes is not None and sum(report.peak_bytes) < report.parameter_bytes,
    )


def _long(test: _Test, run: Attempt, tokens: int) -> Long:
    """Generate so many tokens, and judge them by the same rule."""
    test.watch.stage(f"{tokens} tokens")
    ran = test.runner.on_device("long", ["--device", test.request.device, *_steps(tokens)])
    _refuse_changed(test)
    return Long(tokens, _judge(test, replace(run, ran=ran), "long", tokens))
