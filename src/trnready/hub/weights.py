"""The headers of safetensors files: read without their weights, and held against the files they describe.
`trnready.hub.local` finds truncated and inconsistent checkpoints with it before anything is run."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnready.errors import TrnreadyError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64,
    "F64": 64, "C64": 64,
}  # fmt: skip


class DamagedWeights(TrnreadyError):
    """A weights file is truncated, or does not hold what its header or index says."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as its file describes it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a checkpoint: its files with their headers as they stand, and every tensor by name."""

    headers: dict[Path, bytes]
    tensors: dict[str, Tensor]


def read_weights(folder: Path, stem: str = "model") -> Weights | None:
    """Read the headers of a folder's safetensors files, `<stem>.safetensors` or through its index. Gives
    None when the folder has no safetensors weights. Raises `DamagedWeights`."""
    index, single = folder / f"{stem}.safetensors.index.json", folder / f"{stem}.safetensors"
    if index.is_file():
        return _read_indexed(folder, index)
    if single.is_file():
        header, tensors = read_header(single)
        return Weights({single: header}, tensors)
    return None


def _read_indexed(folder: Path, index: Path) -> Weights:
    try:
        places = json.loads(index.read_bytes())["weight_map"]
        if not isinstance(places, dict) or not all(isinstance(each, str) for each in places.values()):
            raise ValueError("weight_map is no table of file names")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedWeights(f"{index} cannot be read as an index of weights ({error}).") from error
    headers: dict[Path, bytes] = {}
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        path = folder / name
        if path.parent != folder or not path.is_file():
            raise DamagedWeights(f"{index.name} names the file {name}, which is not there.")
        headers[path], found = read_header(path)
        tensors |= found
        lost = next((each for each, place in places.items() if place == name and each not in found), None)
        if lost is not None:
            raise DamagedWeights(f"{index.name} says that {name} holds {lost}, which it does not.")
    return Weights(headers, tensors)


def read_header(path: Path) -> tuple[bytes, dict[str, Tensor]]:
    """Read the header of one file, as it stands and as tensors by name, and hold it against the file's size.
    Raises `DamagedWeights`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else None
            if length is None or length > min(size - 8, MAX_HEADER_BYTES):
                raise DamagedWeights(
                    f"{path} is no whole safetensors file: its {size} bytes end in the header."
                )
            header = file.read(length)
    except OSError as error:
        raise DamagedWeights(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        entries = json.loads(header)
        if not isinstance(entries, dict):
            raise ValueError("it is no table")
        entries.pop("__metadata__", None)
        tensors = {name: _tensor(name, entry) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedWeights(f"{path} has a header that cannot be read ({error}).") from error
    _check_extent(path, tensors, size - 8 - length)
    return header, tensors


def _tensor(name: str, entry: dict[str, Any]) -> Tensor:
    begin, end = (int(each) for each in entry["data_offsets"])
    shape = tuple(int(each) for each in entry["shape"])
    bits = BITS.get(entry["dtype"])
    if bits is not None and (end - begin) * 8 != math.prod(shape) * bits:
        raise ValueError(f"{name} has {end - begin} bytes, not those of its shape")
    return Tensor(str(entry["dtype"]), shape, begin, end)


def _check_extent(path: Path, tensors: dict[str, Tensor], available: int) -> None:
    """The tensors must follow each other without a gap and end where the file does."""
    position = 0
    for tensor in sorted(tensors.values(), key=lambda each: (each.begin, each.end)):
        if tensor.begin != position or tensor.end < tensor.begin:
            raise DamagedWeights(f"{path} has a header whose tensors overlap or leave gaps.")
        position = tensor.end
    if position > available:
        raise DamagedWeights(
            f"{path} is truncated: its tensors need {position} bytes, and {available} are there."
        )
    if position < available:
        raise DamagedWeights(f"{path} has {available - position} bytes more than its tensors need.")
