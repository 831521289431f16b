"""The pages and the API, asked over HTTP."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from fastapi.testclient import TestClient

from trnready.results import journal, meanings
from trnready.results.row import REASONS
from trnready.space.app import create_app
from trnready.space.headers import POLICY
from trnready.space.query import model_url


@pytest.fixture(scope="module")
def client(shared_results_dir: Path) -> TestClient:
    return TestClient(create_app(shared_results_dir))


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).strip()


def test_start_page_shows_every_row_and_the_counts(client: TestClient, example_rows) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.text.count('<tr role="row">') == len(example_rows) + 1
    assert page.text.count("software cores</span>") == 6
    assert page.text.count(">Trainium</span>") == 1
    assert "On Trainium: passed 1 of 1 tested" in text_of(page.text)
    assert "On software cores: passed 2 of 5 tested, 1 not judged" in text_of(page.text)


def test_search_finds_by_part_of_a_name(client: TestClient) -> None:
    page = client.get("/", params={"q": "odd-w"})
    assert page.text.count('<tr role="row">') == 2
    assert "1 result of 7 matches" in text_of(page.text)
    assert 'value="odd-w"' in page.text
    assert "No model's name holds “zzz”" in client.get("/", params={"q": "zzz"}).text.replace("&#39;", "'")


def test_api_gives_the_rows_of_the_page(client: TestClient) -> None:
    for query in ("", "acme", "BROKEN", "zzz"):
        data = client.get("/api/models.json", params={"q": query}).json()
        page = client.get("/", params={"q": query}).text
        assert [m["run_id"] for m in data["models"]] == re.findall(r"run=([\w-]+)\"><bdi>", page)
    entry = client.get("/api/models.json", params={"q": "tiny"}).json()["models"][0]
    assert (entry["model_id"], entry["result"], entry["neuron_cores"]) == ("acme/tiny-1b", "PASS", 1)
    assert (entry["wall_time_s"], entry["device_kind"]) == (41.5, "software")
    assert client.get("/api/openapi.json").json()["paths"].keys() == {"/api/models.json"}


def test_model_page_shows_the_evidence(client: TestClient) -> None:
    page = client.get("/models/acme/odd-words-3b")
    text = text_of(page.text)
    assert page.status_code == 200
    assert "not on Trainium itself" in text
    assert '<span class="badge software">software cores</span>' in page.text
    assert "Score 0.62 ; up to 3 passes" in text
    assert "<mark>museums,</mark>" in page.text
    assert "<mark>galleries,</mark>" in page.text
    assert "Tokens part at step 9" in text
    assert "margin there 0.0125 logits" in text
    assert "Rounding noise 0.0213 logits" in text
    assert page.text.count('<rect class="low"') == 31
    assert page.text.count('<rect class="high"') == 1
    assert "fallback ops Some operators ran on the CPU" in text
    assert "Ran on the CPU: aten::nonzero , aten::unique2" in text
    assert "pip install transformers==5.24.0 &#39;accelerate&gt;=1.15&#39;" in page.text


def test_failure_is_explained(client: TestClient) -> None:
    text = text_of(client.get("/models/acme/broken-7b", params={"run": "run-wrong"}).text)
    assert "Stage verify : checking what was generated" in text
    assert f"Reason mismatch : {meanings.REASONS['mismatch']}".replace("'", "&#39;") in text
    assert "Fingerprint 5f0c2a9e" in text
    assert "What to try Compare with --dtype float32" in text
    assert "ERROR step 3: logits differ" in text
    assert "Graphs compiled not reported" in text
    assert "flaky A second run in a fresh process disagreed" in text
    assert "core 3" in text


def test_hardware_comes_first_and_says_what_the_judge_found(client: TestClient) -> None:
    page = client.get("/models/acme/broken-7b")
    text = text_of(page.text)
    assert "It runs on 16 Trainium cores of trn2.48xlarge" in text
    assert "Perplexity 48.2" in text
    head, others = page.text.split("Other results of this model")
    assert "software cores</span>" not in head
    assert "run-wrong" in others
    assert "software cores</span>" in others


@pytest.mark.parametrize("result", REASONS)
def test_every_reason_has_a_page(tmp_path: Path, make_row, result: str) -> None:
    for reason in REASONS[result]:
        journal.write(tmp_path, make_row(model_id=f"m/{reason}", result=result, reason=reason, run_id=reason))
    client = TestClient(create_app(tmp_path))
    for reason in REASONS[result]:
        page = client.get(f"/models/m/{reason}")
        assert page.status_code == 200
        assert meanings.REASONS[reason].replace("'", "&#39;") in page.text


def test_script_is_the_one_that_ran(client: TestClient, example_rows) -> None:
    script = client.get("/models/acme/tiny-1b/run.py")
    assert script.content.decode() == example_rows[0].run_py
    assert script.headers["content-disposition"] == 'attachment; filename="run.py"'
    assert script.headers["content-type"].startswith("text/x-python")
    missing = client.get("/models/acme/secret-70b/run.py")
    assert missing.status_code == 404
    assert "No script was recorded" in missing.text


@pytest.mark.parametrize(
    "name",
    [
        ".",
        "..",
        "./here",
        "/srv/a//b/",
        "../up/../../x",
        "C:\\models\\mine",
        "my model #1?&run=2%41",
        "a/run.py",
        "run.py",
        "モデル/é",
        "x" * 500,
        " ",
    ],
)
def test_model_of_any_name_has_a_page_and_a_script(tmp_path: Path, make_row, serve, name: str) -> None:
    """Asked of a real server, since the test client decodes an address once more than a server does."""
    journal.write(tmp_path, make_row(model_id=name, run_py="print()"))
    with serve(tmp_path) as base, httpx.Client(base_url=base) as client:
        (entry,) = client.get("/api/models.json").json()["models"]
        page = client.get(entry["url"])
        assert page.status_code == 200
        assert "It runs on 1 software core" in page.text
        (script,) = re.findall(r'<a href="([^"]+)" download', page.text)
        assert client.get(script.replace("&amp;", "&")).text == "print()"


def test_markup_in_any_field_is_only_text(client: TestClient, example_rows) -> None:
    for address in ("/", model_url(example_rows[-1].model_id)):
        page = client.get(address)
        assert page.status_code == 200
        assert "hacked" in page.text
        assert not re.search(r"<script(?! src=\"/static/)", page.text)
        assert "<img" not in page.text
        assert "onerror=&#34;" in page.text


@pytest.mark.parametrize(
    ("address", "status", "sentence"),
    [
        ("/models/no/such-model", 404, "There is no result of a model called no/such-model."),
        ("/models/", 404, "There is no result of a model called"),
        ("/models/" + "x" * 5000, 404, "There is no result of a model called xxx"),
        ("/models/" + quote("<script>alert(1)</script>", safe=""), 404, "called &lt;script&gt;alert"),
        ("/models/acme/tiny-1b?run=none", 404, "This model has no such run"),
        ("/models/..%2f..%2fetc%2fpasswd", 404, "There is no result of a model called ../../etc/passwd."),
        ("/static/..%2f..%2f..%2fresults%2frow.py", 404, "There is no such page."),
        ("/static/%2e%2e/app.py", 404, "There is no such page."),
        ("/nowhere", 404, "There is no such page."),
        ("/?q=" + "a" * 10_000, 400, "The search is 10,000 characters long"),
        ("/?page=99", 400, "There is no page 99; this list has 1."),
        ("/?page=many", 400, "The value of page makes no sense."),
    ],
)
def test_bad_address_gets_a_page_with_a_sentence(
    client: TestClient, address: str, status: int, sentence: str
) -> None:
    page = client.get(address)
    assert page.status_code == status
    assert page.headers["content-type"].startswith("text/html")
    assert sentence in page.text
    assert "Traceback" not in page.text
    assert page.headers["content-security-policy"] == POLICY


def test_bad_request_to_the_api_gets_json(client: TestClient) -> None:
    answer = client.get("/api/models.json", params={"q": "a" * 10_000})
    assert (answer.status_code, answer.json()["error"][:27]) == (400, "The search is 10,000 charac")
    assert client.get("/api/nothing").json() == {"error": "There is no such page."}


def test_space_can_only_be_read(client: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = client.request(method, "/")
        assert answer.status_code == 405
        assert "This Space can only be read." in answer.text
    head = client.head("/")
    assert (head.status_code, head.text) == (200, "")


def test_every_answer_has_the_security_headers(client: TestClient) -> None:
    for address in ("/", "/models/acme/tiny-1b", "/static/style.css", "/static/copy.js", "/api/models.json"):
        answer = client.get(address)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY


def test_pages_hold_nothing_inline_and_nothing_from_elsewhere(client: TestClient, example_rows) -> None:
    for address in ("/", *(model_url(row.model_id) for row in example_rows)):
        html = client.get(address).text
        assert " style=" not in html
        assert "<style" not in html
        assert not re.search(r"<[^>]*\son\w+=", html)
        assert not re.search(r'(src|href)="(https?:)?//', html)


def test_empty_and_missing_folders_say_how_to_fill_them(tmp_path: Path) -> None:
    missing = tmp_path / "my results"
    client = TestClient(create_app(missing))
    page = client.get("/").text.replace("&#39;", "'")
    assert f"There is no results folder at <code>{missing}</code> yet." in page
    assert f"trnready check HuggingFaceTB/SmolLM2-135M-Instruct --results '{missing}'" in page
    missing.mkdir()
    assert f"There are no results in <code>{missing}</code> yet." in client.get("/").text
    assert client.get("/api/models.json").json()["total"] == 0


def test_new_result_shows_without_a_restart(results_dir: Path, make_row) -> None:
    client = TestClient(create_app(results_dir))
    assert client.get("/models/acme/brand-new").status_code == 404
    journal.write(results_dir, make_row(model_id="acme/brand-new", run_id="new"))
    assert client.get("/models/acme/brand-new").status_code == 200


def test_broken_file_is_told_on_the_page(results_dir: Path) -> None:
    client = TestClient(create_app(results_dir))
    before = client.get("/api/models.json").json()
    (path,) = (results_dir / "data").glob("*soft*")
    path.write_bytes(b"PAR1 not really")
    page = client.get("/")
    assert "is damaged and cannot be read. Its last good rows are shown instead." in page.text
    assert client.get("/api/models.json").json() == before


def test_unforeseen_error_is_a_page_and_a_line_in_the_log(
    results_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("trnready.space.query.find", fail)
    client = TestClient(create_app(results_dir), raise_server_exceptions=False)
    page = client.get("/")
    assert page.status_code == 500
    assert "The Space could not answer" in page.text
    assert "secret detail" not in page.text
    assert "unforeseen error at '/'" in caplog.text
