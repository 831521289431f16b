"""Which rows a reader asked for. The start page and `/api/models.json` both get their rows from `find`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from trnready.errors import TrnreadyError
from trnready.results.row import DEVICE_KINDS, Row

MAX_QUERY = 200
PAGE_SIZE = 200


class BadQuery(TrnreadyError):
    """A search that cannot be answered; the message is for the reader."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the table: the columns of a row that fit there, and the page with the rest."""

    model_id: str
    url: str
    task: str
    result: str
    reason: str
    warnings: list[str]
    flaky: bool | None
    neuron_cores: int | None
    wall_time_s: float | None
    peak_memory_bytes: int | None
    device_kind: str
    instance: str | None
    checkpoint_kind: str
    dtype: str | None
    neuronx_cc: str
    library: str
    library_version: str
    tested_at: datetime
    run_id: str


@dataclass(frozen=True, slots=True)
class Count:
    """How many of the rows found passed, on one kind of device; the kinds are never added up."""

    device_kind: str
    passed: int
    tested: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of what a search found."""

    query: str
    page: int
    pages: int
    found: int
    total: int
    counts: list[Count]
    models: list[Entry]


def find(rows: Sequence[Row], query: str = "", page: int = 1) -> Listing:
    """Give the rows whose model name holds every word of the query, in order of name, one page of them.

    Raises `BadQuery` when the query is too long or there is no such page.
    """
    if len(query) > MAX_QUERY:
        raise BadQuery(
            f"The search is {len(query):,} characters long; a model's name needs no more than {MAX_QUERY}."
        )
    words = query.casefold().split()
    found = [row for row in rows if all(word in row.model_id.casefold() for word in words)]
    found.sort(key=lambda row: (row.model_id.casefold(), row.model_id, row.device_kind, _newest_first(row)))
    pages = max(1, -(-len(found) // PAGE_SIZE))
    if not 1 <= page <= pages:
        raise BadQuery(f"There is no page {page}; this list has {pages}.")
    shown = found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    return Listing(
        query=query,
        page=page,
        pages=pages,
        found=len(found),
        total=len(rows),
        counts=[_count(kind, found) for kind in DEVICE_KINDS if any(r.device_kind == kind for r in found)],
        models=[_entry(row) for row in shown],
    )


def results_of(rows: Sequence[Row], model_id: str) -> list[Row]:
    """Give every row of one model: hardware before software, then the newest first."""
    found = [row for row in rows if row.model_id == model_id]
    return sorted(found, key=lambda row: (row.device_kind, _newest_first(row)))


def model_url(model_id: str) -> str:
    """Give the address of a model's page. Names with empty or dotted parts, such as those of local folders,
    are written so that no browser takes them for steps up and down the tree."""
    if model_id in (".", ".."):
        return f"/models/?id={model_id}"
    dotted = any(part in ("", ".", "..") for part in model_id.split("/"))
    return "/models/" + quote(model_id, safe="" if dotted else "/")


def _newest_first(row: Row) -> float:
    return -row.tested_at.timestamp()


def _count(kind: str, rows: Sequence[Row]) -> Count:
    results = [row.result for row in rows if row.device_kind == kind]
    passed, failed = results.count("PASS"), results.count("FAIL")
    return Count(kind, passed, passed + failed, len(results) - passed - failed)


def _entry(row: Row) -> Entry:
    return Entry(
        model_id=row.model_id,
        url=model_url(row.model_id),
        task=row.task,
        result=row.result,
        reason=row.reason,
        warnings=row.warnings,
        flaky=row.flaky,
        neuron_cores=row.neuron_cores,
        wall_time_s=row.wall_time_s,
        peak_memory_bytes=row.peak_memory_bytes,
        device_kind=row.device_kind,
        instance=row.instance,
        checkpoint_kind=row.checkpoint_kind,
        dtype=row.dtype,
        neuronx_cc=row.neuronx_cc,
        library=row.library,
        library_version=row.library_version,
        tested_at=row.tested_at,
        run_id=row.run_id,
    )
