"""Catalogs and the Selected list: files that hold what was written, and say what is wrong with them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnready.hub import catalog, selected
from trnready.hub.catalog import About, Listed
from trnready.plan.architectures import TASKS

REPOSITORY = Path(__file__).parents[3]
ABOUT = About("a test", "2026-10", None)
NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)


@settings(max_examples=25)
@given(st.lists(st.builds(Listed, model_id=NAMES, task=NAMES, downloads=st.integers(0, 2**40) | st.none())))
def test_what_was_written_is_read(tmp_path_factory, models):
    path = tmp_path_factory.getbasetemp() / "catalog.parquet"
    path.write_bytes(catalog.encode(ABOUT, models))
    read = catalog.read(path)
    assert (read.about, catalog.models(read)) == (ABOUT, models)


def test_files_that_are_no_catalogs_are_told(tmp_path):
    path = tmp_path / "text-generation.parquet"
    path.write_bytes(catalog.encode(ABOUT, [Listed(model_id="a/b", task="text-generation")])[:-10])
    with pytest.raises(catalog.UnreadableCatalog, match="is damaged and cannot be read; `trnready catalog"):
        catalog.read(path)
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(catalog.UnreadableCatalog, match=r"is no catalog of trnready\."):
        catalog.read(path)
    notes = {b"trnready.catalog_version": b"99"}
    pq.write_table(pa.table({"x": [1]}).replace_schema_metadata(notes), path)
    with pytest.raises(catalog.UnreadableCatalog, match="was written by a newer trnready; upgrade"):
        catalog.read(path)


def test_the_first_catalog_is_the_october_2026_snapshot():
    read = {path.stem: catalog.read(path) for path in catalog.files(REPOSITORY / catalog.FOLDER)}
    counts = {task: each.table.num_rows for task, each in read.items()}
    assert counts == {"image-text-to-text": 3141, "text-generation": 9501, "unknown": 2206}
    first = catalog.models(read["text-generation"])[0]
    assert (first.model_id, first.downloads, first.downloads_position) == ("Qwen/Qwen3-0.6B", 29646527, 1)
    assert (first.parameters, first.license, first.created) == (751632384, "apache-2.0", date(2025, 4, 27))
    for each in read.values():
        assert "llmfit 1.1.17" in each.about.source
        assert (each.about.downloads_at, each.about.trending_at) == ("2026-10", None)
        assert each.table["trending_position"].null_count == each.table.num_rows


def test_the_selected_list_is_about_150_models_of_both_tasks_and_those_left_out():
    models = selected.read(REPOSITORY / catalog.FOLDER / selected.NAME)
    to_test = [each for each in models if each.left_out is None]
    left_out = [each.left_out for each in models if each.left_out]
    assert {each.task for each in to_test} == set(TASKS)
    assert (len(to_test), len(left_out)) == (166, 71)
    assert {each.reason for each in left_out} >= {
        "not_a_priority",
        "too_large",
        "remote_code",
        "incompatible",
    }
    assert all(each.why.endswith(".") for each in left_out)
    assert all(each.parameters and each.model_type for each in models)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("models: [", "is no YAML"),
        ("- 1", "must hold a list called models"),
        ("models: [1]", "every model is a mapping with id and task, not '1'"),
        ("models: [{id: a/b}]", "a model has no task"),
        ("models: [{id: 7, task: t}]", "id of 7 must be text"),
        ("models: [{id: a/b, task: t}, {id: a/b, task: t}]", "lists a/b twice for t"),
        ("models: [{id: a/b, task: t, parameters: many}]", "the parameters of a/b are no count"),
        ("models: [{id: a/b, task: t, why: habit}]", "a/b is here for 'habit', which is none of downloads"),
        ("models: [{id: a/b, task: t, left_out: bored, because: x}]", "a/b is left out, which takes one of"),
        ("models: [{id: a/b, task: t, left_out: gated}]", "and a because"),
        ("a: &a [*a]\nmodels: [{id: !!python/object:os.system x}]", "is no YAML"),
    ],
)
def test_what_is_wrong_with_a_list_is_told(tmp_path, text, wrong):
    path = tmp_path / "selected.yaml"
    path.write_text(text)
    with pytest.raises(selected.BadSelection, match=wrong):
        selected.read(path)


def test_a_list_that_is_not_there_is_told(tmp_path):
    path = tmp_path / "selected.yaml"
    with pytest.raises(selected.BadSelection) as told:
        selected.read(path)
    assert str(told.value) == f"{path} cannot be read (No such file or directory)."
