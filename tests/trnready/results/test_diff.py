"""What changed between two sets of rows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnready.results.diff import KINDS, NoSuchPair, difference, find_pair, pair_of, pairs

REASON = {"PASS": "match", "FAIL": "mismatch", "SKIPPED": "gated"}


def row_of(make_row, result: str, **changes):
    return make_row(result=result, reason=REASON[result], **changes)


def kinds(found) -> dict[str, int]:
    counts = {kind: len(found.of_kind(kind)) for kind in (*KINDS, "still_passing")}
    return {kind: count for kind, count in counts.items() if count}


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("PASS", "FAIL", "broken"),
        ("FAIL", "PASS", "fixed"),
        ("FAIL", "FAIL", "still_failing"),
        ("PASS", "PASS", "still_passing"),
        ("SKIPPED", "FAIL", "new"),
        (None, "PASS", "new"),
        ("FAIL", "SKIPPED", "gone"),
        ("PASS", None, "gone"),
        ("SKIPPED", "SKIPPED", None),
        (None, "SKIPPED", None),
    ],
)
def test_each_kind_of_change(make_row, before, after, kind):
    old = [] if before is None else [row_of(make_row, before)]
    new = [] if after is None else [row_of(make_row, after)]
    assert kinds(difference(old, new)) == ({} if kind is None else {kind: 1})


def test_only_rows_of_one_revision_task_dtype_and_device_are_compared(make_row):
    old = row_of(make_row, "PASS", revision="a")
    for other in (
        {"revision": "b"},
        {"revision": "a", "task": "text2text-generation"},
        {"revision": "a", "dtype": "float32"},
        {"revision": "a", "device_kind": "hardware"},
        {"revision": "a", "checkpoint_kind": "twin"},
    ):
        assert kinds(difference([old], [row_of(make_row, "FAIL", **other)])) == {"new": 1, "gone": 1}


def test_rows_of_equal_cores_belong_together_before_the_newest(make_row):
    later = make_row().tested_at + timedelta(days=1)
    old = [
        row_of(make_row, "PASS", neuron_cores=1, run_id="a"),
        row_of(make_row, "FAIL", neuron_cores=2, run_id="b", tested_at=later),
    ]
    new = [
        row_of(make_row, "FAIL", neuron_cores=1, run_id="c"),
        row_of(make_row, "FAIL", neuron_cores=2, run_id="d", tested_at=later),
    ]
    found = difference(old, new)
    assert kinds(found) == {"broken": 1, "still_failing": 1}
    assert (found.broken[0].before, found.broken[0].after) == (old[0], new[0])


def test_a_model_that_needs_other_cores_now_is_the_same_model(make_row):
    old, new = row_of(make_row, "PASS", neuron_cores=4), row_of(make_row, "FAIL", neuron_cores=1)
    assert kinds(difference([old], [new])) == {"broken": 1}


def test_a_row_that_was_never_run_stands_for_all_dtypes(make_row):
    old = [row_of(make_row, "PASS"), row_of(make_row, "FAIL", dtype="float32", run_id="b")]
    skipped = row_of(make_row, "SKIPPED", dtype=None, neuron_cores=None, instance=None, run_id="c")
    found = difference(old, [skipped])
    assert kinds(found) == {"gone": 2}
    assert all(change.after is skipped for change in found.gone)
    assert [each["dtype"] for each in found.to_json()["gone"]] == ["bfloat16", "float32"]


def test_of_two_runs_of_the_same_the_newer_counts(make_row):
    old = row_of(make_row, "PASS")
    new = row_of(make_row, "FAIL", run_id="b", tested_at=old.tested_at + timedelta(hours=1))
    assert kinds(difference([old], [old, new])) == {"broken": 1}
    assert kinds(difference([new, old], [new])) == {"still_failing": 1}


def test_json_names_the_model_and_both_sides(make_row):
    old = row_of(make_row, "PASS", library_version="5.23.0")
    new = row_of(make_row, "FAIL", error="off", fingerprint="f00")
    found = difference([old], [new]).to_json()
    assert found["counts"] == {
        "broken": 1,
        "fixed": 0,
        "still_failing": 0,
        "new": 0,
        "gone": 0,
        "still_passing": 0,
    }
    (broken,) = found["broken"]
    assert (broken["model_id"], broken["dtype"]) == ("acme/tiny-1b", "bfloat16")
    assert (broken["before"]["library_version"], broken["before"]["reason"]) == ("5.23.0", "match")
    assert (broken["after"]["reason"], broken["after"]["error"], broken["after"]["fingerprint"]) == (
        "mismatch",
        "off",
        "f00",
    )


rows = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["bfloat16", "float32", None]),
        st.sampled_from([1, 2]),
        st.sampled_from(["PASS", "FAIL", "SKIPPED"]),
    ),
    max_size=6,
    unique_by=lambda entry: entry[:3],
)


@given(rows, rows)
def test_no_result_is_lost_and_the_way_back_is_the_mirror(make_row, first, second):
    def of(side, entries):
        return [
            row_of(make_row, result, model_id=model, dtype=dtype, neuron_cores=cores, run_id=f"{side}{i}")
            for i, (model, dtype, cores, result) in enumerate(entries)
        ]

    old, new = of("o", first), of("n", second)
    there, back = difference(old, new), difference(new, old)
    shown = [c for kind in (*KINDS, "still_passing") for c in there.of_kind(kind)]
    for rows, side in ((old, "before"), (new, "after")):
        seen = [each.run_id for change in shown if (each := getattr(change, side)) and each.dtype]
        tested = [row.run_id for row in rows if row.result != "SKIPPED" and row.dtype]
        assert set(tested) <= set(seen)
        assert len(seen) == len(set(seen))
    mirror = {"broken": "fixed", "fixed": "broken", "new": "gone", "gone": "new"}
    assert {mirror.get(kind, kind): count for kind, count in kinds(there).items()} == kinds(back)


def test_a_pair_is_named_by_a_part_that_no_other_has(make_row):
    known = pairs([make_row(), make_row(library_version="5.23.0"), make_row()])
    assert [pair.name for pair in known] == [
        "neuronxcc-soft-0.1.0_transformers-5.23.0",
        "neuronxcc-soft-0.1.0_transformers-5.24.0",
    ]
    assert find_pair(known, "5.23") == known[0]
    assert find_pair(known, f"{known[1].name}.parquet") == known[1] == pair_of(make_row())
    with pytest.raises(NoSuchPair, match=r"more than one pair of versions: neuronxcc-.*5\.23.*5\.24"):
        find_pair(known, "transformers")
    with pytest.raises(NoSuchPair, match="'6' is no file and no pair"):
        find_pair(known, "6")
