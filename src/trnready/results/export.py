"""Rows as a file for other tools: CSV, JSON or Parquet. `trnready results export` calls it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow.parquet as pq

from trnready.errors import TrnreadyError
from trnready.results.diff import Pair, pair_of
from trnready.results.row import Row
from trnready.results.schema import SCHEMA, to_table


class Format(StrEnum):
    """Kinds of file."""

    csv = "csv"
    json = "json"
    parquet = "parquet"


class NoSuchColumn(TrnreadyError):
    """A column was asked for that no row has."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows: each of the fields that is not None must be what the row says; `model` is a part of the
    model's name."""

    model: str | None = None
    result: str | None = None
    reason: str | None = None
    task: str | None = None
    device_kind: str | None = None
    pair: Pair | None = None

    def of(self, rows: Iterable[Row]) -> list[Row]:
        """Give the rows that are meant."""
        return [row for row in rows if self._means(row)]

    def _means(self, row: Row) -> bool:
        named = ("result", "reason", "task", "device_kind")
        wanted = {name: getattr(self, name) for name in named}
        return (
            (self.model is None or self.model.casefold() in row.model_id.casefold())
            and all(value is None or getattr(row, name) == value for name, value in wanted.items())
            and (self.pair is None or pair_of(row) == self.pair)
        )


def encode(rows: Sequence[Row], columns: Sequence[str], form: Format) -> bytes:
    """Give the rows as a file of this kind. In CSV, lists and structs are JSON and null is an empty field.

    Raises `NoSuchColumn`.
    """
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown:
        raise NoSuchColumn(f"there is no column {unknown[0]!r}; there are {', '.join(SCHEMA.names)}.")
    match form:
        case Format.parquet:
            buffer = io.BytesIO()
            pq.write_table(to_table(list(rows)).select(list(columns)), buffer, compression="zstd")
            return buffer.getvalue()
        case Format.json:
            chosen = [{name: each[name] for name in columns} for each in map(Row.to_json, rows)]
            return json.dumps(chosen, ensure_ascii=False, indent=1).encode()
        case Format.csv:
            text = io.StringIO(newline="")
            writer = csv.writer(text)
            writer.writerow(columns)
            writer.writerows([_cell(each[name]) for name in columns] for each in map(Row.to_json, rows))
            return text.getvalue().encode()


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list() | dict():
            return json.dumps(value, ensure_ascii=False)
    return str(value)
