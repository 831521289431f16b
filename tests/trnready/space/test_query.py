"""Searching: part of a name finds a model, and counts never add up hardware and software."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.space import query
from trnready.space.query import Count


def test_part_of_a_name_finds_a_model_whatever_its_case(example_rows) -> None:
    found = query.find(example_rows, "ODD words")
    assert [entry.model_id for entry in found.models] == ["acme/odd-words-3b"]
    assert (found.found, found.total) == (1, len(example_rows))
    assert query.find(example_rows, "no such").models == []


def test_counts_have_denominators_and_keep_the_devices_apart(example_rows) -> None:
    assert query.find(example_rows).counts == [
        Count("hardware", passed=1, tested=1, skipped=0),
        Count("software", passed=2, tested=5, skipped=1),
    ]


def test_long_lists_come_in_pages(make_row) -> None:
    rows = [make_row(model_id=f"m/{i:04}") for i in range(query.PAGE_SIZE + 5)]
    last = query.find(rows, "m/", 2)
    assert (last.pages, len(last.models), last.models[0].model_id) == (2, 5, f"m/{query.PAGE_SIZE:04}")
    for page in (0, 3):
        with pytest.raises(query.BadQuery, match=f"There is no page {page}; this list has 2"):
            query.find(rows, "", page)


def test_endless_query_is_refused(example_rows) -> None:
    with pytest.raises(query.BadQuery, match="10,000 characters long"):
        query.find(example_rows, "a" * 10_000)


def test_hardware_comes_first_then_the_newest(example_rows) -> None:
    assert [row.run_id for row in query.results_of(example_rows, "acme/broken-7b")] == [
        "run-hardware",
        "run-wrong",
    ]


@given(st.text(min_size=1))
def test_every_name_has_an_address_that_leads_back_to_it(name: str) -> None:
    parts = urlsplit(query.model_url(name))
    if parts.query:
        assert parts.path == "/models/"
        assert parts.query == f"id={name}"
    else:
        assert unquote(parts.path.removeprefix("/models/")) == name
        assert not {"", ".", ".."} & set(parts.path.split("/")[1:])


def test_usual_names_have_readable_addresses() -> None:
    assert query.model_url("Qwen/Qwen3-0.6B") == "/models/Qwen/Qwen3-0.6B"
