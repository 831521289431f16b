"""The addresses of the Space's pages: each state of a page is one address, without what is left as it comes.
Templates and routes make them here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlencode

from trnready.results import diff
from trnready.results.diff import Compared, Pair
from trnready.space.natural import natural


def pairs_of(rows: Iterable[Compared]) -> list[Pair]:
    """Give every pair of versions that rows were run with, the newest first."""
    return sorted(
        diff.pairs(rows),
        key=lambda pair: (natural(pair.neuronx_cc), pair.library, natural(pair.library_version)),
        reverse=True,
    )


def words(pair: Pair) -> str:
    """Give a pair for people."""
    return f"neuronx-cc {pair.neuronx_cc}, {pair.library} {pair.library_version}"


def address(path: str, /, **values: object) -> str:
    """Give an address with those of the values that say something, in the order given."""
    return joined(path, values)


def joined(path: str, values: Mapping[str, object]) -> str:
    """Give an address with those of the values that say something, in the order given."""
    said = [(name, str(value)) for name, value in values.items() if value not in (None, "", False)]
    return f"{path}?{urlencode(said)}" if said else path
