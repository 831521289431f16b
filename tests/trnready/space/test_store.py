"""The store takes up what is new and keeps what was good."""

from __future__ import annotations

import json
from pathlib import Path

from trnready.results import dataset, journal
from trnready.space.store import Store


def data_file(results_dir: Path) -> Path:
    return results_dir / "data" / "neuronxcc-soft-0.1.0_transformers-5.24.0.parquet"


def test_new_runs_appear_without_a_restart(tmp_path: Path, make_row) -> None:
    store = Store(tmp_path / "results")
    assert (store.snapshot().rows, store.snapshot().folder_exists) == ((), False)
    row = make_row()
    journal.write(tmp_path / "results", row)
    assert store.snapshot().rows == (row,)
    dataset.compact(tmp_path / "results")
    assert store.snapshot().rows == (row,)
    other = make_row(model_id="acme/other", run_id="other")
    journal.write(tmp_path / "results", other)
    assert store.snapshot().rows == (other, row)


def test_nothing_is_read_again_when_nothing_changed(results_dir: Path) -> None:
    store = Store(results_dir)
    assert store.snapshot() is store.snapshot()


def test_last_good_rows_are_kept_when_a_file_breaks(tmp_path: Path, make_row) -> None:
    row = make_row()
    journal.write(tmp_path, row)
    dataset.compact(tmp_path)
    store = Store(tmp_path)
    assert store.snapshot().notices == ()
    good = data_file(tmp_path).read_bytes()
    data_file(tmp_path).write_bytes(good[:100])
    broken = store.snapshot()
    assert broken.rows == (row,)
    assert broken.notices == (
        f"data/{data_file(tmp_path).name} is damaged and cannot be read. "
        "Its last good rows are shown instead.",
    )
    assert store.snapshot() is broken
    data_file(tmp_path).write_bytes(good)
    assert (store.snapshot().rows, store.snapshot().notices) == ((row,), ())


def test_file_that_was_never_good_is_told_and_the_others_are_shown(tmp_path: Path, make_row) -> None:
    row = make_row()
    journal.write(tmp_path, row)
    newer = row.to_json() | {"schema_version": 99}
    (tmp_path / "journal" / "newer.json").write_text(json.dumps(newer))
    snapshot = Store(tmp_path).snapshot()
    assert snapshot.rows == (row,)
    assert snapshot.notices == (
        "journal/newer.json was written by a newer trnready and cannot be read by this one. "
        "Its rows are not shown.",
    )


def test_removed_file_is_no_longer_shown(results_dir: Path) -> None:
    store = Store(results_dir)
    before = len(store.snapshot().rows)
    data_file(results_dir).unlink()
    assert 0 < len(store.snapshot().rows) < before
