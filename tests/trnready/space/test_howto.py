"""The commands that a model's page gives, and the plan and history that it draws."""

from __future__ import annotations

import json
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.plan import known_plans
from trnready.script import task
from trnready.space import howto, plan_view
from trnready.space.history import history
from trnready.space.howto import BadBucket, Bucket, bucket, how_to

PUBLIC = Bucket("acme/neff-cache", ("2.26.0", "2.27.1"))


def test_graphs_are_copied_from_the_prefix_of_the_rows_compiler(make_row) -> None:
    row = make_row(neuronx_cc="2.27.1", compile_s=80.0, compile_warm_s=1.5, neff_modules=["a", "b"])
    found = how_to(row, PUBLIC)
    assert found.sync == "hf buckets sync hf://buckets/acme/neff-cache/neuronxcc-2.27.1 /tmp/neff_cache"
    assert found.sync_words == (
        "This copies 2 graphs built in testing, so that the first run loads instead of compiling. "
        "In the test that meant 1.50 s instead of 80.0 s."
    )


def test_without_a_bucket_of_that_version_the_first_run_compiles(make_row) -> None:
    row = make_row(neuronx_cc="2.28.0", compile_s=80.0)
    without, other = how_to(row, None), how_to(row, PUBLIC)
    assert (without.sync, other.sync) == (None, None)
    assert without.sync_words == (
        "No public cache of compiled graphs is configured for this Space, so the first run compiles the "
        "model's graphs, which took 80.0 s in the test. /tmp/neff_cache keeps them for the next run."
    )
    assert other.sync_words.startswith(
        "The public cache acme/neff-cache holds no graphs of the compiler 2.28.0, so the first run compiles"
    )


def test_packages_are_quoted_for_the_shell(make_row) -> None:
    row = make_row(packages=["a>=1", "b==2", "c; rm -rf /"])
    assert how_to(row, None).install == "pip install 'a>=1' b==2 'c; rm -rf /'"
    assert how_to(make_row(), None).install is None


def test_bucket_is_read_from_an_option() -> None:
    assert bucket("acme/neff-cache:2.26.0,2.27.1") == PUBLIC
    for text in ("", "acme/neff-cache", "acme:2.27.1", "acme/neff-cache:", "acme/neff-cache:,"):
        with pytest.raises(BadBucket, match="names no public NEFF cache: write OWNER/NAME:VERSION"):
            bucket(text)


def test_plan_says_why_that_many_cores() -> None:
    found = known_plans.find("qwen/qwen3-30b-a3b")
    assert found is not None
    shown = plan_view.from_json(found)
    assert shown is not None
    assert shown.sentence == (
        "4 cores of trn2.3xlarge, tensor parallel: the fewest that hold the weights. With 2 cores, its "
        "weights need 28.4 GiB on each core, which has 24.0 GiB."
    )
    assert (shown.load_with, shown.room, shown.refused) == ("DistributedConfig(tp_size=4)", "24.0 GiB", False)
    assert [(line.cores, line.fits, line.chosen) for line in shown.sizes] == [
        (1, False, False),
        (2, False, False),
        (4, True, True),
        (8, False, False),
        (16, False, False),
    ]
    assert shown.sizes[3].remark == "its 4 KV heads (model.layers.*.self_attn.k_proj) do not divide by 8"
    one = plan_view.from_json(known_plans.find("Qwen/Qwen3-0.6B") or {})
    assert one is not None
    assert one.sentence.startswith("1 core of trn2.3xlarge: one core's 24.0 GiB hold all weights (1.")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_plan_that_is_none_is_not_shown(value: object) -> None:
    assert plan_view.from_text(json.dumps(value)) is None


@given(st.sampled_from(["sizes", "cores", "bytes_per_core", "distributed", "notes", "because"]), JSON)
def test_plan_with_a_wrong_part_never_raises(name: str, value: object) -> None:
    plan = dict(known_plans.find("Qwen/Qwen3-30B-A3B") or {}) | {name: value}
    plan_view.from_text(json.dumps(plan))


def test_history_goes_from_old_versions_to_new_and_keeps_the_device(make_row) -> None:
    start = make_row().tested_at
    rows = [
        make_row(neuronx_cc="2.9.0", device_kind="hardware", wall_time_s=30.0, run_id="nine"),
        make_row(neuronx_cc="2.27.1", device_kind="hardware", wall_time_s=60.0, run_id="old"),
        make_row(
            neuronx_cc="2.27.1", device_kind="hardware", wall_time_s=15.0, run_id="new", result="FAIL",
            reason="crash", tested_at=start + timedelta(days=1),
        ),
        make_row(neuronx_cc="soft-0.1.0", run_id="software"),
    ]  # fmt: skip
    chart = history(rows, rows[0])
    assert chart is not None
    assert [(point.run_id, point.kind, point.value) for point in chart.points] == [
        ("nine", "pass", "30.0 s"),
        ("new", "fail", "15.0 s"),
    ]
    assert chart.points[0].y == chart.y_ticks[1].at
    assert chart.points[1].y == chart.y_ticks[0].at
    assert [tick.label for tick in chart.y_ticks] == ["15.0 s", "30.0 s"]
    assert history(rows, rows[3]) is None


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ('"/home/somebody/models/tiny"', 'MODEL = "acme/tiny-1b"  # in the test, a folder with this model'),
        ("'/home/some\"body/tiny'", 'MODEL = "acme/tiny-1b"  # in the test, a folder with this model'),
        ('"C:\\\\models\\\\tiny"', 'MODEL = "acme/tiny-1b"  # in the test, a folder with this model'),
        ('"acme/tiny-1b"', 'MODEL = "acme/tiny-1b"'),
    ],
)
def test_a_script_names_the_model_where_the_test_named_its_own_folder(make_row, folder, line):
    before, after = "import torch\n\n", "\nREVISION = None\nprint(MODEL)\n"
    row = make_row(model_id="acme/tiny-1b", run_py=f"{before}MODEL = {folder}{after}")
    assert howto.script(row) == howto.Script(f"{before}{line}{after}", "#" in line)


def test_a_name_cannot_end_the_string_that_it_is_written_in(make_row):
    name = 'tiny"; import os; "'
    shown = howto.script(make_row(model_id=name, run_py='MODEL = "/a/b"\n'))
    assert shown is not None
    names: dict[str, str] = {}
    exec(shown.text, names)
    assert names["MODEL"] == name


def test_the_folders_of_every_task_are_found(make_row):
    for name in task.names():
        script = task.Script("/home/somebody/tiny", None, task.Prompt("Hello"), "bfloat16")
        shown = howto.script(make_row(run_py=task.find(name).render(script)))
        assert shown is not None
        assert shown.from_folder
        assert "/home/somebody" not in shown.text


def test_no_script_stays_none(make_row):
    assert howto.script(make_row(run_py=None)) is None


def test_the_page_tells_of_the_pytorch_that_the_device_is_built_for():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert f"torch=={howto.TORCH}" in project["project"]["dependencies"]
