"""The order of versions and names as people read them: 2.9 before 2.10. Lists of versions and the charts over
versions sort by it."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"([0-9]+)")

Key = tuple[tuple[int, str], ...]


def natural(text: str) -> Key:
    """Give a key that sorts runs of digits by their number, and everything else by its letters."""
    parts = _DIGITS.split(text)
    # A number without leading zeros is larger the longer it is; no int is made, whose digits are limited.
    numbers = ((len(part.lstrip("0")), part.lstrip("0")) for part in parts[1::2])
    between = ((0, part) for part in parts[::2])
    return tuple(key for pair in zip(between, (*numbers, (0, "")), strict=True) for key in pair)
