"""A checkpoint on disk that a test can run, and the errors for those it cannot. `local`, `remote` and
`packaged` make checkpoints; `trnready.check` runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trnready.errors import TrnreadyError

Layout = Literal["transformers", "sentence-transformers", "diffusers"]
"""How a checkpoint's files lie: one model in one folder; the same, with a folder for each layer after it; or
a `model_index.json` with a folder for each part of the pipeline."""


class NoCheckpoint(TrnreadyError):
    """What was named is no checkpoint that can be read: nothing was run and nothing is recorded."""


class HubUnreachable(TrnreadyError):
    """The Hub does not answer, and the model is not in the local cache."""


class NotTestable(TrnreadyError):
    """The model exists but is not tested, for a reason of the dataset's list of SKIPPED."""

    def __init__(self, reason: str, message: str, *, model_id: str, revision: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.model_id = model_id
        self.revision = revision


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model with its files at hand.

    `model_id` and `revision` name it in the dataset; `source` and `source_revision` are what
    `from_pretrained` is given: a Hub id and commit, or the absolute path of a folder and None."""

    model_id: str
    revision: str
    folder: Path
    source: str
    source_revision: str | None
    config: Mapping[str, Any]

    @property
    def model_type(self) -> str | None:
        """Architecture name in config.json; of a pipeline, the name of its class."""
        found = self.config.get("model_type", self.config.get("_class_name"))
        return found if isinstance(found, str) else None

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer can write a conversation as a prompt."""
        if (self.folder / "chat_template.jinja").is_file():
            return True
        try:
            settings = json.loads((self.folder / "tokenizer_config.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(settings, dict) and bool(settings.get("chat_template"))

    @property
    def architectures(self) -> tuple[str, ...]:
        """Model classes that the checkpoint was saved from, as far as it says."""
        found = self.config.get("architectures")
        return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list) else ()

    @property
    def dtype(self) -> str | None:
        """Torch type that the weights are stored in, as far as config.json says."""
        text = self.config.get("text_config")
        for table in (self.config, text if isinstance(text, dict) else {}):
            for name in ("dtype", "torch_dtype"):
                if isinstance(table.get(name), str):
                    return str(table[name]).removeprefix("torch.")
        return None
