"""Reports of run.py: whole ones are read, all others are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.run.report import BadReport, Graph, read

FACTS: dict[str, Any] = {
    "device": "neuron",
    "dtype": ["bfloat16"],
    "cores": 1,
    "input_tokens": [1, 2],
    "tokens": [3, 4],
    "first_call_tokens": [3, 4],
    "end_tokens": [0, 9],
    "text": "ab",
    "seconds": {"load": 1, "first_call": 2.5, "later_call": 0.5},
    "step_seconds": [0.1, 0.2],
    "parameter_devices": ["neuron:0"],
    "parameter_bytes": 10,
    "graphs_first_call": [],
    "graphs": [
        {
            "graph_name": "g",
            "graph_node_count": 5,
            "torch_neuronx_compile_us": 2_000_000,
            "cache_hit": True,
            "neff_module": "MODULE_1",
        }
    ],
    "graph_breaks": {"why": 2, "because": 1},
    "fallback_ops": ["aten::sort"],
    "instance": "trn2.3xlarge",
    "peak_bytes": [12, 0],
    "versions": {"torch": "2.13.0", "neuronx-cc": None},
}


def _write(folder: Path, facts: Any = FACTS, logits: bytes | None = None) -> Path:
    if logits is None:
        body = np.arange(6, dtype="<f4").tobytes()
        entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, len(body)]}
        header = json.dumps({"logits": entry}).encode()
        logits = struct.pack("<Q", len(header)) + header + body
    (folder / "report.json").write_text(json.dumps(facts))
    (folder / "logits.safetensors").write_bytes(logits)
    return folder


def test_a_whole_report_is_read(tmp_path):
    report = read(_write(tmp_path))
    assert report.logits.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (report.tokens, report.end_tokens, report.later_call_s) == ((3, 4), (0, 9), 0.5)
    assert report.graphs == (Graph("g", 5, 2.0, True, "MODULE_1"),)
    assert (report.graph_breaks, report.graphs_first_call) == (3, ())
    assert report.versions == {"torch": "2.13.0"}


def test_the_logits_are_a_file_that_safetensors_reads(tmp_path):
    from safetensors.numpy import load_file

    _write(tmp_path)
    assert load_file(tmp_path / "logits.safetensors")["logits"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("name", sorted(FACTS))
def test_a_missing_fact_is_refused(tmp_path, name):
    facts = {key: value for key, value in FACTS.items() if key != name}
    with pytest.raises(BadReport, match=name):
        read(_write(tmp_path, facts))


COUNTERS = ["graphs_first_call", "graphs", "graph_breaks", "fallback_ops", "peak_bytes"]


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize("value", [None, 0, "x", [1.5], [[]], {"a": "b"}])
def test_a_counter_that_the_device_does_not_offer_is_unknown_not_zero(tmp_path, name, value):
    assert getattr(read(_write(tmp_path, FACTS | {name: value})), name) is None


@pytest.mark.parametrize("name", sorted(set(FACTS) - set(COUNTERS) - {"end_tokens", "instance"}))
@pytest.mark.parametrize("value", [None, True, {"a": 1}, [None]])
def test_a_fact_of_the_wrong_kind_is_refused(tmp_path, name, value):
    if name == "versions" and value == {"a": 1}:
        value = {"a": [1]}
    with pytest.raises(BadReport):
        read(_write(tmp_path, FACTS | {name: value}))


def test_an_instance_that_the_device_does_not_name_is_unknown(tmp_path):
    assert read(_write(tmp_path, FACTS | {"instance": None})).instance is None


def test_negative_and_endless_numbers_are_refused(tmp_path):
    for change in (
        {"tokens": [-1, 2]},
        {"seconds": {"load": -1, "first_call": 1}},
        {"step_seconds": [1e999]},
    ):
        with pytest.raises(BadReport):
            read(_write(tmp_path, FACTS | change))


def test_without_a_report_there_is_nothing(tmp_path):
    with pytest.raises(BadReport, match="without writing its report"):
        read(tmp_path)


def test_without_logits_there_is_nothing(tmp_path):
    _write(tmp_path)
    (tmp_path / "logits.safetensors").unlink()
    with pytest.raises(BadReport, match="no logits"):
        read(tmp_path)


@given(st.integers(0, 200))
def test_truncated_logits_are_refused(tmp_path_factory, length):
    folder = _write(tmp_path_factory.mktemp("report"))
    path = folder / "logits.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: min(length, len(content) - 1)])
    with pytest.raises(BadReport, match="damaged"):
        read(folder)


@given(st.binary(max_size=100))
def test_any_bytes_in_place_of_logits_are_refused(tmp_path_factory, content):
    with pytest.raises(BadReport):
        read(_write(tmp_path_factory.mktemp("report"), logits=content))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000])
def test_a_report_that_is_no_table_is_refused(tmp_path, text):
    _write(tmp_path)
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(BadReport):
        read(tmp_path)
