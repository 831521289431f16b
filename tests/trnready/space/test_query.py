"""The addresses of models' pages."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from hypothesis import given
from hypothesis import strategies as st

from trnready.space import query


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
