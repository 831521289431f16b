"""The index: lists in the Hub's order, searches, filters and counts, kept up to date with the files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trnready.hub import catalog
from trnready.hub.catalog import About, Listed
from trnready.plan.twin_row import TwinRow
from trnready.results import dataset, journal
from trnready.space.index import Ask, BadQuery, Counts, Index, IndexNotWritable, cache_root, cores_for
from trnready.space.names import Names, fold

GIB = 1024**3


@pytest.fixture(scope="session")
def index(study_dir: Path, catalogs: Path, tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index(study_dir, catalogs, tmp_path_factory.mktemp("index"))


@pytest.fixture
def living(tmp_path: Path, catalogs: Path, make_row) -> Index:
    """An index of files that the test may change, and which answers from them at once."""
    shutil.copytree(catalogs, tmp_path / "catalog")
    journal.write(tmp_path, make_row())
    dataset.compact(tmp_path)
    return Index(tmp_path, tmp_path / "catalog", tmp_path / "index", look_every_s=0, patience_s=60)


def names(index: Index, **asked: object) -> list[str]:
    listing = index.list(Ask(**asked))
    return [entry.model_id for entry in listing.entries]


def test_lists_are_in_the_hubs_order(index):
    asked = Ask(view="downloads", task="text-generation", page_size=200)
    downloads = index.list(asked)
    assert [entry.position for entry in downloads.entries] == list(range(1, 121))
    assert downloads.entries[0].model_id == "Qwen/Qwen3-0.6B"
    trending = index.list(replace(asked, view="trending"))
    assert [entry.model_id for entry in trending.entries] == [e.model_id for e in downloads.entries][::-1]
    assert names(index, view="trending", task="image-text-to-text") == []
    assert names(index, view="downloads", task="no-such-task") == []


def test_a_page_is_a_part_of_the_whole(index):
    asked = Ask(view="downloads", task="text-generation", page_size=50)
    pages = [index.list(replace(asked, page=page)) for page in (1, 2, 3)]
    assert [len(page.entries) for page in pages] == [50, 50, 20]
    assert {(page.total, page.pages) for page in pages} == {(120, 3)}
    with pytest.raises(BadQuery, match="There is no page 4; this list has 3"):
        index.list(replace(asked, page=4))


def test_counts_have_denominators_and_stand_before_the_filters(index):
    # Of the list: tiny passed, the others were never tested; one is left out on purpose.
    everything = index.list(Ask(view="downloads", task="text-generation"))
    failed = index.list(Ask(view="downloads", task="text-generation", result="FAIL"))
    assert everything.counts == failed.counts
    assert everything.counts.listed == everything.total == 120
    assert everything.counts.tested == everything.counts.passed + everything.counts.failed
    assert failed.total == everything.counts.failed
    results = index.list(Ask(view="results"))
    by_hand = [entry.row.result for entry in index.list(Ask(view="results", page_size=200)).entries]
    assert results.counts == Counts(
        listed=len(by_hand),
        tested=by_hand.count("PASS") + by_hand.count("FAIL"),
        passed=by_hand.count("PASS"),
        failed=by_hand.count("FAIL"),
        skipped=by_hand.count("SKIPPED"),
    )


def test_the_row_is_the_newest_of_the_versions_and_device_asked_for(index):
    def row(**asked):
        (found,) = index.list(Ask(view="results", search="tiny-1b", **asked)).entries
        return found.row.neuronx_cc, found.row.device_kind, found.row.result

    assert row() == ("2.27.1", "hardware", "PASS")
    assert row(device_kind="software") == ("soft-0.1.0", "software", "PASS")
    assert row(neuronx_cc="soft-0.0.9") == ("soft-0.0.9", "software", "FAIL")
    assert row(library_version="5.23.0") == ("2.26.0", "hardware", "FAIL")
    assert names(index, view="results", search="tiny-1b", neuronx_cc="9.9") == []


def test_filters_by_result_reason_and_fingerprint(index):
    failed = index.list(Ask(view="results", device_kind="software", reason="unsupported_operator"))
    assert [entry.model_id for entry in failed.entries] == ["acme/late-3b", "acme/moe-16b"]
    (mark,) = {entry.row.fingerprint for entry in failed.entries}
    assert names(index, view="results", device_kind="software", fingerprint=mark) == [
        "acme/late-3b",
        "acme/moe-16b",
    ]
    assert index.list(Ask(view="downloads", result="untested")).total == 121 - 3
    assert names(index, view="results", result="untested") == []


def test_what_is_left_out_says_why_and_counts_as_skipped(index):
    left_out = index.list(Ask(view="selected", result="SKIPPED")).entries
    assert left_out
    for entry in left_out:
        assert entry.row is not None or entry.left_out is not None
    why = [entry for entry in left_out if entry.left_out]
    assert all(entry.left_out.why.endswith(".") for entry in why)
    assert names(index, view="selected", reason=why[0].left_out.reason)[0] == why[0].model_id


def test_columns_sort_both_ways_and_what_is_not_known_comes_last(index):
    def column(sort: str, descending: bool) -> list[object]:
        asked = Ask(view="downloads", task="text-generation", sort=sort, descending=descending, page_size=200)
        return [getattr(entry, sort) for entry in index.list(asked).entries]

    sizes = column("parameters", descending=True)
    known = [each for each in sizes if each is not None]
    assert known == sorted(known, reverse=True)
    assert column("parameters", descending=False)[: len(known)] == known[::-1]
    assert sizes[-1] is None
    assert column("parameters", descending=False)[-1] is None
    by_name = names(index, view="results", sort="name")
    assert by_name == sorted(by_name, key=str.casefold)
    assert names(index, view="results", sort="name", descending=True) == by_name[::-1]
    walls = [
        entry.row.wall_time_s if entry.row else None
        for entry in index.list(Ask(view="results", sort="wall_time", page_size=200)).entries
    ]
    timed = [each for each in walls if each is not None]
    assert timed == sorted(timed)
    assert walls[len(timed) :] == [None] * (len(walls) - len(timed))


@pytest.mark.parametrize(
    "search", ["a", "ac", "acm", "TINY", "1b", "-", "/", "é", "acme fill 09", "3 0", "\t", "ß", "🧪x", "   "]
)
def test_a_search_finds_names_that_hold_every_part(index, search):
    snapshot = index.snapshot()
    everything = {e.model_id for e in snapshot.names.models(range(len(snapshot.names)))}
    everything |= {run.model_id for run in snapshot.runs.all}
    wanted = {name for name in everything if all(part in fold(name) for part in fold(search).split())}
    found = {
        entry.model_id
        for view in ("selected", "downloads", "results")
        for page in range(1, index.list(Ask(view=view, search=search, page_size=200)).pages + 1)
        for entry in index.list(Ask(view=view, search=search, page=page, page_size=200)).entries
    }
    assert found == wanted


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
@settings(max_examples=60)
@example('"')
@example('" OR 1=1 --')
@example("NEAR(a b, 3) * ^ % _ :")
@example("name : tiny")
@example("ti\0ny")
@example("-tiny AND NOT")
def test_no_search_is_taken_for_anything_but_parts_of_a_name(index, search):
    for entry in index.list(Ask(view="downloads", search=search)).entries:
        assert all(part in fold(entry.model_id) for part in fold(search).split())


def test_questions_without_sense_are_refused_with_a_sentence(index):
    with pytest.raises(BadQuery, match="The search is 10,000 characters long; a model's name needs no more"):
        index.list(Ask(search="a" * 10_000))
    for wrong in ({"view": "x"}, {"sort": "x"}, {"result": "x"}, {"reason": "x"}, {"device_kind": "x"}):
        with pytest.raises(BadQuery, match=r"There is no .* 'x'; it is one of"):
            index.list(Ask(**wrong))
    with pytest.raises(BadQuery, match="A page holds 1 to 200 models, not 0"):
        index.list(Ask(page_size=0))


def test_a_model_is_found_by_its_name_in_any_capitals(index):
    assert index.model("qwen/QWEN3-0.6b").model_id == "Qwen/Qwen3-0.6B"
    assert index.model("acme/late-3b").row.result == "FAIL"
    assert index.model("nobody/nothing") is None
    assert index.model("Qwen/Qwen3-0.6B", "image-text-to-text") is None
    rows = index.rows_of("acme/tiny-1b")
    assert [row.run_id for row in rows] == [run.run_id for run in index.runs_of("acme/tiny-1b")]
    assert [row.device_kind for row in rows] == sorted(row.device_kind for row in rows)
    assert index.row(rows[0].run_id) == rows[0]
    assert json.loads(index.row_json(rows[0].run_id)) == rows[0].to_json()
    assert index.row("nothing") is None


def test_predictions_say_what_the_twin_did_and_how_many_cores_hold_it(index):
    small = index.model("acme/twin-says-nothing").prediction
    assert (small.twin.model_type, small.cores, small.instance) == ("llama", 1, "trn2.3xlarge")
    large = index.model("openai/gpt-oss-120b").prediction
    assert (large.cores, large.instance, large.too_large) == (16, "trn2.48xlarge", False)
    huge = index.model("zai/huge-700b").prediction
    assert (huge.cores, huge.too_large, huge.weight_bytes) == (None, True, 1_400_000_000_000)
    assert (small.quantized, index.model("acme/Small-8B-AWQ").prediction.quantized) == (None, "AWQ")
    assert index.model("acme/strange-2b").prediction.twin is None
    assert index.model("acme/nameless").prediction is None


@pytest.mark.parametrize(
    ("size", "cores"), [(1, 1), (24 * GIB, 1), (24 * GIB + 1, 2), (384 * GIB, 16), (384 * GIB + 1, None)]
)
def test_cores_hold_so_many_bytes(size, cores):
    assert cores_for(size) == cores


def test_pairs_are_hardware_first_and_newest_first(index):
    told = [(pair.device_kind, pair.neuronx_cc, pair.library_version) for pair in index.pairs()]
    real = [each for each in told if "<" not in each[1]]
    assert real == [
        ("hardware", "2.27.1", "5.24.0"),
        ("hardware", "2.26.0", "5.24.0"),
        ("hardware", "2.26.0", "5.23.0"),
        ("software", "soft-0.1.0", "5.24.0"),
        ("software", "soft-0.0.9", "5.24.0"),
    ]
    assert sum(pair.counts.listed for pair in index.pairs()) == len(index.snapshot().runs.all)


def test_coverage_counts_models_and_their_downloads(index):
    found = index.coverage(task="text-generation")
    share = next(each for each in found.shares if (each.list, each.top) == ("downloads", None))
    entries = index.list(Ask(view="downloads", task="text-generation", page_size=200)).entries
    tested = [entry for entry in entries if entry.row and entry.row.result != "SKIPPED"]
    assert (share.listed, share.tested) == (120, len(tested))
    assert share.downloads == sum(entry.downloads for entry in entries)
    assert share.tested_downloads == sum(entry.downloads for entry in tested)
    assert share.passed + share.failed == share.tested
    head = next(each for each in found.shares if (each.list, each.top) == ("downloads", 100))
    assert head.listed == 100
    llama = next(each for each in found.architectures if each.model_type == "llama")
    assert llama.listed == sum(entry.model_type == "llama" for entry in entries)
    assert llama.twin.result == "PASS"
    # An architecture that no list has still shows what its twin did.
    assert any(each.listed == 0 and each.twin for each in found.architectures)


def test_failures_that_are_alike_stand_together(index):
    groups = index.fingerprints(device_kind="software")
    operator = next(group for group in groups if group.reason == "unsupported_operator" and group.rows > 1)
    assert operator.models == ["acme/late-3b", "acme/moe-16b"]
    assert operator.newest.tested_at == max(
        run.tested_at for name in operator.models for run in index.runs_of(name) if run.result == "FAIL"
    )
    assert [group.rows for group in groups] == sorted((group.rows for group in groups), reverse=True)


def test_new_rows_and_lists_are_taken_up_without_a_restart(living, make_row):
    assert names(living, view="results") == ["acme/tiny-1b"]
    before = living.snapshot()
    assert living.snapshot() is before
    journal.write(living.results_dir, make_row(model_id="acme/unlisted", run_id="other", model_type="llama"))
    assert names(living, view="results") == ["acme/tiny-1b", "acme/unlisted"]
    assert living.snapshot().names is before.names
    assert names(living, view="downloads", search="fresh") == []
    models = [Listed(model_id="acme/fresh", task="text-generation", downloads=1, downloads_position=1)]
    path = living.results_dir / "catalog" / "text-generation.parquet"
    path.write_bytes(catalog.encode(About("a test", "2026-11", None), models))
    assert names(living, view="downloads", task="text-generation") == ["acme/fresh"]
    about = {each.task: each.downloads_at for each in living.about_catalogs()}
    assert about == {"image-text-to-text": "2026-10", "text-generation": "2026-11"}


def test_the_last_good_rows_and_lists_are_kept_while_a_file_is_broken(living):
    living.snapshot()
    (rows,) = dataset.data_files(living.results_dir)
    lists = living.results_dir / "catalog" / "text-generation.parquet"
    good = rows.read_bytes(), lists.read_bytes()
    rows.write_bytes(good[0][:100])
    lists.write_bytes(good[1][:100])
    assert living.list(Ask(view="results")).total == 1
    assert living.list(Ask(view="downloads", task="text-generation")).total == 120
    assert list(living.notices()) == [
        f"data/{rows.name} is damaged and cannot be read. Its last good rows are shown instead.",
        "text-generation.parquet is damaged and cannot be read; what it lists is not shown.",
    ]
    rows.write_bytes(good[0])
    lists.write_bytes(good[1])
    assert list(living.notices()) == []


def test_what_was_never_good_is_told_and_the_rest_is_shown(living, make_row):
    newer = make_row(run_id="newer").to_json() | {"schema_version": 99}
    (living.results_dir / "journal").mkdir(exist_ok=True)
    (living.results_dir / "journal" / "newer.json").write_text(json.dumps(newer))
    (living.results_dir / "catalog" / "selected.yaml").write_text("models: [")
    assert list(living.notices()) == [
        "journal/newer.json was written by a newer trnready and cannot be read by this one. "
        "Its rows are not shown.",
        "selected.yaml is damaged and cannot be read; what it lists is not shown.",
    ]
    assert names(living, view="results") == ["acme/tiny-1b"]
    assert living.list(Ask(view="selected")).total == 0


def test_runs_of_a_device_with_injected_faults_say_nothing_of_a_model(living, make_row):
    before = living.model("acme/tiny-1b")
    faulty = make_row(model_id="acme/tiny-1b", neuronx_cc="soft-9.9.9+faults", run_id="faulty")
    entry = journal.write(living.results_dir, faulty)
    assert list(living.notices()) == [
        f"journal/{entry.name} holds 1 run of a device with injected faults, not shown."
    ]
    assert living.model("acme/tiny-1b") == before
    assert living.row("faulty") is None
    assert "soft-9.9.9+faults" not in {pair.neuronx_cc for pair in living.pairs()}


def test_a_start_takes_the_index_that_is_there_and_survives_a_damaged_one(living):
    first = living.snapshot()
    folder = first.names.path.parent
    again = Index(living.results_dir, living.results_dir / "catalog", folder)
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert again.list(Ask(view="downloads", task="text-generation")).total == 120
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == written
    for path in folder.iterdir():
        path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    repaired = Index(living.results_dir, living.results_dir / "catalog", folder)
    assert repaired.list(Ask(view="downloads", task="text-generation")).total == 120
    assert names(repaired, view="results") == ["acme/tiny-1b"]


def test_nothing_at_all_is_an_empty_index(tmp_path):
    empty = Index(tmp_path / "none", tmp_path, tmp_path / "index")
    for view in ("selected", "trending", "downloads", "results"):
        assert empty.list(Ask(view=view, search="a")).counts == Counts(0, 0, 0, 0, 0)
    assert (list(empty.pairs()), list(empty.fingerprints()), empty.model("a/b")) == ([], [], None)
    assert empty.coverage().shares == []


def test_an_index_that_cannot_be_written_is_a_sentence(tmp_path, catalogs):
    (tmp_path / "file").write_text("")
    index = Index(tmp_path, catalogs, tmp_path / "file" / "index")
    with pytest.raises(
        IndexNotWritable, match=r"the index cannot be written to .*/file/index: .*Not a directory"
    ):
        index.snapshot()


def test_a_fault_while_something_new_is_taken_up_leaves_what_was(living, make_row, monkeypatch, caplog):
    living.snapshot()
    monkeypatch.setattr("trnready.space.index.Snapshot", None)
    journal.write(living.results_dir, make_row(model_id="acme/other", run_id="other"))
    assert names(living, view="results") == ["acme/tiny-1b"]
    assert "the index stays as it was" in caplog.text


def test_the_cache_is_where_the_user_has_it_or_a_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "trnready" / "space"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache_root().name.startswith("trnready-space-")


def test_a_model_listed_under_another_task_keeps_its_facts(living, make_row):
    journal.write(
        living.results_dir,
        make_row(model_id="acme/look-3b", task="text-generation", run_id="look", model_type="qwen2"),
    )
    entry = living.model("acme/look-3b")
    assert (entry.task, entry.downloads, entry.model_type, entry.row.run_id) == (
        "text-generation",
        9,
        "qwen2_vl",
        "look",
    )
    assert living.model("acme/look-3b", "image-text-to-text").row is None


def test_a_names_file_of_another_format_is_none(tmp_path):
    with pytest.raises(Exception, match="unable to open"):
        Names(tmp_path / "nothing.sqlite")


def test_twins_are_looked_up_by_architecture_and_task(index):
    twins = index.snapshot().twins
    assert isinstance(twins["llama", "text-generation"], TwinRow)
    assert all(key == (twin.model_type, twin.task) for key, twin in twins.items())
    split = index.snapshot().split_twins
    assert split["llama", "text-generation"].cores == 2
    assert index.model("acme/twin-says-nothing").prediction.split_twin == split["llama", "text-generation"]
