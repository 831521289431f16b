"""The Hub's models of a task, as one Parquet file a task: facts of each model and its place in the Hub's own
orders. `trnready catalog refresh` writes these files; the Space's index reads them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trnready import parquet
from trnready.errors import TrnreadyError

FOLDER = "catalog"
UNKNOWN_TASK = "unknown"
"""Task of models for which the Hub names none: listed, not dropped."""

SCHEMA_VERSION = 1
_VERSION = b"trnready.catalog_version"
_NOTES = (b"trnready.source", b"trnready.downloads_at", b"trnready.trending_at")

SCHEMA = pa.schema(
    [
        pa.field("model_id", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("model_type", pa.string()),
        pa.field("parameters", pa.int64()),
        pa.field("license", pa.string()),
        pa.field("gated", pa.string()),
        pa.field("likes", pa.int64()),
        pa.field("created", pa.date32()),
        pa.field("downloads", pa.int64()),
        pa.field("downloads_position", pa.int32()),
        pa.field("trending_score", pa.float64()),
        pa.field("trending_position", pa.int32()),
    ]
)


class UnreadableCatalog(TrnreadyError):
    """A catalog file is damaged, is something else, or was written by a newer trnready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One model of a catalog. `gated` is `no`, `auto` or `manual` (how its terms are
    accepted), None where not known; positions count from 1, and are None where
    the model is not in that order. `downloads` are those of 30 days."""

    model_id: str
    task: str
    model_type: str | None = None
    parameters: int | None = None
    license: str | None = None
    gated: str | None = None
    likes: int | None = None
    created: date | None = None
    downloads: int | None = None
    downloads_position: int | None = None
    trending_score: float | None = None
    trending_position: int | None = None


@dataclass(frozen=True, slots=True)
class About:
    """Where a catalog comes from, and when each order was taken: an ISO 8601 time, as exact as it is known
    (`2026-10`); None where the catalog has no such order."""

    source: str
    downloads_at: str | None
    trending_at: str | None


@dataclass(frozen=True, slots=True)
class Catalog:
    """A task's models as a table of `SCHEMA`."""

    about: About
    table: pa.Table


def files(folder: Path) -> list[Path]:
    """Give the catalogs of a folder, in order of name."""
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))


def read(path: Path) -> Catalog:
    """Read one catalog. Raises `UnreadableCatalog`."""
    try:
        with parquet.opened(path) as file:
            table = file.read()
    except (OSError, pa.ArrowException) as error:
        raise UnreadableCatalog(
            f"{path} is damaged and cannot be read; `trnready catalog refresh` makes it anew."
        ) from error
    notes = table.schema.metadata or {}
    version = notes.get(_VERSION, b"")
    if not version.isdigit():
        raise UnreadableCatalog(f"{path} is no catalog of trnready.")
    if int(version) > SCHEMA_VERSION:
        raise UnreadableCatalog(f"{path} was written by a newer trnready; upgrade trnready to read it.")
    if not table.schema.equals(SCHEMA, check_metadata=False):
        raise UnreadableCatalog(f"{path} does not have the columns of a catalog.")
    source, *times = (notes[name].decode() if name in notes else None for name in _NOTES)
    about = About(source or "", *times)
    return Catalog(about, table)


def encode(about: About, models: Sequence[Listed]) -> bytes:
    """Give the content of a catalog's file."""
    arrays = [pa.array([getattr(each, f.name) for each in models], type=f.type) for f in SCHEMA]
    said = zip(_NOTES, (about.source, about.downloads_at, about.trending_at), strict=True)
    notes = {_VERSION: str(SCHEMA_VERSION)} | {name: value for name, value in said if value is not None}
    table = pa.Table.from_arrays(arrays, schema=SCHEMA.with_metadata(notes))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=19)
    return buffer.getvalue()


def models(catalog: Catalog) -> list[Listed]:
    """Give the models of a catalog as values."""
    names = [each.name for each in fields(Listed)]
    columns = [catalog.table.column(name).to_pylist() for name in names]
    return [Listed(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]
