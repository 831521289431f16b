"""From what a person names, a path or a Hub id, to a checkpoint."""

from __future__ import annotations

from pathlib import Path

from trnready.hub import local, remote
from trnready.hub.checkpoint import Checkpoint, Layout, NoCheckpoint


def resolve(name: str, layout: Layout = "transformers") -> Checkpoint:
    """Give the checkpoint of this name, whose files lie so: a folder if there is one, else the Hub's model.

    Raises what `local.open_folder` and `remote.fetch` raise, and `NoCheckpoint` for a name that is neither.
    """
    path = Path(name).expanduser()
    if _exists(path) or name.startswith(("/", ".", "~")) or not remote.is_model_id(name):
        if "\0" in name or not name.strip():
            raise NoCheckpoint("the model's name is empty or has characters that no name may have.")
        return local.open_folder(path, layout)
    return remote.fetch(name, layout=layout)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
