"""The dataset: the newest run wins, nothing is lost whatever happens, and the article's query works."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnready.results import card, dataset, journal
from trnready.results.dataset import NewerSchema, UnreadableData
from trnready.results.row import Row, age, key
from trnready.results.schema import SCHEMA, VERSION_KEY, to_table

PAIR = "neuronxcc-soft-0.1.0_transformers-5.24.0.parquet"


def record(results: Path, *rows: Row) -> None:
    for row in rows:
        journal.write(results, row)


def history(results: Path) -> list[Row]:
    return [row for path in (results / "history").glob("*.parquet") for row in dataset.read_file(path)]


def test_the_articles_query_works_as_written(tmp_path: Path, make_row) -> None:
    record(
        tmp_path,
        make_row(model_id="Qwen/Qwen3-0.6B", judge=None, neuron_cores=1, run_id="a"),
        make_row(model_id="Qwen/Qwen3-0.6B", library_version="5.23.0", neuron_cores=4, run_id="b"),
        make_row(model_id="x/y", result="SKIPPED", reason="not_found", neuron_cores=None, run_id="c"),
    )
    summary = dataset.compact(tmp_path)
    assert (summary.folded, summary.replaced, len(summary.files)) == (3, 0, 2)
    df = pd.read_parquet(f"{tmp_path}/data")
    found = df[df.model_id == "Qwen/Qwen3-0.6B"][
        ["neuronx_cc", "library", "library_version", "neuron_cores", "result"]
    ]
    assert sorted(found.itertuples(index=False, name=None)) == [
        ("soft-0.1.0", "transformers", "5.23.0", 4, "PASS"),
        ("soft-0.1.0", "transformers", "5.24.0", 1, "PASS"),
    ]
    assert list(df.columns) == SCHEMA.names
    assert df.neuron_cores.dtype == "Int64"
    assert df.graphs.isna().all()
    schemas = [pq.read_schema(path) for path in sorted((tmp_path / "data").iterdir())]
    assert schemas[0].equals(schemas[1], check_metadata=True)
    assert schemas[0].equals(SCHEMA)
    for column in SCHEMA:
        assert schemas[0].field(column.name).metadata[b"description"] == column.metadata[b"description"]


def test_folding_empties_the_journal_and_keeps_every_row(tmp_path: Path, make_row) -> None:
    rows = [make_row(model_id=f"m/{i}", run_id=f"r{i}") for i in range(5)]
    record(tmp_path, *rows)
    assert dataset.read(tmp_path) == rows
    dataset.compact(tmp_path)
    assert journal.entries(tmp_path) == []
    assert dataset.read(tmp_path) == rows
    assert dataset.compact(tmp_path).folded == 0


def test_older_run_moves_to_the_history(tmp_path: Path, make_row) -> None:
    old = make_row(result="FAIL", reason="crash", run_id="old")
    new = make_row(run_id="new", tested_at=old.tested_at + timedelta(days=1))
    record(tmp_path, new)
    dataset.compact(tmp_path)
    record(tmp_path, old)
    assert dataset.read(tmp_path) == [new]
    assert dataset.compact(tmp_path).replaced == 1
    assert dataset.read(tmp_path) == [new]
    assert history(tmp_path) == [old]


@given(
    runs=st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(0, 5), st.sampled_from(["5.23", "5.24"]), st.booleans()
        ),
        max_size=12,
    )
)
@settings(max_examples=25, deadline=None)
def test_newest_wins_however_the_runs_arrive(runs: list[tuple[str, int, str, bool]], make_row) -> None:
    """Any order of runs, compacted at any moment, ends in the same data and history."""
    start = make_row().tested_at
    rows = [
        make_row(model_id=name, library_version=v, tested_at=start + timedelta(hours=hour), run_id=f"run-{i}")
        for i, (name, hour, v, _) in enumerate(runs)
    ]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        for row, (_, _, _, compact_now) in zip(rows, runs, strict=True):
            record(results, row)
            if compact_now:
                dataset.compact(results)
        before = dataset.read(results)
        dataset.compact(results)
        best = {k: max((r for r in rows if key(r) == k), key=age) for k in map(key, rows)}
        assert sorted(map(age, dataset.read(results))) == sorted(map(age, best.values()))
        assert dataset.read(results) == before
        kept = {r.run_id for r in best.values()}
        assert sorted(r.run_id for r in history(results)) == sorted(
            r.run_id for r in rows if r.run_id not in kept
        )


KILLER = """
import os, shutil, signal, sys
from pathlib import Path
import pandas
from trnready.results import dataset
template, out = Path(sys.argv[1]), Path(sys.argv[2])
for moment in range(1, 500):
    results = out / str(moment)
    shutil.copytree(template, results)
    child = os.fork()
    if child == 0:
        seen = 0
        def hook(event, args):
            global seen
            if event in ("open", "os.rename", "os.remove") and str(results) in str(args[0]):
                seen += 1
                if seen == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        dataset.compact(results)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(moment, os.waitstatus_to_exitcode(status), flush=True)
    if status == 0:
        break
"""


def test_killed_at_any_moment_nothing_is_lost(tmp_path: Path, make_row) -> None:
    """A process is killed before each single step it takes on the files, until one gets through."""
    template = tmp_path / "template"
    old = make_row(run_id="old", wall_time_s=1.0)
    new = make_row(run_id="new", tested_at=old.tested_at + timedelta(days=1))
    older = make_row(run_id="older", tested_at=old.tested_at - timedelta(days=1))
    other = make_row(model_id="m/other", library_version="5.23.0", run_id="other")
    record(template, older, old)
    dataset.compact(template)
    record(template, new, other)
    out = tmp_path / "killed"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(template), str(out)], capture_output=True, text=True, check=True
    )
    ends = [line.split() for line in done.stdout.splitlines()]
    assert len(ends) > 10
    assert {code for _, code in ends[:-1]} == {str(-signal.SIGKILL)}
    assert ends[-1][1] == "0"
    for moment, _ in ends:
        results = out / moment
        assert dataset.read(results) == [new, other], moment
        pd.read_parquet(f"{results}/data")
        dataset.compact(results)
        assert dataset.read(results) == [new, other], moment
        assert sorted(row.run_id for row in history(results)) == ["old", "older"], moment
        left = {p.name for p in results.rglob(".tmp-*")}
        assert left <= {p.name for p in results.glob(".tmp-*")}, moment


COMPACT = (
    "import sys; from pathlib import Path; from trnready.results import dataset\n"
    "print(dataset.compact(Path(sys.argv[1])).folded)"
)


def test_two_compact_at_once(tmp_path: Path, make_row) -> None:
    rows = [make_row(model_id=f"m/{i:03}", run_id=f"r{i}") for i in range(60)]
    record(tmp_path, *rows)
    racing = [
        subprocess.Popen([sys.executable, "-c", COMPACT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    late = make_row(model_id="m/late", run_id="late")
    record(tmp_path, late)
    folded = [int(process.communicate()[0]) for process in racing]
    assert [process.returncode for process in racing] == [0, 0, 0]
    assert sum(folded) + len(journal.entries(tmp_path)) == 61
    assert dataset.read(tmp_path) == sorted([*rows, late], key=lambda row: row.model_id)


def test_refused_write_loses_nothing(tmp_path: Path, make_row) -> None:
    """The system refuses to write files of more than 2,000 bytes, as a full disk would."""
    before = make_row(run_id="before")
    record(tmp_path, before)
    dataset.compact(tmp_path)
    after = make_row(model_id="m/after", run_id="after")
    record(tmp_path, after)
    files = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    script = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "from trnready.errors import TrnreadyError\ntry:\n  "
        + COMPACT.replace("\n", "\n  ")
        + "\nexcept TrnreadyError as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("ResultsNotWritable cannot write results to ")
    assert "File too large" in done.stdout
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == files
    assert dataset.read(tmp_path) == [before, after]


def newer_file(path: Path, make_row) -> None:
    schema = SCHEMA.append(pa.field("aura", pa.string())).with_metadata({VERSION_KEY: "2"})
    table = to_table([make_row()]).append_column("aura", pa.array(["calm"])).replace_schema_metadata(None)
    pq.write_table(table.cast(schema.remove_metadata()).replace_schema_metadata(schema.metadata), path)


def truncated_file(path: Path, make_row) -> None:
    pq.write_table(to_table([make_row()]), path)
    path.write_bytes(path.read_bytes()[:-100])


def foreign_file(path: Path, make_row) -> None:
    pq.write_table(pa.table({"model_id": ["x"]}), path)


@pytest.mark.parametrize(
    ("spoil", "error", "sentence"),
    [
        (newer_file, NewerSchema, "was written by a newer trnready"),
        (truncated_file, UnreadableData, "is damaged and cannot be read"),
        (foreign_file, UnreadableData, "is no results file of trnready"),
    ],
)
def test_file_that_cannot_be_read_is_left_alone(
    tmp_path: Path, make_row, spoil, error, sentence: str
) -> None:
    record(tmp_path, make_row(run_id="first"))
    dataset.compact(tmp_path)
    spoil(tmp_path / "data" / PAIR, make_row)
    spoilt = (tmp_path / "data" / PAIR).read_bytes()
    mine, others = make_row(run_id="mine"), make_row(library_version="5.23.0", run_id="others")
    record(tmp_path, mine, others)
    with pytest.raises(error, match=sentence):
        dataset.compact(tmp_path)
    with pytest.raises(error, match=sentence):
        dataset.read(tmp_path)
    (tmp_path / "journal" / "x.json").write_text("{")
    more = "1 more file cannot be read; `trnready results verify` names each"
    with pytest.raises(UnreadableData, match=more):
        dataset.compact(tmp_path)
    (tmp_path / "journal" / "x.json").unlink()
    assert (tmp_path / "data" / PAIR).read_bytes() == spoilt
    assert [journal.load(path).run_id for path in journal.entries(tmp_path)] == ["mine"]
    assert dataset.read_file(tmp_path / "data" / PAIR.replace("5.24", "5.23")) == [others]
    (tmp_path / "data" / PAIR).rename(tmp_path / "moved-away")
    dataset.compact(tmp_path)
    assert {row.run_id for row in dataset.read(tmp_path)} == {"mine", "others"}


def test_spoilt_file_of_another_pair_does_not_stop_a_run(tmp_path: Path, make_row) -> None:
    (tmp_path / "data").mkdir()
    newer_file(tmp_path / "data" / "neuronxcc-9_transformers-9.parquet", make_row)
    record(tmp_path, make_row())
    summary = dataset.compact(tmp_path)
    assert summary.folded == 1
    assert ["newer trnready" in sentence for sentence in summary.unreadable] == [True]


def test_damaged_journal_entry_stays_and_the_rest_is_folded(tmp_path: Path, make_row) -> None:
    record(tmp_path, make_row())
    bad = tmp_path / "journal" / "bad.json"
    bad.write_text("{")
    with pytest.raises(UnreadableData, match=r"bad\.json cannot be read"):
        dataset.compact(tmp_path)
    assert journal.entries(tmp_path) == [bad]
    bad.unlink()
    assert dataset.read(tmp_path) == [make_row()]


def test_missing_and_empty_folders_have_no_rows(tmp_path: Path) -> None:
    assert dataset.read(tmp_path / "absent") == []
    assert dataset.read(tmp_path) == []
    with pytest.raises(UnreadableData, match="there is no results folder"):
        dataset.compact(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_odd_versions_cannot_leave_the_folder(tmp_path: Path, make_row) -> None:
    results = tmp_path / "results"
    row = make_row(neuronx_cc="../../2.0+g1", library="a/b", library_version="1_0 x")
    record(results, row)
    (path,) = dataset.compact(results).files
    assert path == results / "data" / "neuronxcc-..%2F..%2F2.0+g1_a%2Fb-1_0%20x.parquet"
    assert path.exists()
    assert dataset.read(results) == [row]


def test_endless_version_still_has_a_file(tmp_path: Path, make_row) -> None:
    rows = [make_row(library_version="9" * 500 + end, run_id=end) for end in "ab"]
    record(tmp_path, *rows)
    assert len({path.name for path in dataset.compact(tmp_path).files}) == 2
    assert dataset.read(tmp_path) == rows


def test_card_is_written_but_never_over_a_readme_of_somebody_else(tmp_path: Path, make_row) -> None:
    record(tmp_path, make_row())
    dataset.compact(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| `soft-0.1.0` | `transformers` | `5.24.0` | `software` | 1 | 0 | 0 |" in text
    assert card.MARK in text
    (tmp_path / "README.md").write_text("# My project\n")
    record(tmp_path, make_row(run_id="again"))
    dataset.compact(tmp_path)
    assert (tmp_path / "README.md").read_text() == "# My project\n"


def test_moved_dataset_is_still_readable(tmp_path: Path, make_row) -> None:
    record(tmp_path / "a", make_row())
    dataset.compact(tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert dataset.read(tmp_path / "b") == [make_row()]
