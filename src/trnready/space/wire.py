"""What the API sends: the index's values without what only pages need. `trnready.space.api` fills these in;
their names and types are the API's contract, version 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

from pydantic import Field, WithJsonSchema, create_model

from trnready.hub.selected import LeftOut
from trnready.plan.twin_row import TwinRow
from trnready.results import diff
from trnready.results.row import Judge, Row
from trnready.space.answer import Word, answer, foretold
from trnready.space.ask import (
    Architecture,
    Ask,
    Counts,
    Coverage,
    Entry,
    FailureGroup,
    Listing,
    Prediction,
    Share,
)
from trnready.space.runs import Run
from trnready.space.sources import AboutCatalog

NonFinite = Annotated[
    float,
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}),
]
"""A number of a row; those that JSON has no word for are texts."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a question was not answered, in a sentence."""

    error: str


@dataclass(frozen=True, slots=True)
class Twin:
    """What a shrunk copy of an architecture with random weights did on one software core. `proves` says
    whether losing any of its parts would have been noticed."""

    result: str
    reason: str
    stage: str
    error: str | None
    score: float | None
    parameters: int | None
    proves: bool


@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction, which is no result: its ground, and the cores whose memory holds the parameters in
    bfloat16. `quantized` is the kind that the model's name tells of; the twin had none."""

    sentence: str
    model_type: str | None
    twin: Twin | None
    cores: int | None
    instance: str | None
    weight_bytes: int | None
    too_large: bool
    quantized: str | None


@dataclass(frozen=True, slots=True)
class Line:
    """One model of a list. `row` is the newest of those asked for, null where the model was not tested."""

    model_id: str
    task: str
    position: int | None
    downloads: int | None
    trending: float | None
    likes: int | None
    model_type: str | None
    parameters: int | None
    license: str | None
    gated: str | None
    created: str | None
    left_out: LeftOut | None
    row: Run | None
    prediction: Forecast | None


@dataclass(frozen=True, slots=True)
class Lines:
    """One page of a list. `total` is how many match; `counts` are those before the filters by result, reason
    and fingerprint."""

    total: int
    page: int
    pages: int
    counts: Counts
    models: list[Line]


@dataclass(frozen=True, slots=True)
class Model:
    """Whether a model runs. `answer` is yes or no only where a test or what ruled the model out says so;
    `result` and what follows are those of its newest row, null where it was not tested."""

    model_id: str
    task: str
    answer: Word
    sentence: str
    result: str | None
    reason: str | None
    warnings: list[str]
    flaky: bool | None
    device_kind: str | None
    neuron_cores: int | None
    instance: str | None
    wall_time_s: float | None
    peak_memory_bytes: int | None
    tokens_per_s: float | None
    neuronx_cc: str | None
    library: str | None
    library_version: str | None
    checkpoint_kind: str | None
    tested_at: datetime | None
    run_id: str | None
    left_out: LeftOut | None
    prediction: Forecast | None
    page: str


@dataclass(frozen=True, slots=True)
class Kind:
    """An architecture doing a task: what its twin did, models listed, their downloads of 30 days, and how the
    real checkpoints that were tested came out."""

    model_type: str
    task: str
    twin: Twin | None
    listed: int
    downloads: int
    passed: int
    failed: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Covered:
    """How much of the Hub's lists is covered, and every architecture, most downloaded first."""

    shares: list[Share]
    architectures: list[Kind]


@dataclass(frozen=True, slots=True)
class Group:
    """Failures that are alike, their models, and the newest of them."""

    fingerprint: str | None
    reason: str
    stage: str
    rows: int
    models: list[str]
    newest: Run


@dataclass(frozen=True, slots=True)
class Versions:
    """A version of the compiler and one of the library."""

    neuronx_cc: str
    library: str
    library_version: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One model whose result is another, or that only one side tested; null on a side without a row."""

    kind: str
    model_id: str
    task: str
    before: Run | None
    after: Run | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two pairs of versions on one kind of device; null where there are fewer than two pairs. `counts` also
    tells how many still pass."""

    before: Versions | None
    after: Versions | None
    device_kind: str | None
    counts: dict[str, int]
    total: int
    page: int
    pages: int
    changes: list[Difference]


@dataclass(frozen=True, slots=True)
class About:
    """What there is: tasks, lists and their sources, what every word means, and what cannot be read."""

    tasks: list[str]
    catalogs: list[AboutCatalog]
    rows: int
    results: dict[str, str]
    reasons: dict[str, str]
    warnings: dict[str, str]
    stages: dict[str, str]
    notices: list[str]


def line(entry: Entry) -> Line:
    """Give a model of a list."""
    taken = {each.name: getattr(entry, each.name) for each in fields(Line) if each.name != "prediction"}
    return Line(**taken, prediction=_forecast(entry.prediction))


def lines(listing: Listing) -> Lines:
    """Give a page of a list."""
    models = [line(each) for each in listing.entries]
    return Lines(listing.total, listing.page, listing.pages, listing.counts, models)


def model(entry: Entry, asked: Ask, page: str) -> Model:
    """Give whether a model runs; `page` is the address of its page."""
    said, row = answer(entry, asked), entry.row
    names = (
        "result", "reason", "flaky", "device_kind", "neuron_cores", "instance", "wall_time_s",
        "peak_memory_bytes", "tokens_per_s", "neuronx_cc", "library", "library_version", "checkpoint_kind",
        "tested_at", "run_id",
    )  # fmt: skip
    return Model(
        model_id=entry.model_id,
        task=entry.task,
        answer=said.word,
        sentence=said.sentence,
        warnings=[] if row is None else row.warnings,
        **{name: None if row is None else getattr(row, name) for name in names},
        left_out=entry.left_out,
        prediction=None if row is not None else _forecast(entry.prediction),
        page=page,
    )


def coverage(found: Coverage) -> Covered:
    """Give shares and architectures."""
    return Covered(found.shares, [_kind(each) for each in found.architectures])


def group(found: FailureGroup) -> Group:
    """Give failures that are alike."""
    return Group(**{each.name: getattr(found, each.name) for each in fields(Group)})


def versions(pair: diff.Pair | None) -> Versions | None:
    """Give a pair of versions."""
    return None if pair is None else Versions(pair.neuronx_cc, pair.library, pair.library_version)


def change(kind: str, found: diff.Change) -> Difference:
    """Give a model whose result is another. Both sides come from the index, so they are runs."""
    return Difference(
        kind,
        found.row.model_id,
        found.row.task,
        cast("Run | None", found.before),
        cast("Run | None", found.after),
    )


def _kind(found: Architecture) -> Kind:
    taken = {each.name: getattr(found, each.name) for each in fields(Kind) if each.name != "twin"}
    return Kind(**taken, twin=_twin(found.twin))


def _forecast(prediction: Prediction | None) -> Forecast | None:
    if prediction is None:
        return None
    return Forecast(
        sentence=foretold(prediction),
        model_type=prediction.model_type,
        twin=_twin(prediction.twin),
        cores=prediction.cores,
        instance=prediction.instance,
        weight_bytes=prediction.weight_bytes,
        too_large=prediction.too_large,
        quantized=prediction.quantized,
    )


def _twin(found: TwinRow | None) -> Twin | None:
    if found is None:
        return None
    return Twin(
        result=found.result,
        reason=found.reason,
        stage=found.stage,
        error=found.error,
        score=found.score if isinstance(found.score, int | float) else None,
        parameters=found.parameters,
        proves=found.counts,
    )


def _of_row(hint: Any) -> Any:
    """Give the type of a row's column as the API sends it."""
    if hint is float:
        return NonFinite
    if hint is Judge:
        return create_model("Judge", **_columns(Judge))
    arguments = get_args(hint)
    if not arguments:
        return hint
    inner = tuple(_of_row(each) for each in arguments)
    origin = get_origin(hint)
    return origin[inner] if origin in (list, dict) else _either(inner)


def _either(kinds: Sequence[Any]) -> Any:
    found = kinds[0]
    for each in kinds[1:]:
        found = found | each
    return found


def _columns(of: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(of)
    return {
        each.name: (_of_row(hints[each.name]), Field(description=each.metadata.get("doc")))
        for each in fields(of)
    }


WholeRow = create_model(
    "Row",
    __doc__="A row of the dataset, whole; its columns are those of the dataset's card.",
    **_columns(Row),
)
"""The type of a whole row, made from the dataset's own columns so that the two cannot drift apart."""
