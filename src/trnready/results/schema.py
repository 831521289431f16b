"""The Arrow schema of the dataset, made from `Row` so that the two cannot drift apart. The dataset converts
through `to_table` and `from_table`, which check it on write and on read."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, get_args, get_origin, get_type_hints

import pyarrow as pa

from trnready.errors import TrnreadyError
from trnready.results.row import SCHEMA_VERSION, InvalidRow, Judge, NewerSchema, Row, inner_type

VERSION_KEY = b"trnready.schema_version"

_SCALARS: dict[type, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", tz="UTC"),
}


class UnreadableData(TrnreadyError):
    """A file of the dataset is damaged or is something else; it is left as it is."""


def _arrow_type(hint: Any) -> pa.DataType:
    origin, args = get_origin(hint), get_args(hint)
    if origin is list:
        return pa.list_(_arrow_type(args[0]))
    if origin is dict:
        # An Arrow map would be the obvious type, but the Hub's dataset viewer and `load_dataset` refuse maps.
        return pa.list_(pa.struct([pa.field("package", pa.string()), pa.field("version", pa.string())]))
    if hint is Judge:
        hints = get_type_hints(Judge)
        return pa.struct([pa.field(n, _arrow_type(inner_type(h)[0])) for n, h in hints.items()])
    return _SCALARS[hint]


def _schema() -> pa.Schema:
    hints = get_type_hints(Row)
    columns = []
    for column in fields(Row):
        inner, optional = inner_type(hints[column.name])
        doc = {"description": column.metadata["doc"]}
        columns.append(pa.field(column.name, _arrow_type(inner), nullable=optional, metadata=doc))
    return pa.schema(columns, metadata={VERSION_KEY: str(SCHEMA_VERSION), b"pandas": _pandas_types(columns)})


def _pandas_types(columns: list[pa.Field]) -> str:
    """Give the note that makes pandas show a null count as <NA> and keep the other counts integers."""
    names = {pa.int64(): "Int64", pa.bool_(): "boolean"}
    nullable = [
        {
            "name": column.name,
            "field_name": column.name,
            "pandas_type": str(column.type),
            "numpy_type": names[column.type],
            "metadata": None,
        }
        for column in columns
        if column.nullable and column.type in names
    ]
    note = {"index_columns": [], "column_indexes": [], "columns": nullable, "pandas_version": "2.2"}
    return json.dumps(note)


SCHEMA: pa.Schema = _schema()


def to_table(rows: list[Row]) -> pa.Table:
    """Give the rows as a table of `SCHEMA`."""
    arrays = []
    for column in SCHEMA:
        values = [getattr(row, column.name) for row in rows]
        if column.name == "versions":
            values = [[{"package": k, "version": v} for k, v in value.items()] for value in values]
        elif pa.types.is_struct(column.type):
            names = [f.name for f in column.type]
            values = [v and {name: getattr(v, name) for name in names} for v in values]
        arrays.append(pa.array(values, type=column.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def check_schema(schema: pa.Schema, name: str) -> None:
    """Raise `NewerSchema` or `UnreadableData` unless the file called `name` can be read."""
    version = (schema.metadata or {}).get(VERSION_KEY, b"")
    if not version.isdigit():
        raise UnreadableData(f"{name} is no results file of trnready; move it away to go on.")
    if int(version) > SCHEMA_VERSION:
        raise NewerSchema(
            f"{name} was written by a newer trnready (schema version {int(version)}, this one reads up to "
            f"{SCHEMA_VERSION}); upgrade trnready to use this folder. The file was left as it is."
        )
    if not schema.equals(SCHEMA, check_metadata=False):
        raise UnreadableData(f"{name} does not have the columns of a results file; move it away to go on.")


def from_table(table: pa.Table, name: str) -> list[Row]:
    """Give the rows of the file called `name`. Raises `NewerSchema` or `UnreadableData`."""
    check_schema(table.schema, name)
    columns = {column: table.column(column).to_pylist() for column in SCHEMA.names}
    columns["versions"] = [{v["package"]: v["version"] for v in value} for value in columns["versions"]]
    columns["judge"] = [judge and Judge(**judge) for judge in columns["judge"]]
    columns["tested_at"] = [time.astimezone(UTC) for time in columns["tested_at"]]
    try:
        return [
            Row(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)
        ]
    except InvalidRow as error:
        raise UnreadableData(f"{name} holds a row that no run can have produced: {error}") from error
