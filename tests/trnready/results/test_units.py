"""Numbers with their units."""

from __future__ import annotations

import pytest

from trnready.results import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not reported"),
        (0.0, "0.00 s"),
        (0.4249, "0.42 s"),
        (41.5, "41.5 s"),
        (99.9, "99.9 s"),
        (99.96, "1 min 40 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7800, "2 h 10 min"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not reported"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (314572800, "300.0 MiB"),
        (2**30 - 1, "1.0 GiB"),
        (96 * 2**30, "96.0 GiB"),
        (3 * 2**40, "3.0 TiB"),
    ],
)
def test_size(value: int | None, text: str) -> None:
    assert units.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not reported"),
        (0, "0"),
        (999, "999"),
        (999.6, "1.00 k"),
        (12_345, "12.3 k"),
        (99_960, "100 k"),
        (751_632_384, "752 M"),
        (9_994_000, "9.99 M"),
        (116_829_156_672, "117 B"),
        (1_198_000_000_000, "1198 B"),
    ],
)
def test_short_counts(value: float | None, text: str) -> None:
    assert units.short(value) == text


def test_counts_and_rates() -> None:
    assert [units.count(n, "core") for n in (None, 0, 1, 1234)] == [
        "not reported",
        "0 cores",
        "1 core",
        "1,234 cores",
    ]
    assert units.count(12345) == "12,345"
    assert units.rate(12.345) == "12.3 tokens/s"
    assert units.rate(None) == "not reported"
