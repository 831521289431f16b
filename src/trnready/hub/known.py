"""Configurations of well-known models that trnready carries, so that they can be planned without the Hub.
Facts of the models' own config.json files; the file names where each was found. `description` looks here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

FILE = "known_models.json"


@dataclass(frozen=True, slots=True)
class Known:
    """A carried model. `parameters` is the count of what Transformers builds, each tied one once; `stored`
    the Hub's count for the files, None where it is not known, and `why_stored` says why the two differ."""

    model_id: str
    auto_class: str
    config: Mapping[str, Any]
    parameters: int
    stored: int | None
    why_stored: str

    def notes(self) -> tuple[str, ...]:
        """Give what to say beside a plan of it."""
        if self.stored is None or self.stored == self.parameters or not self.why_stored:
            return ()
        return (self.why_stored,)


def find(name: str) -> Known | None:
    """Give the carried model of this name, whatever its capitals, or None."""
    return _by_lower_name().get(name.lower())


def all_known() -> tuple[Known, ...]:
    """Give every carried model."""
    return tuple(_by_lower_name().values())


@cache
def _by_lower_name() -> Mapping[str, Known]:
    table = json.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))["models"]
    return {name.lower(): Known(model_id=name, **facts) for name, facts in table.items()}
