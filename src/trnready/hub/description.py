"""What can be known of a model without its weights: config.json and the headers of its safetensors files,
from a folder, from the Hub, or from the configurations that trnready carries. `trnready.plan` is made from
it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trnready.hub import known
from trnready.hub.checkpoint import HubUnreachable, NoCheckpoint, NotTestable
from trnready.hub.local import name_of, read_config
from trnready.hub.remote import is_model_id
from trnready.hub.weights import DamagedWeights, read_weights

WAITS_S = (0.5, 2.0)
"""Pauses before the Hub is asked again after it did not answer."""

OTHER_WEIGHTS = {
    ".gguf": "GGUF", ".onnx": "ONNX", ".bin": "pickled PyTorch", ".pt": "pickled PyTorch",
    ".pth": "pickled PyTorch", ".h5": "TensorFlow", ".msgpack": "Flax", ".npz": "MLX or NumPy",
}  # fmt: skip

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a safetensors file."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """A model as far as it is known without weights. `source` is `folder`, `hub`, `cache` or `carried`;
    `tensors` is None where no header was read; `auto_class` where the source names it."""

    model_id: str
    revision: str | None
    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Stored] | None = None
    auto_class: str | None = None
    notes: tuple[str, ...] = ()


def describe(name: str, *, ask_hub: bool = False) -> Description:
    """Give what is known of the model of this name: a folder, one that trnready carries (unless `ask_hub`),
    or one of the Hub.

    Raises `NotTestable` with the reason for a model that cannot be planned, `NoCheckpoint` for a name that is
    none, `HubUnreachable` when neither the Hub nor the cache has an answer.
    """
    path = Path(name).expanduser()
    try:
        is_folder = path.exists()
    except (OSError, ValueError):
        is_folder = False
    if is_folder or name.startswith(("/", ".", "~")):
        return from_folder(path)
    if not is_model_id(name):
        raise NoCheckpoint(f"{_shown(name)} is neither a folder nor a name that a model on the Hub can have.")
    carried = None if ask_hub else known.find(name)
    if carried is not None:
        return Description(
            carried.model_id,
            None,
            "carried",
            carried.config,
            auto_class=carried.auto_class,
            notes=carried.notes(),
        )
    return from_hub(name)


def from_folder(folder: Path) -> Description:
    """Describe a folder; weights need not be in it."""
    folder = folder.absolute()
    if not folder.exists():
        raise NoCheckpoint(f"{folder} does not exist.")
    if not folder.is_dir():
        raise NoCheckpoint(f"{folder} is a file; name the folder that holds the checkpoint.")
    model_id = name_of(folder)
    names = [each.name for each in folder.iterdir()]
    if "config.json" not in names:
        _refuse_other_weights(model_id, None, names)
    config = read_config(folder)
    tensors = _folder_tensors(folder, model_id)
    if tensors is None:
        _refuse_other_weights(model_id, None, names)
    return Description(model_id, None, "folder", config, tensors)


def from_hub(model_id: str) -> Description:
    """Describe a model of the Hub, from its cached files where the Hub does not answer."""
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError

    try:
        info = _patiently(lambda: HfApi().model_info(model_id, timeout=10))
        names = [each.rfilename for each in info.siblings or []]
        if "config.json" not in names:
            _refuse_other_weights(model_id, info.sha, names)
        # By the branch, not the commit: the cache then notes where the branch stands, for a day offline.
        config_path = _patiently(lambda: hf_hub_download(model_id, "config.json"))
        config = _read_json(Path(config_path), model_id, info.sha)
        if not any(each.endswith(".safetensors") for each in names):
            _refuse_other_weights(model_id, info.sha, names)
            raise NotTestable("no_safetensors", f"{model_id} has no weights.", model_id=model_id)
        tensors = _hub_tensors(model_id, info.sha)
    except GatedRepoError:
        raise NotTestable(
            "gated",
            f"{model_id} is gated: accept its terms on the Hub and log in with `hf auth login`.",
            model_id=model_id,
        ) from None
    except RepositoryNotFoundError:
        raise NotTestable(
            "not_found",
            f"the Hub has, for you, no model called {model_id} (a private one needs `hf auth login`).",
            model_id=model_id,
        ) from None
    except EntryNotFoundError:
        raise NotTestable(
            "invalid_config",
            f"{model_id} has no config.json, or its index of weights names a file that is not there.",
            model_id=model_id,
        ) from None
    except (NotTestable, NoCheckpoint):
        raise
    except Exception as error:
        return _from_cache(model_id, error)
    renamed = () if info.id.lower() == model_id.lower() else (f"{model_id} is called {info.id} now.",)
    return Description(info.id, info.sha, "hub", config, tensors, notes=renamed)


def _patiently(question: Callable[[], Result]) -> Result:
    """Ask, and ask again after a pause while there is no answer; what the Hub refuses is an answer."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    for wait in WAITS_S:
        try:
            return question()
        except OfflineModeIsEnabled:
            raise
        except HfHubHTTPError as error:
            status = getattr(error.response, "status_code", 0)
            if status != 429 and status < 500:
                raise
        except Exception as error:
            if not _is_transport(error):
                raise
        time.sleep(wait)
    return question()


def _is_transport(error: Exception) -> bool:
    """Say whether an error came from the way to the Hub, whichever HTTP library made it."""
    modules = {each.__module__.partition(".")[0].rstrip("0123456789") for each in type(error).__mro__}
    return bool(modules & {"httpx", "httpcore", "requests"}) or isinstance(error, OSError | TimeoutError)


def _from_cache(model_id: str, cause: Exception) -> Description:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        path = Path(hf_hub_download(model_id, "config.json", local_files_only=True))
    except Exception:
        offline = isinstance(cause, OfflineModeIsEnabled)
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        why = "HF_HUB_OFFLINE is set" if offline else f"the Hub does not answer ({lines[0]})"
        raise HubUnreachable(f"{why}, and {model_id} is not in the local cache.") from cause
    config = _read_json(path, model_id, path.parent.name)
    return Description(model_id, path.parent.name, "cache", config, _folder_tensors(path.parent, model_id))


def _folder_tensors(folder: Path, model_id: str) -> dict[str, Stored] | None:
    try:
        weights = read_weights(folder)
    except DamagedWeights as error:
        if folder.parent.name == "snapshots":
            # The cache may hold the index without the weights it names.
            return None
        raise NotTestable("invalid_config", str(error), model_id=model_id) from error
    if weights is None:
        return None
    return {name: Stored(each.dtype, each.shape) for name, each in weights.tensors.items()}


def _hub_tensors(model_id: str, revision: str | None) -> dict[str, Stored] | None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    try:
        found = _patiently(lambda: HfApi().get_safetensors_metadata(model_id, revision=revision))
    except NotASafetensorsRepoError:
        raise NotTestable(
            "no_safetensors",
            f"{model_id} has safetensors files, but none that Transformers loads by default.",
            model_id=model_id,
            revision=revision,
        ) from None
    except SafetensorsParsingError as error:
        raise NotTestable(
            "invalid_config",
            f"{model_id} has a safetensors file whose header cannot be read ({str(error).splitlines()[0]}).",
            model_id=model_id,
            revision=revision,
        ) from None
    return {
        name: Stored(str(each.dtype), tuple(each.shape))
        for file in found.files_metadata.values()
        for name, each in file.tensors.items()
    }


def _read_json(path: Path, model_id: str, revision: str | None) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        config = error
    if not isinstance(config, dict):
        raise NotTestable(
            "invalid_config",
            f"the config.json of {model_id} is no JSON object.",
            model_id=model_id,
            revision=revision,
        )
    return config


def _refuse_other_weights(model_id: str, revision: str | None, names: list[str]) -> None:
    """Raise `NotTestable` when the weights that are there are of kinds that Transformers does not load
    here."""
    kinds = {OTHER_WEIGHTS[suffix] for name in names if (suffix := Path(name).suffix) in OTHER_WEIGHTS}
    if kinds and not any(name.endswith(".safetensors") for name in names):
        raise NotTestable(
            "no_safetensors",
            f"{model_id} has no safetensors weights, only {' and '.join(sorted(kinds))} ones.",
            model_id=model_id,
            revision=revision,
        )


def _shown(name: str) -> str:
    return repr(name if len(name) <= 100 else f"{name[:100]}…")
