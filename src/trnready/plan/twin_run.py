"""Runs a twin on one core of the neuron device and judges it by the rule that real checkpoints are judged by.
`trnready predict` calls it in a process of its own, the sweep's workers call it for one twin after
another."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from trnready.plan.blueprint import InvalidConfiguration, quiet
from trnready.plan.sensitivity import Sensitivity, measure
from trnready.plan.twin import Parallel, Twin
from trnready.plan.twin_generate import Failed, Steps, generate, on_cpu, on_device, prepared, stage
from trnready.plan.twin_inputs import with_image
from trnready.plan.twin_ranks import Order, RankFailed, Ranks
from trnready.run.failure import FINDERS
from trnready.run.report import BadReport, Report, from_facts
from trnready.run.stack import DeviceKind
from trnready.verdict import rule
from trnready.verdict.compare import difference, ratios, rms

DTYPE = "bfloat16"
_SHOWN = 400


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a twin's run ended: the first four as in a row of the dataset; `inputs` says what it was fed
    besides token ids. `sensitivity` is None when it could not be measured; `sensitivity_error` then says
    why."""

    result: str
    reason: str
    stage: str
    error: str | None
    dtypes: tuple[str, ...] = (DTYPE,)
    model_class: str | None = None
    parameters: int | None = None
    inputs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    score: float | None = None
    worst: float | None = None
    noise: float | None = None
    distinct_tokens: int | None = None
    graphs: int | None = None
    graph_breaks: int | None = None
    fallback_ops: tuple[str, ...] | None = None
    peak_bytes: int | None = None
    held_bytes: tuple[int, ...] | None = None
    sensitivity: Sensitivity | None = None
    sensitivity_error: str | None = None


OnDevice = Callable[[Twin, nn.Module, dict[str, Any]], tuple[Report, list[int] | None]]
"""Runs a twin on the device, given the same model on the CPU and the tensors besides token ids; gives its
report, and the bytes that each core held after loading. Raises `Failed` and `BadReport`."""


def on_one_core(twin: Twin, same: nn.Module, extra: dict[str, Any]) -> tuple[Report, list[int] | None]:
    """Run a twin on a core of this process. Raises `Failed` and `BadReport`."""
    cores = range(torch.get_device_module("neuron").device_count())
    dtype = _dtype(same)
    facts, logits = on_device(lambda: prepared(twin.build(dtype)).to("neuron"), twin.prompt, extra, cores)
    return from_facts(facts, logits), None


def on_cores(ranks: Ranks, parallel: Parallel) -> OnDevice:
    """Give how a twin is run on the cores of `ranks`, split as `parallel` says."""

    def split(twin: Twin, same: nn.Module, extra: dict[str, Any]) -> tuple[Report, list[int] | None]:
        return ranks.generate(same, _order(twin, parallel, ranks.size, same, extra))

    return split


def _order(twin: Twin, parallel: Parallel, size: int, same: nn.Module, extra: Mapping[str, Any]) -> Order:
    return Order(twin.auto_class, parallel.arguments(size), twin.prompt, extra, _dtype(same))


@dataclass(frozen=True, slots=True)
class Control:
    """How the same split ended in processes of the CPU, where no device can be at fault: the error, or the
    score against the whole model on the CPU as a verdict takes it."""

    error: str | None = None
    score: float | None = None


def control(twin: Twin, dtype: str, ranks: Ranks, parallel: Parallel) -> Control:
    """Run a split twin on the CPU's `ranks`, by Transformers alone. The twin must run whole there."""
    same = prepared(twin.build(dtype))
    twin, extra, tokens = _fed(twin, same)
    try:
        split = ranks.generate_fed(same, _order(twin, parallel, ranks.size, same, extra), tokens)
    except Failed as failed:
        return Control(error=_words(failed)[:_SHOWN])
    try:
        with stage("verify"):
            whole = on_cpu(same, twin.prompt, extra, tokens)[1]
            if dtype == "float32":
                noise = rms(whole) * (rule.FLOAT32_LIMIT / rule.LIMIT)
            else:
                wide = prepared(twin.build("float32"))
                noise = difference(whole, on_cpu(wide, twin.prompt, extra, tokens)[1])
    except Failed:
        # Without a whole model to compare with, the split one tells nothing.
        return Control()
    # As in a verdict: the median of the steps, in float32 the worst of them.
    over_steps = np.max if dtype == "float32" else np.median
    return Control(score=float(over_steps(ratios(difference(split, whole), noise))))


def run(twin: Twin, dtype: str = DTYPE, device_run: OnDevice = on_one_core) -> Outcome:
    """Run a twin in this type and judge it. Whatever goes wrong is an outcome; only a dead process is not."""
    try:
        with stage("load"):
            same = prepared(twin.build(dtype))
    except Failed as failed:
        return _outcome_of(failed, "SKIPPED", "unsupported_architecture")
    about: dict[str, Any] = {
        "dtypes": (dtype,),
        "model_class": type(same).__name__,
        "parameters": sum(each.numel() for each in same.parameters()),
    }
    # The CPU first: what it cannot run says nothing about the device.
    try:
        with stage("run"):
            twin, extra, tokens = _fed(twin, same)
    except Failed as failed:
        return _outcome_of(failed, "SKIPPED", "reference_failed", about)
    about["inputs"] = tuple(extra)
    try:
        device, held = device_run(twin, same, extra)
    except Failed as failed:
        return _outcome_of(failed, "FAIL", None, about)
    except BadReport as error:
        return Outcome("FAIL", "error", "verify", str(error), **about)
    about["held_bytes"] = None if held is None else tuple(held)
    about["distinct_tokens"] = len(set(device.tokens))
    verdict = rule.without_reference(device, _kind(device))
    if verdict is None:
        verdict = _judged(twin, same, device, extra)
    numbers = verdict.comparison
    sensitivity, why = _sensitivity(twin, same, device.tokens or tokens, extra)
    return Outcome(
        result=verdict.result,
        reason=verdict.reason,
        stage="verify",
        error=verdict.error,
        warnings=_warnings(verdict, device),
        score=None if numbers is None else numbers.score,
        worst=None if numbers is None else numbers.worst,
        noise=None if numbers is None else numbers.noise,
        graphs=None if device.graphs is None else len(device.graphs),
        graph_breaks=device.graph_breaks,
        fallback_ops=device.fallback_ops,
        peak_bytes=max(device.peak_bytes) if device.peak_bytes else None,
        sensitivity=sensitivity,
        sensitivity_error=why,
        **about,
    )


def _fed(twin: Twin, same: nn.Module) -> tuple[Twin, dict[str, Any], list[int]]:
    """Find what the CPU runs: with an image where one can be made, else with token ids alone. Gives the twin
    with its prompt, the tensors besides it, and the tokens that came out."""
    with contextlib.suppress(Exception):
        inputs = with_image(same, twin.prompt)
        shown = replace(twin, prompt=inputs.prompt)
        tokens = generate(same, shown.prompt, inputs.tensors, Steps())[1]
        return shown, inputs.tensors, tokens
    return twin, {}, generate(same, twin.prompt, {}, Steps())[1]


def _warnings(verdict: rule.Verdict, device: Report) -> tuple[str, ...]:
    """At `-O0` all graphs are interpreted, which the row's level says already."""
    captured = bool(device.graphs) and 0 not in (device.graphs_per_core or ())
    asked_for = captured and all(each.interpreted for each in device.graphs or ())
    return tuple(each for each in verdict.warnings if not (asked_for and each == "not_compiled"))


def _kind(device: Report) -> DeviceKind:
    return "software" if device.versions.get("torch_neuronx", "").startswith("soft-") else "hardware"


def _dtype(model: Any) -> str:
    return str(model.dtype).removeprefix("torch.")


def _outcome_of(
    failed: Failed, result: str, reason: str | None, about: dict[str, Any] | None = None
) -> Outcome:
    error = _words(failed)
    if reason is None:
        found = next((each for each in FINDERS if each.pattern.search(error)), None)
        result, reason = (found.result, found.reason) if found else ("FAIL", "error")
    return Outcome(result, reason, failed.stage, error[:_SHOWN], **(about or {}))


def _words(failed: Failed) -> str:
    cause = failed.__cause__
    if isinstance(cause, InvalidConfiguration | RankFailed):
        return str(cause)
    return f"{type(cause).__name__}: {' '.join(str(cause).split())}"


def _judged(twin: Twin, same: nn.Module, device: Report, extra: dict[str, Any]) -> rule.Verdict:
    if not np.isfinite(device.logits).all():
        return rule.decide(device, None, _kind(device))
    try:
        with stage("verify"):
            other = rule.noise_dtype(_dtype(same), _kind(device))
            reference = rule.Reference(
                from_facts(*on_cpu(same, twin.prompt, extra, device.tokens)),
                None
                if other is None
                else from_facts(*on_cpu(prepared(twin.build(other)), twin.prompt, extra, device.tokens)),
            )
    except Failed as failed:
        outcome = _outcome_of(failed, "SKIPPED", "reference_failed")
        return rule.Verdict(outcome.result, outcome.reason, outcome.error)
    return rule.decide(device, reference, _kind(device))


def _sensitivity(
    twin: Twin, same: nn.Module, tokens: Sequence[int], extra: dict[str, Any]
) -> tuple[Sensitivity | None, str | None]:
    try:
        with quiet():
            wide = None if _dtype(same) == "float32" else twin.build("float32")
            return measure(same, wide, twin.prompt, tokens, extra), None
    except Exception as error:
        text = re.sub(r"\s+", " ", str(error))
        return None, f"{type(error).__name__}: {text}"[:_SHOWN]
