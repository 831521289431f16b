"""Rows: what they refuse, and that they survive JSON and Parquet unchanged."""

from __future__ import annotations

import io
import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_args, get_origin, get_type_hints

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trnready.results import row as rows
from trnready.results.row import InvalidRow, Judge, NewerSchema, Row
from trnready.results.schema import from_table, to_table

INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
TIMES = st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2200, 1, 1), timezones=st.just(UTC))


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    inner, optional = rows.inner_type(hint)
    if get_origin(inner) is list:
        (item,) = get_args(inner)
        strategy = st.lists(of_type(item), max_size=4)
    elif get_origin(inner) is dict:
        strategy = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
    elif inner is Judge:
        strategy = st.builds(Judge, **{n: of_type(h) for n, h in get_type_hints(Judge).items()})
    else:
        scalars = {str: st.text(max_size=20), int: INT64, float: st.floats(), bool: st.booleans()}
        strategy = TIMES if inner is datetime else scalars[inner]
    return st.none() | strategy if optional else strategy


@st.composite
def any_row(draw: st.DrawFn) -> Row:
    hints = get_type_hints(Row)
    result = draw(st.sampled_from(rows.RESULTS))
    columns = {name: draw(of_type(hint)) for name, hint in hints.items()}
    columns |= {
        "model_id": draw(st.text(min_size=1, max_size=20)),
        "result": result,
        "reason": draw(st.sampled_from(rows.REASONS[result])),
        "stage": draw(st.sampled_from(rows.STAGES)),
        "warnings": draw(st.lists(st.sampled_from(rows.WARNINGS), max_size=2)),
        "checkpoint_kind": draw(st.sampled_from(rows.CHECKPOINT_KINDS)),
        "device_kind": draw(st.sampled_from(rows.DEVICE_KINDS)),
        "run_id": draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)),
        "schema_version": rows.SCHEMA_VERSION,
    }
    return Row(**columns)


def strict_json(row: Row) -> str:
    return json.dumps(row.to_json(), allow_nan=False)


@given(any_row())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_row_survives_json(row: Row) -> None:
    again = Row.from_json(json.loads(strict_json(row)))
    assert strict_json(again) == strict_json(row)


@given(st.lists(any_row(), max_size=3))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rows_survive_parquet(written: list[Row]) -> None:
    buffer = io.BytesIO()
    pq.write_table(to_table(written), buffer)
    buffer.seek(0)
    again = from_table(pq.read_table(buffer), "memory")
    assert [strict_json(row) for row in again] == [strict_json(row) for row in written]


def test_columns_are_those_of_the_design(make_row) -> None:
    assert " ".join(f.name for f in fields(Row)) == (
        "model_id revision task library library_version neuronx_cc neuron_cores result reason stage "
        "error fingerprint hint warnings wall_time_s peak_memory_bytes model_type checkpoint_kind dtype "
        "parallelism plan device_kind instance host_cpu versions packages run_py prompt text text_reference "
        "tokens_device tokens_reference score first_divergence margin_at_divergence noise judge score_steps "
        "load_s compile_s compile_warm_s first_token_s tokens_per_s long_tokens long_reason graphs "
        "recompiles graph_breaks fallback_ops bytes_per_core neff_modules neff_hits log_tail tested_at "
        "run_id flaky schema_version"
    )
    unset = make_row()
    assert (unset.graphs, unset.recompiles, unset.graph_breaks, unset.fallback_ops) == (None,) * 4


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"result": "GREEN"}, "'GREEN' is no result"),
        ({"result": "PASS", "reason": "crash"}, "'crash' is no reason of a PASS"),
        ({"stage": "pondering"}, "'pondering' is no stage"),
        ({"device_kind": "quantum"}, "'quantum' is no device_kind"),
        ({"warnings": ["tired"]}, "'tired' is no warning"),
        ({"model_id": ""}, "model_id is empty"),
        ({"model_id": None}, "model_id must not be null"),
        ({"neuron_cores": "four"}, "neuron_cores has the wrong type: str"),
        ({"neuron_cores": True}, "neuron_cores has the wrong type: bool"),
        ({"graphs": 2**63}, "graphs does not fit into 64 bits"),
        ({"tokens_device": [1, None]}, "tokens_device must not be null"),
        ({"wall_time_s": 10**400}, "wall_time_s is too large"),
        ({"tested_at": datetime(2026, 1, 1)}, "tested_at has no time zone"),
        ({"run_id": "../../etc/passwd"}, "run_id '../../etc/passwd' may hold only"),
    ],
)
def test_impossible_row_is_refused(make_row, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRow, match=sentence.replace(".", r"\.")):
        make_row(**changes)


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda d: d.pop("result"), "the column 'result' is missing"),
        (lambda d: d.update(colour="red"), "unknown column 'colour'"),
        (lambda d: d.update(tested_at="yesterday"), "'yesterday' is no time"),
        (lambda d: d.update(judge={"verdict": "fine"}), "judge must have the field model"),
        (lambda d: d.update(score="a lot"), "score has the wrong type: str"),
    ],
)
def test_json_that_is_no_row_is_refused(make_row, edit, sentence: str) -> None:
    data = make_row().to_json()
    edit(data)
    with pytest.raises(InvalidRow, match=sentence):
        Row.from_json(data)


@pytest.mark.parametrize("data", [None, [], "row", 3])
def test_json_of_another_kind_is_refused(data: Any) -> None:
    with pytest.raises(InvalidRow):
        Row.from_json(data)


def test_row_of_a_newer_schema_is_told_apart(make_row) -> None:
    data = make_row().to_json() | {"schema_version": rows.SCHEMA_VERSION + 1, "aura": "calm"}
    with pytest.raises(NewerSchema, match="upgrade trnready"):
        Row.from_json(data)


def test_path_that_is_not_utf8_can_be_recorded(make_row) -> None:
    row = make_row(model_id="models/caf\udce9")
    assert row.model_id == "models/caf?"
    assert to_table([row]).column("model_id").to_pylist() == ["models/caf?"]


def test_times_are_kept_in_utc(make_row) -> None:
    paris = timezone(timedelta(hours=2))
    assert make_row(tested_at=datetime(2026, 7, 1, 14, tzinfo=paris)).to_json()["tested_at"] == (
        "2026-07-01T12:00:00+00:00"
    )


def test_what_replaces_what(make_row) -> None:
    row = make_row()
    same = ["result", "reason", "run_id", "wall_time_s", "tested_at"]
    assert rows.key(replace(row, reason="match_within_noise", run_id="other")) == rows.key(row)
    different: dict[str, Any] = {
        "model_id": "other/model",
        "revision": "abc",
        "task": "image-text-to-text",
        "dtype": "float32",
        "neuron_cores": 2,
        "checkpoint_kind": "twin",
        "neuronx_cc": "2.27",
        "library": "diffusers",
        "library_version": "1.0",
        "device_kind": "hardware",
        "instance": "trn2.48xlarge",
    }
    for name, value in different.items():
        assert name not in same
        assert rows.key(replace(row, **{name: value})) != rows.key(row), name
