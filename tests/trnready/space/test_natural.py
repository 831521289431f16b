"""Versions in the order that people read them in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trnready.space.natural import natural

VERSIONS = st.lists(st.integers(min_value=0, max_value=10**6), min_size=1, max_size=4)


def test_numbers_count_as_numbers() -> None:
    names = ["2.27.1", "2.9.0", "soft-0.10.0", "soft-0.2.0", "2.27.1.0", "10.0"]
    assert sorted(names, key=natural) == ["2.9.0", "2.27.1", "2.27.1.0", "10.0", "soft-0.2.0", "soft-0.10.0"]


@given(VERSIONS, VERSIONS)
def test_versions_sort_as_their_parts_do(ours: list[int], theirs: list[int]) -> None:
    one, other = (".".join(map(str, parts)) for parts in (ours, theirs))
    assert (natural(one) < natural(other)) == (ours < theirs)


@given(st.text(), st.text())
def test_any_two_texts_can_be_sorted(one: str, other: str) -> None:
    assert (
        (natural(one) < natural(other)) or (natural(other) < natural(one)) or natural(one) == natural(other)
    )
