"""One row of the dataset: what one run of one model on one device came to. Every stage of trnready that
records, stores or shows a result does it through `Row`; the Arrow schema and the dataset card follow it."""

from __future__ import annotations

import math
import re
import types
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from trnready.errors import TrnreadyError

SCHEMA_VERSION = 1
"""Raised whenever a column is added or changes its meaning."""

RESULTS: tuple[str, ...] = ("PASS", "FAIL", "SKIPPED")

STAGES: tuple[str, ...] = ("resolve", "plan", "load", "shard", "compile", "run", "verify")

REASONS: dict[str, tuple[str, ...]] = {
    "PASS": ("match", "match_within_noise", "judged"),
    "FAIL": (
        "out_of_memory",
        "host_out_of_memory",
        "unsupported_operator",
        "unsupported_dtype",
        "dynamic_shape",
        "compile_error",
        "recompiles",
        "runs_on_cpu",
        "shard_error",
        "mismatch",
        "non_finite",
        "garbled_text",
        "timeout",
        "crash",
        "error",
    ),
    "SKIPPED": (
        "not_a_priority",
        "incompatible",
        "too_large",
        "no_parallel_plan",
        "gated",
        "not_found",
        "remote_code",
        "no_safetensors",
        "invalid_config",
        "unsupported_quantization",
        "unsupported_architecture",
        "processor_unavailable",
        "reference_failed",
    ),
}

WARNINGS: tuple[str, ...] = ("not_compiled", "fallback_ops", "graph_breaks", "degenerate_text")

CHECKPOINT_KINDS: tuple[str, ...] = ("real", "twin")

DEVICE_KINDS: tuple[str, ...] = ("hardware", "software")

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_INT64_MAX = 2**63 - 1
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class InvalidRow(TrnreadyError):
    """A row says something that no run can have produced, or something of the wrong type."""


class NewerSchema(TrnreadyError):
    """A row or file was written by a newer trnready; it is left as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What the judge measured on a text when the CPU could not hold the model."""

    model: str
    perplexity: float | None = None
    repetition: float | None = None
    language: str | None = None


def _doc(text: str) -> dict[str, str]:
    return {"doc": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run of one model. What is not known is `None`; a counter that was not measured is never 0.

    Raises `InvalidRow` when a value has the wrong type, is not in its fixed list, or when the reason does not
    belong to the result.
    """

    model_id: str = field(
        metadata=_doc(
            "Hub id of the checkpoint that was run; of a folder that names none the folder's name, never its "
            "path."
        )
    )
    revision: str | None = field(
        default=None,
        metadata=_doc(
            "Commit of the checkpoint on the Hub; of a folder, `local-` and a digest of its files."
        ),
    )
    task: str = field(metadata=_doc("Hub task name, such as text-generation."))
    library: str = field(metadata=_doc("Library that loaded the model, such as transformers."))
    library_version: str = field(metadata=_doc("Version of that library."))
    neuronx_cc: str = field(
        metadata=_doc("Version of the compiler; `soft-…` is the compiler of the software cores, not AWS's.")
    )
    neuron_cores: int | None = field(
        default=None, metadata=_doc("NeuronCores the model was loaded on; null when it never got that far.")
    )
    result: str = field(metadata=_doc("PASS, FAIL or SKIPPED."))
    reason: str = field(metadata=_doc("Why, from the fixed list of that result."))
    stage: str = field(metadata=_doc("How far it got: the stage in which it ended."))
    error: str | None = field(default=None, metadata=_doc("The error in one or a few lines."))
    fingerprint: str | None = field(default=None, metadata=_doc("Equal for failures with the same cause."))
    hint: str | None = field(default=None, metadata=_doc("What to try next."))
    warnings: list[str] = field(
        default_factory=list, metadata=_doc("What was not quite right about a PASS, from a fixed list.")
    )
    wall_time_s: float | None = field(
        default=None, metadata=_doc("Seconds the run took from start to end, compilation included.")
    )
    peak_memory_bytes: int | None = field(
        default=None, metadata=_doc("Most device memory in use at once on the fullest core, in bytes.")
    )
    model_type: str | None = field(default=None, metadata=_doc("Architecture name in config.json."))
    checkpoint_kind: str = field(
        default="real",
        metadata=_doc("`real` for a published checkpoint, `twin` for its shrunk copy with random weights."),
    )
    dtype: str | None = field(default=None, metadata=_doc("Type the weights were run in."))
    parallelism: str | None = field(
        default=None, metadata=_doc("How the model was split over the cores, such as tp=4; null on one core.")
    )
    plan: str | None = field(default=None, metadata=_doc("The plan that chose the cores, as JSON."))
    device_kind: str = field(
        metadata=_doc("`hardware` for Trainium, `software` for software cores on a host CPU.")
    )
    instance: str | None = field(
        default=None, metadata=_doc("Instance type the run was on, or that the software cores stood for.")
    )
    host_cpu: str | None = field(default=None, metadata=_doc("Host CPU, as it names itself."))
    versions: dict[str, str] = field(
        default_factory=dict, metadata=_doc("Every package of the stack and its version, as pairs.")
    )
    packages: list[str] = field(
        default_factory=list, metadata=_doc("Packages to install on top of the stack, as pip takes them.")
    )
    run_py: str | None = field(default=None, metadata=_doc("The script that ran, whole."))
    prompt: str | None = field(default=None, metadata=_doc("The prompt that was used."))
    text: str | None = field(
        default=None,
        metadata=_doc(
            "What a person reads of the result: the generated text up to where the model would have ended; "
            "the sentences in order of likeness; the size and mean colour of the image."
        ),
    )
    text_reference: str | None = field(
        default=None,
        metadata=_doc(
            "The same from the CPU; of generated text, what it would choose at each step, fed the device's."
        ),
    )
    tokens_device: list[int] | None = field(default=None, metadata=_doc("Token ids the device generated."))
    tokens_reference: list[int] | None = field(
        default=None, metadata=_doc("Token ids the CPU would choose at each step, fed the device's tokens.")
    )
    score: float | None = field(
        default=None,
        metadata=_doc(
            "Median over the steps of r = rms(device - CPU) / rounding noise of the logits; up to 3 passes. "
            "Of embeddings and latents every row must be within 3."
        ),
    )
    first_divergence: int | None = field(
        default=None,
        metadata=_doc("First step, from 0, at which the two texts differ; null when they do not."),
    )
    margin_at_divergence: float | None = field(
        default=None, metadata=_doc("Gap between the CPU's two largest logits at that step.")
    )
    noise: float | None = field(
        default=None,
        metadata=_doc("Median over the steps of the model's own rounding noise, in the units of the output."),
    )
    judge: Judge | None = field(
        default=None, metadata=_doc("The judge's model and numbers, where the CPU could not hold the model.")
    )
    score_steps: list[float] | None = field(
        default=None, metadata=_doc("r of every step or sentence, in order; the score is their median.")
    )
    load_s: float | None = field(default=None, metadata=_doc("Seconds to load the model onto the device."))
    compile_s: float | None = field(
        default=None,
        metadata=_doc("Seconds the first process spent compiling graphs that were not in the NEFF cache."),
    )
    compile_warm_s: float | None = field(
        default=None,
        metadata=_doc("Seconds a process took for the same graphs when all of them were in the NEFF cache."),
    )
    first_token_s: float | None = field(default=None, metadata=_doc("Seconds to the first token, compiled."))
    tokens_per_s: float | None = field(default=None, metadata=_doc("Tokens per second, after compilation."))
    long_tokens: int | None = field(
        default=None, metadata=_doc("Length of the long generation, in tokens; null when none was run.")
    )
    long_reason: str | None = field(
        default=None, metadata=_doc("How the long generation was judged, by the reasons of the list.")
    )
    graphs: int | None = field(
        default=None, metadata=_doc("Graphs that ran as compiled code; null when not counted.")
    )
    recompiles: int | None = field(
        default=None,
        metadata=_doc("Graphs compiled beyond those that one input shape needs; null when not counted."),
    )
    graph_breaks: int | None = field(
        default=None, metadata=_doc("Breaks between graphs; null when not counted.")
    )
    fallback_ops: list[str] | None = field(
        default=None, metadata=_doc("Operators that ran on the CPU instead; null when not counted.")
    )
    bytes_per_core: list[int] | None = field(
        default=None, metadata=_doc("Peak memory of every core, in bytes, in order.")
    )
    neff_modules: list[str] | None = field(
        default=None, metadata=_doc("Names of the compiled graphs in the NEFF cache.")
    )
    neff_hits: int | None = field(
        default=None,
        metadata=_doc("Graphs found in the NEFF cache, by the second process where there was one."),
    )
    log_tail: str | None = field(default=None, metadata=_doc("Last lines of the run's log."))
    tested_at: datetime = field(metadata=_doc("When the run started, in UTC."))
    run_id: str = field(metadata=_doc("Unique name of the run."))
    flaky: bool | None = field(
        default=None,
        metadata=_doc(
            "Whether a second run in a fresh process came to something else; null when there was none."
        ),
    )
    schema_version: int = field(
        default=SCHEMA_VERSION, metadata=_doc("Version of this schema that the row was written with.")
    )

    def __post_init__(self) -> None:
        for name, hint in _row_hints().items():
            object.__setattr__(self, name, _checked(name, hint, getattr(self, name)))
        _check_choice("result", self.result, RESULTS)
        _check_choice(f"reason of a {self.result}", self.reason, REASONS[self.result])
        _check_choice("stage", self.stage, STAGES)
        _check_choice("checkpoint_kind", self.checkpoint_kind, CHECKPOINT_KINDS)
        _check_choice("device_kind", self.device_kind, DEVICE_KINDS)
        for warning in self.warnings:
            _check_choice("warning", warning, WARNINGS)
        if not self.model_id:
            raise InvalidRow("model_id is empty.")
        if not _RUN_ID.fullmatch(self.run_id):
            raise InvalidRow(f"run_id {self.run_id[:120]!r} may hold only letters, digits, '.', '_' and '-'.")

    def to_json(self) -> dict[str, Any]:
        """Give the row as values that strict JSON can hold: NaN and infinities become the strings `NaN`,
        `Infinity` and `-Infinity`, the time an ISO 8601 text."""
        return {name: _to_json(getattr(self, name)) for name in _row_hints()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        """Give back the row that `to_json` wrote.

        Raises `NewerSchema` when a newer trnready wrote it and `InvalidRow` when it is no row.
        """
        if not isinstance(data, dict):
            raise InvalidRow("a row must be a JSON object.")
        version = data.get("schema_version", SCHEMA_VERSION)
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise NewerSchema(
                f"the row has schema version {version} and this trnready reads up to {SCHEMA_VERSION}; "
                "upgrade trnready to read it."
            )
        hints = _row_hints()
        unknown = sorted(set(data) - set(hints))
        if unknown:
            raise InvalidRow(f"unknown column {unknown[0]!r}.")
        missing = sorted(required_columns() - set(data))
        if missing:
            raise InvalidRow(f"the column {missing[0]!r} is missing.")
        return cls(**{name: _from_json(name, hints[name], value) for name, value in data.items()})


Key = tuple[str | int | None, ...]


def key(row: Row) -> Key:
    """Give what two runs must share for the newer one to replace the older."""
    return (
        row.model_id,
        row.revision,
        row.task,
        row.dtype,
        row.neuron_cores,
        row.checkpoint_kind,
        row.neuronx_cc,
        row.library,
        row.library_version,
        row.device_kind,
        row.instance,
    )


def age(row: Row) -> tuple[datetime, str]:
    """Give the order of runs in time; equal times are told apart by run_id, so the order is total."""
    return (row.tested_at, row.run_id)


def required_columns() -> frozenset[str]:
    """Give the names of the columns that every row must state."""
    return frozenset(f.name for f in fields(Row) if f.default is MISSING and f.default_factory is MISSING)


@cache
def _row_hints() -> dict[str, Any]:
    """Give the type of every column, in order; worked out once, since get_type_hints is slow."""
    return get_type_hints(Row)


@cache
def _judge_hints() -> dict[str, Any]:
    return get_type_hints(Judge)


def inner_type(hint: Any) -> tuple[Any, bool]:
    """Split `X | None` into X and True; give anything else with False."""
    if get_origin(hint) in (types.UnionType, Union):
        (inner,) = (arg for arg in get_args(hint) if arg is not type(None))
        return inner, True
    return hint, False


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRow(f"{value[:80]!r} is no {name}; it must be one of {', '.join(allowed)}.")


def _checked(name: str, hint: Any, value: Any) -> Any:
    """Give the value in its canonical form, or raise InvalidRow."""
    inner, optional = inner_type(hint)
    if value is None:
        if optional:
            return None
        raise InvalidRow(f"{name} must not be null.")
    match get_origin(inner) or inner:
        case t if t is list and isinstance(value, list | tuple):
            (item,) = get_args(inner)
            return [_checked(name, item, each) for each in value]
        case t if t is dict and isinstance(value, dict):
            return {_checked(name, str, k): _checked(name, str, value[k]) for k in sorted(value)}
        case t if t is str and isinstance(value, str):
            # A path that is not UTF-8 reaches Python with lone surrogates, which Arrow cannot store.
            return value.encode("utf-8", "replace").decode("utf-8")
        case t if t is bool and isinstance(value, bool):
            return value
        case t if t is int and isinstance(value, int) and not isinstance(value, bool):
            if abs(value) > _INT64_MAX:
                raise InvalidRow(f"{name} does not fit into 64 bits.")
            return value
        case t if t is float and isinstance(value, int | float) and not isinstance(value, bool):
            return _as_float(name, value)
        case t if t is datetime and isinstance(value, datetime):
            if value.tzinfo is None:
                raise InvalidRow(f"{name} has no time zone.")
            return value.astimezone(UTC)
        case t if t is Judge and isinstance(value, Judge):
            return Judge(
                **{n: _checked(f"judge.{n}", h, getattr(value, n)) for n, h in _judge_hints().items()}
            )
    raise InvalidRow(f"{name} has the wrong type: {type(value).__name__}.")


def _as_float(name: str, value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InvalidRow(f"{name} is too large.") from None


def _to_json(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case list():
            return [_to_json(item) for item in value]
        case datetime():
            return value.isoformat()
        case Judge():
            return {name: _to_json(getattr(value, name)) for name in _judge_hints()}
    return value


def _from_json(name: str, hint: Any, value: Any) -> Any:
    """Undo `_to_json`; what has the wrong type passes through and is refused by `_checked`."""
    inner, _ = inner_type(hint)
    if inner is float and isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if get_origin(inner) is list and isinstance(value, list):
        return [_from_json(name, get_args(inner)[0], item) for item in value]
    if inner is datetime and isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            raise InvalidRow(f"{name} {value[:80]!r} is no time.") from None
    if inner is Judge and isinstance(value, dict):
        hints = _judge_hints()
        if set(value) - set(hints) or "model" not in value:
            raise InvalidRow("judge must have the field model, and no unknown ones.")
        return Judge(**{n: _from_json(f"judge.{n}", hints[n], v) for n, v in value.items()})
    return value
