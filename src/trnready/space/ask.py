"""What a reader of the Space may ask of its index, and what the answers hold. The pages and the API both
speak in these values; `trnready.space.index` answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from trnready.hub.selected import LeftOut
from trnready.plan.twin_row import TwinRow
from trnready.results.row import DEVICE_KINDS, REASONS, RESULTS
from trnready.space.query import BadQuery
from trnready.space.runs import Run

VIEWS = ("selected", "trending", "downloads", "results")
SORTS = (
    "position",
    "tested_first",
    "name",
    "downloads",
    "trending",
    "likes",
    "parameters",
    "result",
    "cores",
    "wall_time",
    "memory",
    "speed",
    "tested_at",
)
UNTESTED = "untested"
"""Stands for the result of a model that has none."""

MAX_SEARCH = 200
PAGE_SIZE = 50
MAX_PAGE_SIZE = 200
CUTS = (100, 1000)
"""Heads of the Hub's lists whose share is told apart from the whole list's."""

BYTES_PER_PARAMETER = 2
"""A prediction from a parameter count supposes bfloat16."""

View = Literal["selected", "trending", "downloads", "results"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a reader wants to see. None means any.

    `search` holds parts of a name, all of which must be in it. `result` is PASS, FAIL, SKIPPED or `untested`;
    `reason` one of the dataset's. `descending` None takes the direction in which the column is usually read.
    """

    view: View = "selected"
    task: str | None = None
    neuronx_cc: str | None = None
    library: str | None = None
    library_version: str | None = None
    device_kind: str | None = None
    search: str = ""
    result: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    sort: str = "position"
    descending: bool | None = None
    page: int = 1
    page_size: int = PAGE_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What can be said of a model that was not tested. It is no result.

    `twin` is what a shrunk copy of its architecture with random weights did on a software core, None where
    none was run; `split_twin` what one did that was split over several. `quantized` is the kind of
    quantization that its name tells of, which the twin had not. `cores` is the number of Trainium2 cores
    whose memory holds its parameters in bfloat16, None where the count is not known or more than a test uses;
    `weight_bytes` what they need.
    """

    model_type: str | None
    twin: TwinRow | None
    parameters: int | None
    weight_bytes: int | None
    cores: int | None
    instance: str | None
    too_large: bool
    quantized: str | None = None
    split_twin: TwinRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a list: a model doing a task.

    `position` is its place in the list's own order, from 1. `row` is the newest row among those asked for:
    of hardware before software, of the real checkpoint before a twin.
    """

    model_id: str
    task: str
    position: int | None
    downloads: int | None
    trending: float | None
    model_type: str | None
    parameters: int | None
    license: str | None
    gated: str | None
    likes: int | None
    created: str | None
    downloads_position: int | None
    trending_position: int | None
    selected_position: int | None
    why: str | None
    left_out: LeftOut | None
    row: Run | None
    prediction: Prediction | None


@dataclass(frozen=True, slots=True)
class Counts:
    """How many models are in a list, and what is known of them; `tested` is passed and failed. A model
    that is left out on purpose counts as skipped."""

    listed: int
    tested: int
    passed: int
    failed: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a list. `total` is how many match; `counts` are those before the filters by result, reason
    and fingerprint."""

    entries: list[Entry]
    total: int
    counts: Counts
    page: int
    pages: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A version of the compiler and of the library that were tested together on one kind of device."""

    neuronx_cc: str
    library: str
    library_version: str
    device_kind: str
    counts: Counts
    tested_at: datetime


@dataclass(frozen=True, slots=True)
class Share:
    """How much of the head of one of the Hub's lists is covered. `top` is the length of the head, None
    for the whole list; downloads are sums over 30 days. `predicted` counts the models that
    were not tested and whose architecture's twin passed."""

    list: str
    task: str
    top: int | None
    listed: int
    tested: int
    passed: int
    failed: int
    predicted: int
    downloads: int
    tested_downloads: int
    passed_downloads: int
    failed_downloads: int
    predicted_downloads: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """What is known of an architecture doing a task: its twin's outcome, models listed and their downloads,
    and how the real checkpoints that were tested came out."""

    model_type: str
    task: str
    twin: TwinRow | None
    listed: int
    downloads: int
    passed: int
    failed: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of the Hub's lists, and every architecture, most downloaded first."""

    shares: list[Share]
    architectures: list[Architecture]


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Rows that failed alike: with the same fingerprint, or without one for the same reason in the same
    stage. `newest` is the last of them."""

    fingerprint: str | None
    reason: str
    stage: str
    rows: int
    models: list[str]
    newest: Run


ALL_REASONS = tuple(reason for reasons in REASONS.values() for reason in reasons)


def check(ask: Ask) -> None:
    """Raise `BadQuery` for what cannot be answered."""
    if len(ask.search) > MAX_SEARCH:
        raise BadQuery(
            f"The search is {len(ask.search):,} characters long; a model's name needs no more than "
            f"{MAX_SEARCH}."
        )
    _check_choice("view", ask.view, VIEWS)
    _check_choice("order", ask.sort, SORTS)
    _check_choice("result", ask.result, (*RESULTS, UNTESTED))
    _check_choice("reason", ask.reason, ALL_REASONS)
    _check_choice("kind of device", ask.device_kind, DEVICE_KINDS)
    if not 1 <= ask.page_size <= MAX_PAGE_SIZE:
        raise BadQuery(f"A page holds 1 to {MAX_PAGE_SIZE} models, not {ask.page_size}.")


def _check_choice(what: str, value: str | None, allowed: Sequence[str]) -> None:
    if value is not None and value not in allowed:
        shown = value if len(value) <= 40 else value[:40] + "…"
        raise BadQuery(f"There is no {what} {shown!r}; it is one of {', '.join(allowed)}.")
