"""Checkpoints in a folder: read and held against themselves before anything is run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trnready.hub.checkpoint import Checkpoint, Layout, NoCheckpoint, NotTestable
from trnready.hub.weights import DamagedWeights, Tensor, Weights, read_weights

NAME_FILE = "trnready.json"
"""Written beside a checkpoint of ours: `{"model_id": …}` is the name it goes by in the dataset."""

SAMPLES = 16
SAMPLE_BYTES = 4096

_CACHED = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})")
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx", "*.h5", "*.msgpack")


PIPELINE_FILE = "model_index.json"
WEIGHTS_OF_A_PART = ("diffusion_pytorch_model", "model")
"""Names under which the parts of a pipeline keep their weights: those of diffusers, and of Transformers."""


def open_folder(folder: Path, layout: Layout = "transformers") -> Checkpoint:
    """Give the checkpoint in a folder whose files lie so.

    Raises `NoCheckpoint` for what is none or is damaged, `NotTestable` for one without safetensors weights.
    """
    folder = folder.absolute()
    if not folder.exists():
        raise NoCheckpoint(f"{folder} does not exist.")
    if not folder.is_dir():
        raise NoCheckpoint(f"{folder} is a file; name the folder that holds the checkpoint.")
    model_id = name_of(folder)
    if layout == "diffusers":
        config, weights = _read_pipeline(folder, model_id)
    else:
        config, weights = read_config(folder), _weights(folder, model_id)
    return Checkpoint(
        model_id=model_id,
        revision=revision_of(config, weights),
        folder=folder,
        source=str(folder),
        source_revision=None,
        config=config,
    )


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """Read a folder's config.json, or the file of that name. Raises `NoCheckpoint`."""
    path = folder / name
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NoCheckpoint(f"{folder} is no checkpoint: it has no {name}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise NoCheckpoint(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise NoCheckpoint(f"{path} is no JSON object.")
    return config


def name_of(folder: Path) -> str:
    """Give the name that a folder's model goes by, never a path: a recorded one, the Hub's for a folder of
    its cache, `org/name` for a folder `org--name`, or else the folder's own."""
    recorded = _recorded_name(folder)
    if recorded is not None:
        return recorded
    cached = _CACHED.search(folder.as_posix())
    if cached is not None:
        return f"{cached['owner']}/{cached['name']}"
    owner, separator, name = folder.name.partition("--")
    return f"{owner}/{name}" if separator and owner and name else folder.name or "model"


def _recorded_name(folder: Path) -> str | None:
    try:
        recorded = json.loads((folder / NAME_FILE).read_bytes())["model_id"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return recorded if isinstance(recorded, str) and recorded else None


def revision_of(config: dict[str, Any], weights: Weights) -> str:
    """Give a name for the content: from the configuration, the headers and sizes of the weights, and samples
    of them, so that large files are told apart without being read whole. Raises `NoCheckpoint`."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    several = len({path.parent for path in weights.headers}) > 1
    try:
        for path, header in weights.headers.items():
            size = path.stat().st_size
            digest.update(f"\0{path.parent.name if several else ''}{path.name}\0{size}\0".encode())
            digest.update(header)
            digest.update(b"".join(_samples(path, size)))
    except OSError as error:
        raise NoCheckpoint(f"{error.filename} cannot be read: {error.strerror}.") from error
    return f"local-{digest.hexdigest()[:16]}"


def _samples(path: Path, size: int) -> Iterable[bytes]:
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(max(size - SAMPLE_BYTES, 0) * number // max(SAMPLES - 1, 1))
            yield file.read(SAMPLE_BYTES)


def _read_pipeline(folder: Path, model_id: str) -> tuple[dict[str, Any], Weights]:
    """Read a pipeline's `model_index.json`, with the configuration of every part in it, and the headers of
    all weights."""
    config = read_config(folder, PIPELINE_FILE)
    headers: dict[Path, bytes] = {}
    tensors: dict[str, Tensor] = {}
    for part in sorted(each.name for each in folder.iterdir() if each.is_dir() and each.name in config):
        if (folder / part / "config.json").is_file():
            config[part] = [config[part], read_config(folder / part)]
        for stem in WEIGHTS_OF_A_PART:
            try:
                found = read_weights(folder / part, stem)
            except DamagedWeights as error:
                raise NoCheckpoint(str(error)) from error
            if found is not None:
                headers |= found.headers
                tensors |= {f"{part}.{name}": each for name, each in found.tensors.items()}
    if not headers:
        raise NotTestable(
            "no_safetensors", f"no part of {model_id} has safetensors weights.", model_id=model_id
        )
    return config, Weights(headers, tensors)


def _weights(folder: Path, model_id: str) -> Weights:
    try:
        weights = read_weights(folder)
    except DamagedWeights as error:
        raise NoCheckpoint(str(error)) from error
    if weights is not None:
        return weights
    others = sorted(path.name for pattern in _OTHER_WEIGHTS for path in folder.glob(pattern))
    if not others:
        raise NoCheckpoint(f"{folder} is no checkpoint: it has a config.json but no weights.")
    raise NotTestable(
        "no_safetensors",
        f"{model_id} has no safetensors weights, only {', '.join(others[:3])}.",
        model_id=model_id,
    )
