"""Rows as CSV, JSON and Parquet."""

from __future__ import annotations

import csv
import io
import json

import pandas as pd
import pyarrow.parquet as pq
import pytest

from trnready.results.diff import pair_of
from trnready.results.export import Format, NoSuchColumn, Selection, encode
from trnready.results.schema import SCHEMA, from_table

COLUMNS = ["model_id", "score", "graphs", "versions", "flaky"]


@pytest.fixture
def rows(make_row):
    return [
        make_row(score=0.5, versions={"torch": "2.13.0"}, flaky=False, text='a "b",\nc'),
        make_row(model_id="Other/Thing", result="FAIL", reason="crash", graphs=0, library_version="5.23.0"),
    ]


def test_csv_tells_null_from_nought_and_holds_lists_as_json(rows):
    text = encode(rows, [*COLUMNS, "text"], Format.csv).decode()
    head, first, second = csv.reader(io.StringIO(text, newline=""))
    assert head == [*COLUMNS, "text"]
    assert first == ["acme/tiny-1b", "0.5", "", '{"torch": "2.13.0"}', "false", 'a "b",\nc']
    assert second == ["Other/Thing", "", "0", "{}", "", ""]


def test_json_holds_the_columns_as_the_rows_say_them(rows):
    found = json.loads(encode(rows, COLUMNS, Format.json))
    assert found == [{name: row.to_json()[name] for name in COLUMNS} for row in rows]


def test_parquet_is_read_back_whole_or_in_part(rows):
    whole = encode(rows, SCHEMA.names, Format.parquet)
    assert from_table(pq.read_table(io.BytesIO(whole)), "it") == rows
    part = pd.read_parquet(io.BytesIO(encode(rows, ["model_id", "graphs"], Format.parquet)))
    assert part.model_id.tolist() == ["acme/tiny-1b", "Other/Thing"]
    assert part.graphs.isna().tolist() == [True, False]


def test_an_unknown_column_is_named_with_those_there_are(rows):
    with pytest.raises(NoSuchColumn, match="there is no column 'colour'; there are model_id, revision"):
        encode(rows, ["colour"], Format.csv)


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (Selection(), [0, 1]),
        (Selection(model="other"), [1]),
        (Selection(result="FAIL", reason="crash"), [1]),
        (Selection(result="FAIL", reason="timeout"), []),
        (Selection(device_kind="hardware"), []),
        (Selection(task="text-generation"), [0, 1]),
    ],
)
def test_a_selection(rows, selection, chosen):
    assert selection.of(rows) == [rows[index] for index in chosen]
    assert Selection(pair=pair_of(rows[1])).of(rows) == [rows[1]]
