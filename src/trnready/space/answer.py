"""Whether a model runs, in a word and a sentence, from what the index holds of it. The API, the badge and
`trnready can-i-run` all say it from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trnready.results import meanings, units
from trnready.space.ask import Ask, Entry, Prediction
from trnready.space.runs import Run

Word = Literal["yes", "no", "unknown"]

NO_WAY = frozenset(
    {
        "incompatible",
        "too_large",
        "no_parallel_plan",
        "no_safetensors",
        "invalid_config",
        "unsupported_quantization",
        "unsupported_architecture",
    }
)
"""Reasons to skip a model that are an answer; the others leave it open whether it would run."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`word` is yes or no only where a test of the real checkpoint, or what ruled one out, says so."""

    word: Word
    sentence: str


def answer(entry: Entry, asked: Ask) -> Answer:
    """Answer for a model from its newest row, or else from why it was left out, or from the prediction.

    `asked` holds the versions and device that the row was to have.
    """
    if entry.row is not None:
        return _tested(entry.row)
    if entry.left_out is not None:
        word: Word = "no" if entry.left_out.reason in NO_WAY else "unknown"
        return Answer(word, f"{entry.model_id} was left out of the tests: {entry.left_out.why}")
    return Answer("unknown", f"{entry.model_id} was not tested{_where(asked)}. {foretold(entry.prediction)}")


def device(run: Run) -> str:
    """Name the device of a run so that software cores cannot be taken for Trainium."""
    kind = "Trainium core" if run.device_kind == "hardware" else "software core"
    return f"{kind}s" if run.neuron_cores is None else units.count(run.neuron_cores, kind)


def foretold(prediction: Prediction | None) -> str:
    """Give a prediction as a sentence that says that it is one."""
    if prediction is None:
        return "Nothing is known from which to predict it."
    parts = []
    if prediction.twin is not None:
        how = {"PASS": "passed", "FAIL": "failed"}.get(prediction.twin.result, "could not be judged")
        reason = "" if prediction.twin.result == "PASS" else f" ({prediction.twin.reason})"
        little = (
            ", which proves little" if prediction.twin.result == "PASS" and not prediction.twin.counts else ""
        )
        parts.append(
            f"a shrunk twin of its architecture with random weights {how} on a software core{reason}{little}"
        )
    if prediction.quantized is not None:
        parts.append(f"by its name the model is quantized ({prediction.quantized}), which twins are not")
    if prediction.too_large:
        parts.append("its parameters do not fit on 16 cores")
    elif prediction.cores is not None:
        holds = "hold" if prediction.cores > 1 else "holds"
        parts.append(f"{units.count(prediction.cores, 'core')} {holds} its parameters in bfloat16")
    return f"Prediction, not a result: {', and '.join(parts)}."


def _where(asked: Ask) -> str:
    """Name the versions and device that were asked for: with others it may have been tested."""
    parts = {
        "neuronx-cc": asked.neuronx_cc,
        "library version": asked.library_version,
        "device kind": asked.device_kind,
    }
    said = [f"{name} {value}" for name, value in parts.items() if value is not None]
    return f" with {', '.join(said)}" if said else ""


def _tested(run: Run) -> Answer:
    stack = f"neuronx-cc {run.neuronx_cc}, {run.library} {run.library_version}, {run.tested_at:%Y-%m-%d}"
    word: Word
    caution = " This is no result from Trainium." if run.device_kind == "software" else ""
    meaning = meanings.REASONS[run.reason]
    match run.result:
        case "PASS":
            warned = "".join(f" {meanings.WARNINGS[each]}" for each in run.warnings)
            word, said = "yes", f"{run.model_id} runs on {device(run)} ({stack}).{warned}"
        case "FAIL":
            word, said = "no", f"{run.model_id} fails on {device(run)} ({stack}): {meaning}"
        case _:
            word = "no" if run.reason in NO_WAY else "unknown"
            said = f"{run.model_id} was not judged on {device(run)} ({stack}): {meaning}"
    if run.checkpoint_kind == "twin":
        return Answer(
            "unknown", f"Prediction, not a result: a shrunk twin with random weights of {said}{caution}"
        )
    return Answer(word, said + caution)
