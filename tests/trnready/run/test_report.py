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
from safetensors.numpy import save_file

from trnready.run.report import BadReport, Graph, read, read_arrays

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
    (folder / "outputs.safetensors").write_bytes(logits)
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
    assert load_file(tmp_path / "outputs.safetensors")["logits"].tolist() == [[0, 1, 2], [3, 4, 5]]


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
    (tmp_path / "outputs.safetensors").unlink()
    with pytest.raises(BadReport, match="no outputs"):
        read(tmp_path)


@given(st.integers(0, 200))
def test_truncated_logits_are_refused(tmp_path_factory, length):
    folder = _write(tmp_path_factory.mktemp("report"))
    path = folder / "outputs.safetensors"
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


def test_a_graph_that_could_not_be_compiled_is_none_of_the_compiled_ones(tmp_path):
    graphs = [{"graph_name": name} for name in ("a", "b", "b")]
    facts = FACTS | {"graphs": graphs, "fallback_ops": ["graph:b", "aten::sort"]}
    report = read(_write(tmp_path, facts))
    assert report.graphs is not None
    assert len(report.graphs) == 3
    assert [each.name for each in report.compiled_graphs or ()] == ["a"]
    assert read(_write(tmp_path, facts | {"graphs": None})).compiled_graphs is None


def test_parameters_and_later_imports_may_be_unknown(tmp_path):
    report = read(_write(tmp_path))
    assert (report.parameters, report.imported_later) == (None, None)
    report = read(_write(tmp_path, FACTS | {"parameters": 7, "imported_later": {"tiktoken": "0.9"}}))
    assert (report.parameters, report.imported_later) == (7, {"tiktoken": "0.9"})


def _write_arrays(folder: Path, arrays: dict[str, np.ndarray], **changes: Any) -> Path:
    (folder / "report.json").write_text(json.dumps(FACTS | {"repeats": True} | changes))
    save_file(arrays, folder / "outputs.safetensors")
    return folder


IMAGE = np.full((1, 12), 0.5, np.float32)
LATENTS = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_latents_and_image_are_read(tmp_path):
    report = read_arrays(_write_arrays(tmp_path, {"latents": LATENTS, "image": IMAGE}), "latents")
    assert report.arrays["latents"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert report.arrays["image"].shape == (1, 12)
    assert report.repeats


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"latents": LATENTS}, "wrote latents, not latents, image"),
        ({"latents": LATENTS, "image": IMAGE, "more": IMAGE}, "wrote image, latents, more"),
        ({"latents": LATENTS, "image": IMAGE[0]}, "image of run.py are no table"),
        ({"latents": LATENTS.astype(np.float64), "image": IMAGE}, "latents of run.py are no table"),
    ],
)
def test_other_arrays_are_refused(tmp_path, arrays, message):
    with pytest.raises(BadReport, match=message):
        read_arrays(_write_arrays(tmp_path, arrays), "latents")


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_whether_a_second_call_was_equal_must_be_said(tmp_path, value):
    with pytest.raises(BadReport, match="repeats"):
        read_arrays(_write_arrays(tmp_path, {"latents": LATENTS, "image": IMAGE}, repeats=value), "latents")


@pytest.mark.parametrize("given", [-1, [-1], None, []])
def test_no_end_token_may_be_said_in_several_ways(tmp_path, given):
    assert read(_write(tmp_path, FACTS | {"end_tokens": given})).end_tokens == ()


def test_an_interpreted_graph_is_none_of_the_compiled_ones(tmp_path):
    graphs = [
        {"graph_name": "a", "interpreted": True},
        {"graph_name": "b", "interpreted": False},
        {"graph_name": "c", "graph_node_count": 0},
    ]
    report = read(_write(tmp_path, FACTS | {"graphs": graphs}))
    assert [each.name for each in report.compiled_graphs or ()] == ["b"]
    assert report.has_interpreted_graphs
    assert not report.ran_eagerly
