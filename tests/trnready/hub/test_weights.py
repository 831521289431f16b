"""Safetensors headers: whole files are read, damaged ones refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from trnready.hub.weights import DamagedWeights, read_header, read_weights

SHAPES = st.dictionaries(
    st.text("abc.", min_size=1, max_size=8), st.lists(st.integers(0, 4), max_size=3), max_size=4
)


def _save(path: Path, **shapes: list[int]) -> Path:
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, path)
    return path


@given(SHAPES)
def test_what_safetensors_writes_is_read(tmp_path_factory, shapes):
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, path, {"format": "np"})
    _, tensors = read_header(path)
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == shapes
    assert {tensor.dtype for tensor in tensors.values()} <= {"F16"}


@given(st.data())
def test_a_file_cut_anywhere_is_refused(tmp_path_factory, data):
    path = _save(tmp_path_factory.mktemp("weights") / "model.safetensors", a=[3, 4], b=[2])
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(DamagedWeights):
        read_header(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    path.write_bytes(content)
    try:
        _, tensors = read_header(path)
    except DamagedWeights:
        return
    assert tensors == {} or sum(tensor.end - tensor.begin for tensor in tensors.values()) < len(content)


def _raw(path: Path, header: object, body: bytes) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, "needs? 8 bytes, and 4 are there"),
        ({}, "4 bytes more"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "not those of its shape"),
        ({"a": {"dtype": "F32", "shape": [0], "data_offsets": [1, 1]}}, "overlap or leave gaps"),
        ({"a": {"dtype": "F32", "shape": [1]}}, "cannot be read"),
        ({"a": 3}, "cannot be read"),
        ([], "cannot be read"),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(tmp_path, header, message):
    with pytest.raises(DamagedWeights, match=message):
        read_header(_raw(tmp_path / "model.safetensors", header, b"1234"))


def test_a_folder_without_weights_has_none(tmp_path):
    assert read_weights(tmp_path) is None


def _index(folder: Path, places: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_weights_in_several_files_are_read_through_their_index(tmp_path):
    _save(tmp_path / "one.safetensors", a=[1])
    _save(tmp_path / "two.safetensors", b=[2])
    _index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    weights = read_weights(tmp_path)
    assert weights is not None
    assert {name: tensor.shape for name, tensor in weights.tensors.items()} == {"a": (1,), "b": (2,)}


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"a": "one.safetensors", "b": "two.safetensors"}, "names the file two.safetensors, which is not"),
        ({"a": "one.safetensors", "z": "one.safetensors"}, "says that one.safetensors holds z"),
        ({"a": "../one.safetensors"}, "which is not there"),
        ({"a": 1}, "cannot be read as an index"),
        ([], "cannot be read as an index"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path, places, message):
    _save(tmp_path / "one.safetensors", a=[1])
    _index(tmp_path, places)
    with pytest.raises(DamagedWeights, match=message):
        read_weights(tmp_path)
