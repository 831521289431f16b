"""Runs a twin on one core of the neuron device and judges it by the rule that real checkpoints are judged by.
`trnready predict` calls it in a process of its own, the sweep's workers call it for one twin after
another."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import GenerationConfig, LogitsProcessor

from trnready.plan.blueprint import InvalidConfiguration, quiet
from trnready.plan.sensitivity import Sensitivity, measure
from trnready.plan.twin import Twin
from trnready.plan.twin_inputs import with_image
from trnready.run.failure import FINDERS
from trnready.run.report import BadReport, Report, from_facts
from trnready.run.stack import DeviceKind
from trnready.script.task import NEW_TOKENS
from trnready.verdict import rule

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
    sensitivity: Sensitivity | None = None
    sensitivity_error: str | None = None


class _Failed(Exception):
    """A stage failed; carries the stage, and the cause as `__cause__`."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage


class _Steps(LogitsProcessor):  # type: ignore[misc]
    """Notes which token each step chooses and when; with `fed`, feeds those tokens instead."""

    def __init__(self, fed: Sequence[int] | None = None) -> None:
        self.fed = fed
        self.choices: list[int] = []
        self.times = [time.perf_counter()]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.times.append(time.perf_counter())
        self.choices.append(int(scores.argmax()))
        if self.fed is None:
            return scores
        fed = torch.full_like(scores, -torch.inf)
        fed[:, self.fed[len(self.choices) - 1]] = 0
        return fed


def run(twin: Twin) -> Outcome:
    """Run a twin and judge it. Whatever goes wrong is an outcome; only a dead process is not."""
    try:
        with _stage("load"):
            same = _prepared(twin, DTYPE)
    except _Failed as failed:
        return _outcome_of(failed, "SKIPPED", "unsupported_architecture")
    about: dict[str, Any] = {
        "model_class": type(same).__name__,
        "parameters": sum(each.numel() for each in same.parameters()),
    }
    # The CPU first: what it cannot run says nothing about the device.
    try:
        with _stage("run"):
            twin, extra, tokens = _fed(twin, same)
    except _Failed as failed:
        return _outcome_of(failed, "SKIPPED", "reference_failed", about)
    about["inputs"] = tuple(extra)
    try:
        device = _on_device(twin, extra)
    except _Failed as failed:
        return _outcome_of(failed, "FAIL", None, about)
    except BadReport as error:
        return Outcome("FAIL", "error", "verify", str(error), **about)
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
        warnings=verdict.warnings,
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
        tokens = _generate(same, shown.prompt, inputs.tensors, _Steps())[1]
        return shown, inputs.tensors, tokens
    return twin, {}, _generate(same, twin.prompt, {}, _Steps())[1]


def _kind(device: Report) -> DeviceKind:
    return "software" if device.versions.get("torch_neuronx", "").startswith("soft-") else "hardware"


@contextlib.contextmanager
def _stage(name: str) -> Iterator[None]:
    """Mark what fails inside with the stage it failed in."""
    try:
        with quiet():
            yield
    except Exception as error:
        raise _Failed(name) from error


def _outcome_of(
    failed: _Failed, result: str, reason: str | None, about: dict[str, Any] | None = None
) -> Outcome:
    cause = failed.__cause__
    if isinstance(cause, InvalidConfiguration):
        error = str(cause)
    else:
        error = f"{type(cause).__name__}: {' '.join(str(cause).split())}"
    if reason is None:
        found = next((each for each in FINDERS if each.pattern.search(error)), None)
        result, reason = (found.result, found.reason) if found else ("FAIL", "error")
    return Outcome(result, reason, failed.stage, error[:_SHOWN], **(about or {}))


def _prepared(twin: Twin, dtype: str) -> nn.Module:
    """The model with plain greedy decoding: of its own settings only its special tokens are kept."""
    model: Any = twin.build(dtype)
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    own = model.generation_config
    if own is None:
        raise InvalidConfiguration(f"{type(model).__name__} cannot generate")
    kept = {name: getattr(own, name) for name in names}
    if model.config.is_encoder_decoder and kept["decoder_start_token_id"] is None:
        kept["decoder_start_token_id"] = kept["bos_token_id"] or 0
    model.generation_config = GenerationConfig(**kept)
    result: nn.Module = model
    return result


def _generate(
    model: Any, prompt: Sequence[int], extra: dict[str, Any], steps: _Steps
) -> tuple[Any, list[int]]:
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        **extra,
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        cache_implementation="static",
        logits_processor=[steps],
        output_logits=True,
        return_dict_in_generate=True,
    )
    logits = torch.cat(output.logits).float().numpy()
    return logits, output.sequences[0, -NEW_TOKENS:].tolist()


def _on_device(twin: Twin, extra: dict[str, Any]) -> Report:
    torch._dynamo.reset()
    counters = sys.modules["torch._dynamo.utils"].counters
    counters.clear()
    neuron = importlib.import_module("torch_neuronx")
    neuron.reset_dynamo_metrics()
    neuron.clear_op_tracking()
    cores: Any = torch.get_device_module("neuron")
    for core in range(cores.device_count()):
        cores.reset_peak_memory_stats(core)
    start = time.perf_counter()
    with _stage("load"):
        model: Any = _prepared(twin, DTYPE).to("neuron")
        # What a processor gives goes to the device with the model; token ids stay on the host.
        extra = {
            name: each.to("neuron") if isinstance(each, torch.Tensor) else each
            for name, each in extra.items()
        }
    loaded = time.perf_counter()
    first, steps = _Steps(), _Steps()
    with _stage("compile"):
        _generate(model, twin.prompt, extra, first)
    compiled = time.perf_counter()
    graphs_first_call = _graphs(neuron)
    with _stage("run"):
        logits, tokens = _generate(model, twin.prompt, extra, steps)
    facts = {
        "device": "neuron",
        "dtype": sorted({str(each.dtype).removeprefix("torch.") for each in model.parameters()}),
        "cores": 1,
        "input_tokens": list(twin.prompt),
        "tokens": tokens,
        "first_call_tokens": first.choices,
        "end_tokens": model.generation_config.eos_token_id,
        "text": "",
        "seconds": {
            "load": loaded - start,
            "first_call": compiled - loaded,
            "later_call": time.perf_counter() - compiled,
        },
        "step_seconds": [moment - steps.times[0] for moment in steps.times[1:]],
        "parameter_devices": sorted({str(each.device) for each in model.parameters()}),
        "parameter_bytes": sum(each.nbytes for each in model.parameters()),
        "graphs_first_call": graphs_first_call,
        "graphs": _graphs(neuron),
        "graph_breaks": dict(counters["graph_break"]),
        "fallback_ops": _ask(lambda: list(neuron.get_fallback_ops())),
        "instance": _ask(lambda: str(cores.get_device_properties(0).instance)),
        "peak_bytes": _ask(
            lambda: [int(cores.max_memory_allocated(core)) for core in range(cores.device_count())]
        ),
        "versions": versions(),
    }
    return from_facts(facts, logits)


def versions() -> dict[str, str]:
    """Give the versions that decide how a twin runs."""
    found = {name: metadata.version(name) for name in ("torch", "transformers")}
    neuron = _ask(lambda: str(importlib.import_module("torch_neuronx").__version__))
    return found | ({} if neuron is None else {"torch_neuronx": neuron})


def _graphs(neuron: Any) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] | None = _ask(lambda: [dict(each) for each in neuron.get_dynamo_metrics()])
    return found


def _ask(question: Callable[[], Any]) -> Any:
    """What the device answers, or None where it has no answer."""
    try:
        return question()
    except Exception:
        return None


def _judged(twin: Twin, same: nn.Module, device: Report, extra: dict[str, Any]) -> rule.Verdict:
    if not np.isfinite(device.logits).all():
        return rule.decide(device, None, _kind(device))
    try:
        with _stage("verify"):
            reference = rule.Reference(
                _replayed(twin, same, device, extra),
                _replayed(twin, _prepared(twin, "float32"), device, extra),
            )
    except _Failed as failed:
        outcome = _outcome_of(failed, "SKIPPED", "reference_failed")
        return rule.Verdict(outcome.result, outcome.reason, outcome.error)
    return rule.decide(device, reference, _kind(device))


def _replayed(twin: Twin, model: Any, device: Report, extra: dict[str, Any]) -> Report:
    """Run on the CPU, fed the device's tokens."""
    steps = _Steps(device.tokens)
    logits, tokens = _generate(model, twin.prompt, _cast(extra, model.dtype), steps)
    facts = {
        "device": "cpu",
        "dtype": sorted({str(each.dtype).removeprefix("torch.") for each in model.parameters()}),
        "cores": 1,
        "input_tokens": list(twin.prompt),
        "tokens": tokens,
        "first_call_tokens": steps.choices,
        "end_tokens": model.generation_config.eos_token_id,
        "text": "",
        "seconds": {"load": 0.0, "first_call": 0.0},
        "step_seconds": [],
        "parameter_devices": sorted({str(each.device) for each in model.parameters()}),
        "parameter_bytes": sum(each.nbytes for each in model.parameters()),
        "graphs_first_call": None,
        "graphs": None,
        "graph_breaks": None,
        "fallback_ops": None,
        "instance": None,
        "peak_bytes": None,
        "versions": {},
    }
    return from_facts(facts, logits)


def _cast(extra: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {
        name: each.to(dtype) if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for name, each in extra.items()
    }


def _sensitivity(
    twin: Twin, same: nn.Module, tokens: Sequence[int], extra: dict[str, Any]
) -> tuple[Sensitivity | None, str | None]:
    try:
        with quiet():
            wide = twin.build("float32")
            return measure(same, wide, twin.prompt, tokens, extra), None
    except Exception as error:
        text = re.sub(r"\s+", " ", str(error))
        return None, f"{type(error).__name__}: {text}"[:_SHOWN]
