"""The API, the badge, the feed and `trnready can-i-run`: typed, small, and no prediction sold as a result."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from typer.testing import CliRunner

from trnready.cli import app
from trnready.errors import TrnreadyError
from trnready.results.row import REASONS, Row
from trnready.space import feed
from trnready.space.answer import NO_WAY

HOSTILE = "<script>"
ATOM = "{http://www.w3.org/2005/Atom}"


@pytest.fixture(scope="session")
def space(study_dir: Path, make_space) -> TestClient:
    return TestClient(make_space(study_dir))


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_as_the_description_says(space, mode):
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", space.app)
    operations = [each.ok() for each in schema.get_all_operations()]
    assert len(operations) == 11
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and "page" not in {each.name for each in operation.query}:
            continue  # Any text is a question; only numbers can be asked for wrongly.

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
        def check(case):
            case.call_and_validate()

        check()


def test_a_list_has_rows_reasons_and_predictions(space):
    said = space.get("/api/v1/models", params={"view": "downloads", "task": "text-generation"}).json()
    assert (said["total"], said["page"], said["pages"]) == (120, 1, 3)
    by_name = {each["model_id"]: each for each in said["models"]}
    assert by_name["acme/tiny-1b"]["row"]["device_kind"] == "hardware"
    huge = by_name["zai/huge-700b"]
    assert (huge["row"], huge["prediction"]["too_large"]) == (None, True)
    assert huge["prediction"]["sentence"].startswith("Prediction, not a result: ")
    left_out = space.get("/api/v1/models", params={"result": "SKIPPED"}).json()["models"]
    assert any(each["left_out"] and each["left_out"]["why"] for each in left_out)


def test_a_model_is_answered_in_a_word_a_sentence_and_its_numbers(space):
    said = space.get("/api/v1/models/acme/tiny-1b").json()
    assert (said["answer"], said["result"], said["device_kind"]) == ("yes", "PASS", "hardware")
    assert said["sentence"].startswith("acme/tiny-1b runs on ")
    assert (said["prediction"], said["page"]) == (None, "/models/acme/tiny-1b")
    old = space.get("/api/v1/models/acme/tiny-1b", params={"neuronx_cc": "soft-0.0.9"})
    assert old.json()["answer"] == "no"
    assert old.json()["sentence"].endswith("This is no result from Trainium.")
    assert len(old.content) < 2000


def test_a_prediction_is_no_answer(space):
    said = space.get("/api/v1/models/Qwen/Qwen3-0.6B", params={"device_kind": "software"}).json()
    assert (said["answer"], said["result"], said["run_id"]) == ("unknown", None, None)
    assert "was not tested with device kind software. Prediction, not a result: a shrunk" in said["sentence"]
    # A row of a twin is a prediction too, whatever its result.
    twin = space.get("/api/v1/models/%2Fsrv%2Fmodels%2Fmy%20model%20%231%3F%2F..%2F50%25%2Fcaf%C3%A9").json()
    assert (twin["checkpoint_kind"], twin["answer"]) == ("twin", "unknown")


def test_a_row_comes_whole(space, study_rows: list[Row]):
    for row in study_rows:
        if row.score is not None and row.score > 40:
            said = space.get(f"/api/v1/runs/{row.run_id}").json()
            assert said == json.loads(json.dumps(row.to_json()))
            assert said["score_steps"][-3:] == ["NaN", "Infinity", 310.0]
    assert space.get("/api/v1/runs/none").json() == {"error": "There is no such run."}


def test_what_changed_between_two_pairs(space):
    pair = "neuronxcc-{}_transformers-5.24.0".format
    asked = {"before": pair("soft-0.0.9"), "after": pair("soft-0.1.0"), "device_kind": "software"}
    said = space.get("/api/v1/compare", params=asked).json()
    assert said["after"]["neuronx_cc"] == "soft-0.1.0"
    kinds = {each["model_id"]: each["kind"] for each in said["changes"]}
    assert (kinds["acme/late-3b"], kinds["acme/small-2b"]) == ("broken", "fixed")
    assert (kinds["acme/moe-16b"], kinds["acme/gone-3b"]) == ("still_failing", "gone")
    assert said["counts"]["broken"] == list(kinds.values()).count("broken")
    none = space.get("/api/v1/compare", params={"before": "nothing"})
    assert none.status_code == 404
    assert none.json()["error"].startswith("There are no results with the versions 'nothing'; there are ")


def test_overviews_say_what_the_pages_say(space):
    about = space.get("/api/v1/about").json()
    assert {"text-generation", "image-text-to-text"} <= set(about["tasks"])
    assert about["catalogs"][0]["source"] == "the tests"
    assert about["reasons"]["mismatch"].startswith("What the device computed differs from the CPU")
    assert [pair["device_kind"] for pair in space.get("/api/v1/pairs").json()][:1] == ["hardware"]
    covered = space.get("/api/v1/coverage").json()
    assert {each["list"] for each in covered["shares"]} == {"trending", "downloads"}
    failures = space.get("/api/v1/failures", params={"device_kind": "software"}).json()
    assert any(each["models"] == ["acme/late-3b", "acme/moe-16b"] for each in failures)
    assert len(space.get("/api/v1/runs", params={"model": "acme/tiny-1b"}).json()) == 5


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("/api/v1/models?search=" + "a" * 10_000, 400, "The search is 10,000 characters long"),
        ("/api/v1/models?view=nothing", 400, "There is no view 'nothing'; it is one of selected"),
        ("/api/v1/models?page=many", 400, "The value of page makes no sense."),
        ("/api/v1/models?page=77", 404, "There is no page 77; this list has "),
        ("/api/v1/models/nobody/nothing", 404, "Nothing is known of a model of this name"),
        ("/api/v1/models/acme/tiny-1b?device_kind=toaster", 400, "There is no such kind of device"),
        ("/api/v1/nothing", 404, "There is no such page."),
    ],
)
def test_refusals_are_a_sentence_in_json(space, address, status, said):
    answer = space.get(address)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(said)


def test_anyone_may_read_and_nobody_may_write(space):
    answer = space.get("/api/v1/pairs", headers={"Origin": "https://example.org"})
    assert answer.headers["access-control-allow-origin"] == "*"
    refused = space.post("/api/v1/models")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
    asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "DELETE"}
    assert space.options("/api/v1/models", headers=asked).status_code == 400


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acme/tiny-1b", "Trainium: runs on 1 core"),
        ("acme/tiny-1b.svg?device_kind=software", "software cores, not Trainium: runs on 1 core"),
        ("acme/late-3b", "software cores, not Trainium: fails: unsupported operator"),
        ("acme/secret-70b", "software cores, not Trainium: not judged: gated"),
        ("openai/gpt-oss-120b", "Trainium: not tested"),
        ("nobody/nothing", "Trainium: not tested"),
    ],
)
def test_a_badge_says_it_in_a_few_words(space, name, said):
    answer = space.get(f"/badge/{name}" if ".svg" in name else f"/badge/{name}.svg")
    assert answer.headers["content-type"] == "image/svg+xml"
    assert ElementTree.fromstring(answer.text).attrib["aria-label"] == said


def test_the_feed_tells_what_is_new_fixed_and_broken(space):
    answer = space.get("/feed.xml")
    assert answer.headers["content-type"] == "application/atom+xml"
    assert HOSTILE not in answer.text
    entries = ElementTree.fromstring(answer.content).findall(f"{ATOM}entry")
    titles = [entry.find(f"{ATOM}title").text for entry in entries]
    assert "broken: acme/late-3b fails on 1 software core" in titles
    assert "fixed: acme/small-2b runs on 1 software core" in titles
    times = [entry.find(f"{ATOM}updated").text for entry in entries]
    assert times == sorted(times, reverse=True)
    assert all(
        entry.find(f"{ATOM}link").attrib["href"].startswith("http://testserver/models/") for entry in entries
    )


def test_news_are_changes_and_nothing_else(make_row):
    rows = [
        make_row(run_id="a", result="PASS", reason="match"),
        make_row(run_id="b", result="PASS", reason="match"),
        make_row(run_id="c", result="SKIPPED", reason="gated"),
        make_row(run_id="d", result="FAIL", reason="timeout"),
        make_row(run_id="e", result="PASS", reason="match"),
        make_row(run_id="f", result="PASS", reason="match", device_kind="hardware"),
    ]
    assert [(each.kind, each.run.run_id) for each in feed.news(rows)] == [
        ("new", "f"),
        ("fixed", "e"),
        ("broken", "d"),
        ("new", "a"),
    ]
    assert ElementTree.fromstring(feed.atom([], "http://x")).findall(f"{ATOM}entry") == []


@pytest.fixture
def ask(monkeypatch, tmp_path, catalogs) -> Callable[..., tuple[int, str]]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(catalogs, tmp_path / "catalog")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["can-i-run", *arguments])
        if isinstance(result.exception, TrnreadyError):
            return result.exception.exit_status, str(result.exception)
        return result.exit_code, result.stdout

    return run


def test_can_i_run_asks_a_folder(ask, study_dir):
    where = ("--results", str(study_dir))
    status, said = ask("acme/tiny-1b", *where)
    assert (status, said[:20]) == (0, "acme/tiny-1b runs on")
    assert ask("acme/late-3b", *where)[0] == 1
    status, said = ask("acme/late-3b", "--device-kind", "hardware", *where)
    assert (status, "was not tested" in said) == (2, True)
    assert ask("nobody/nothing", *where) == (
        2,
        "Nothing is known of nobody/nothing: it is in no list and has no result.\n",
    )
    assert ask("x", "--device-kind", "toaster")[0] == 2
    status, said = ask("acme/tiny-1b", "--task", "bogus", *where)
    assert (status, said[:45]) == (2, "there is no task 'bogus' here; trnready tests")
    assert ask(" ", *where) == (2, "name a model, such as Qwen/Qwen3-0.6B.")


def test_can_i_run_asks_a_space(ask, serve, make_space, study_dir):
    with serve(make_space(study_dir)) as address:
        status, said = ask("acme/tiny-1b", "--space", address)
        assert (status, said[:20]) == (0, "acme/tiny-1b runs on")
        assert ask("acme/tiny-1b", "--space", address, "--neuronx-cc", "soft-0.0.9")[0] == 1
        status, said = ask("openai/gpt-oss-120b", "--space", f"{address}/")
        assert (status, "Prediction, not a result" in said) == (2, True)
        status, said = ask("nobody/nothing", "--space", address)
        assert (status, said.startswith("nobody/nothing: Nothing is known of a model of this name")) == (
            2,
            True,
        )
        assert ask("a", "--space", f"{address}/static/style.css?")[0] == 2
    status, said = ask("acme/tiny-1b", "--space", address)
    assert status == 2
    assert said.startswith(f"the Space {address} does not answer (")
    assert ask("x", "--space", "ftp://x")[1] == (
        "'ftp://x' is no address of a Space; one begins with http:// or https://."
    )


def test_reasons_that_are_an_answer_are_reasons():
    assert set(REASONS["SKIPPED"]) > NO_WAY
