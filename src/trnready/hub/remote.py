"""Models of the Hub, brought to the local cache by `huggingface_hub`, which honours HF_ENDPOINT,
HF_HUB_OFFLINE and the user's login."""

from __future__ import annotations

import re
from pathlib import Path

from trnready.errors import TrnreadyError
from trnready.hub.checkpoint import Checkpoint, HubUnreachable, Layout, NoCheckpoint, NotTestable
from trnready.hub.local import open_folder

FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
"""What a test needs of a repository: weights, configuration, tokenizer."""

ALLOWED: dict[Layout, list[str]] = {
    "transformers": FILES,
    "sentence-transformers": FILES,
    "diffusers": ["model_index.json", *(f"*/{each}" for each in FILES)],
}
LEFT_OUT: dict[Layout, list[str]] = {
    "transformers": ["*/*", "consolidated*"],
    "sentence-transformers": ["*/*/*", "onnx/*", "openvino/*", "consolidated*"],
    "diffusers": ["*/*/*", "*.fp16.*", "*.bf16.*", "*.non_ema.*"],
}
"""Copies of the weights in other formats and types, and what is no part of the model."""

_ID = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?")


def is_model_id(name: str) -> bool:
    """Say whether the Hub could have a model of this name."""
    return _ID.fullmatch(name) is not None and "--" not in name and ".." not in name


def fetch(model_id: str, revision: str | None = None, layout: Layout = "transformers") -> Checkpoint:
    """Bring a model, whose files lie so, to the local cache and give it as a checkpoint.

    Raises `NoCheckpoint` when the Hub has none of that name or its files are damaged, `HubUnreachable` when
    neither the Hub nor the cache has an answer, `NotTestable` for gated models and those without safetensors.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = HfApi().model_info(model_id, revision=revision)
        names = [each.rfilename for each in info.siblings or []]
        commit = info.sha or revision
        if not any(_holds_weights(name, layout) for name in names):
            raise NotTestable(
                "no_safetensors",
                f"{model_id} has no safetensors weights on the Hub.",
                model_id=model_id,
                revision=commit,
            )
        # By the branch, not the commit: the cache then notes where the branch stands, for a day offline.
        folder = snapshot_download(
            model_id, revision=revision, allow_patterns=ALLOWED[layout], ignore_patterns=LEFT_OUT[layout]
        )
    except GatedRepoError:
        raise NotTestable(
            "gated",
            f"{model_id} is gated: accept its terms on the Hub and log in with `hf auth login`.",
            model_id=model_id,
        ) from None
    except RevisionNotFoundError:
        raise NoCheckpoint(f"{model_id} has no revision {revision!r} on the Hub.") from None
    except RepositoryNotFoundError:
        raise NoCheckpoint(
            f"there is neither a folder nor, for you, a model on the Hub called {model_id} "
            "(a private one needs `hf auth login`)."
        ) from None
    except TrnreadyError:
        raise
    except Exception as error:
        # Whatever else went wrong on the way, in whichever HTTP library: the cache may have the model.
        return _from_cache(model_id, revision, layout, error)
    return _checkpoint(model_id, Path(folder), layout)


def _holds_weights(name: str, layout: Layout) -> bool:
    return name.endswith(".safetensors") and ("/" in name) == (layout == "diffusers")


def _from_cache(model_id: str, revision: str | None, layout: Layout, cause: Exception) -> Checkpoint:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        folder = snapshot_download(model_id, revision=revision, local_files_only=True)
    except Exception:
        offline = isinstance(cause, OfflineModeIsEnabled)
        why = "HF_HUB_OFFLINE is set" if offline else f"the Hub does not answer ({_first_line(cause)})"
        raise HubUnreachable(f"{why}, and {model_id} is not in the local cache.") from cause
    return _checkpoint(model_id, Path(folder), layout)


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _checkpoint(model_id: str, folder: Path, layout: Layout) -> Checkpoint:
    """The snapshot's folder is named by its commit."""
    opened = open_folder(folder, layout)
    return Checkpoint(
        model_id=model_id,
        revision=folder.name,
        folder=folder,
        source=model_id,
        source_revision=folder.name,
        config=opened.config,
    )
