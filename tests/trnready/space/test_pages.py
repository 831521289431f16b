"""The pages, asked over HTTP."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from trnready.results import card, journal, meanings
from trnready.results.row import REASONS
from trnready.space.headers import POLICY
from trnready.space.query import model_url

SOFTWARE = {"device": "software"}


@pytest.fixture(scope="module")
def client(shared_results_dir: Path, make_space) -> TestClient:
    return TestClient(make_space(shared_results_dir))


@pytest.fixture(scope="module")
def study(study_dir: Path, make_space) -> TestClient:
    return TestClient(make_space(study_dir))


def text_of(page: str) -> str:
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    return html.unescape(re.sub(r" ([,.:;])", r"\1", words)).strip()


def names_in(page: str) -> list[str]:
    return [
        html.unescape(name) for name in re.findall(r'scope="row" class="model"><a [^>]*><bdi>([^<]*)<', page)
    ]


def test_start_page_is_the_selected_list(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    # What was tested comes first, and after it our own order, which the heading # gives for all.
    ours = ["Qwen/Qwen3-0.6B", "acme/tiny-1b", "acme/broken-7b", "acme/look-3b", "zai/huge-700b"]
    tested = ["acme/broken-7b"]
    assert names_in(page.text) == tested + [name for name in ours if name not in tested]
    (address,) = re.findall(r'aria-sort="none" class="col-position num"><a href="([^"]+)"', page.text)
    assert names_in(client.get(html.unescape(address)).text) == ours
    (turned,) = re.findall(
        r'aria-sort="ascending" class="col-position num"><a href="([^"]+)"',
        client.get(html.unescape(address)).text,
    )
    assert names_in(client.get(html.unescape(turned)).text) == ours[::-1]
    both = names_in(client.get("/", params={"device": "any"}).text)
    assert both == ["acme/tiny-1b", "acme/broken-7b", "Qwen/Qwen3-0.6B", "acme/look-3b", "zai/huge-700b"]
    text = text_of(page.text)
    assert "On Trainium: passed 1 of 1 tested, 1 skipped, 5 listed." in text
    assert "results from software cores are hidden. Show both" in text
    assert "SKIPPED too large Its weights take 1.4 TB." in text
    assert "Not tested prediction: twin passed ≈ 1 core" in text
    assert "16 cores 2 h 10 min 21.0 GiB 2026-10-08" in text


def test_software_results_show_without_hardware_and_always_with_a_badge(
    tmp_path: Path, make_row, make_space
) -> None:
    journal.write(tmp_path, make_row())
    client = TestClient(make_space(tmp_path))
    page = client.get("/").text
    assert "On software cores: passed 1 of 1 tested" in text_of(page)
    assert page.count("software cores</span>") == 1
    assert "hidden" not in text_of(page)
    journal.write(
        tmp_path, make_row(device_kind="hardware", neuronx_cc="2.27.1", run_id="hw", model_id="acme/hw")
    )
    assert "1 result from software cores is hidden. Show both" in text_of(client.get("/").text)
    # The versions that were chosen have no result from hardware: theirs are shown.
    chosen = client.get("/", params={"compiler": "soft-0.1.0"}).text
    assert "On software cores: passed 1 of 1 tested" in text_of(chosen)


def test_results_hold_every_model_that_was_tested(client: TestClient, example_rows) -> None:
    page = client.get("/results", params={"device": "any"}).text
    assert set(names_in(page)) == {row.model_id for row in example_rows}
    assert page.count("software cores</span>") == 5
    assert page.count(">Trainium</span>") == 1
    both = client.get("/results", params=SOFTWARE).text
    assert "On software cores: passed 2 of 5 tested, 3 failed, 1 skipped, 6 listed." in text_of(both)


def test_search_finds_part_of_a_name_in_any_view(client: TestClient) -> None:
    for path in ("/", "/trending", "/downloads", "/results"):
        page = client.get(path, params={"q": "TINY", "device": "any"})
        assert names_in(page.text) == ["acme/tiny-1b"], path
    text = text_of(client.get("/downloads", params={"q": "filler-1"}).text)
    assert "passed 0 of 0 tested, 20 listed." in text
    nothing = client.get("/", params={"q": "zzz"}).text
    assert "No model here has “zzz” in its name." in text_of(nothing)
    assert '<a href="/downloads?q=zzz">Downloads</a>' in nothing


def test_filters_by_result_and_reason(client: TestClient) -> None:
    def found(**asked: str) -> list[str]:
        return names_in(client.get("/results", params={"device": "software"} | asked).text)

    assert found(result="PASS") == ["acme/odd-words-3b", "acme/tiny-1b"]
    assert found(reason="mismatch") == ["acme/broken-7b"]
    assert found(result="SKIPPED") == ["acme/secret-70b"]
    assert names_in(client.get("/", params={"result": "SKIPPED"}).text) == ["zai/huge-700b"]
    assert "acme/tiny-1b" in names_in(client.get("/", params={"result": "untested"}).text)


def test_lists_are_sorted_by_their_headings(client: TestClient) -> None:
    page = client.get("/results", params={"device": "any"}).text
    (address,) = re.findall(r'aria-sort="none" class="col-memory num"><a href="([^"]+)"', page)
    up = client.get(html.unescape(address)).text
    assert 'aria-sort="ascending" class="col-memory num"' in up
    (turned,) = re.findall(r'aria-sort="ascending" class="col-memory num"><a href="([^"]+)"', up)
    down = client.get(html.unescape(turned)).text
    assert names_in(down)[0] == "acme/broken-7b"
    known = [name for name in names_in(up) if name != "acme/secret-70b"]
    assert sorted(known) == sorted(name for name in names_in(down) if name != "acme/secret-70b")
    assert names_in(up)[-1] == names_in(down)[-1] == "acme/secret-70b"


def test_hub_lists_follow_the_hub_and_come_in_pages(client: TestClient) -> None:
    page = client.get("/downloads").text
    assert names_in(page)[:3] == ["Qwen/Qwen3-0.6B", "openai/gpt-oss-120b", "acme/tiny-1b"]
    assert "As of 2026-10; source: the tests." in text_of(page)
    last = client.get("/downloads", params={"page": 3}).text
    assert (len(names_in(page)), len(names_in(last))) == (50, 20)
    assert "Page 3 of 3" in text_of(last)
    trending = client.get("/trending").text
    assert names_in(trending)[0] == "acme/filler-119"
    assert "As of 2026-10-05" in text_of(trending)


def test_trending_says_how_an_order_can_be_had(client: TestClient) -> None:
    text = text_of(client.get("/trending", params={"task": "image-text-to-text"}).text)
    assert "The catalog of this Space has no trend order." in text
    assert "trnready catalog refresh --task image-text-to-text" in text


def test_address_is_shared_without_what_was_left_empty(client: TestClient) -> None:
    asked = "/downloads?q=Qwen&task=&compiler=&version=&device=hardware&result=&reason="
    answer = client.get(asked, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/downloads?device=hardware&q=Qwen")
    by_htmx = client.get(asked, headers={"HX-Request": "true"})
    assert by_htmx.status_code == 200
    assert by_htmx.headers["hx-push-url"] == "/downloads?device=hardware&q=Qwen"
    typed = client.get(asked, headers={"HX-Request": "true", "HX-Source": "input#q"})
    assert typed.headers["hx-replace-url"] == "/downloads?device=hardware&q=Qwen"


def test_untested_model_gets_a_prediction_that_says_so(client: TestClient) -> None:
    page = client.get("/models/openai/gpt-oss-120b")
    text = text_of(page.text)
    assert page.status_code == 200
    assert "This is a prediction, not a result" in text
    assert "PASS" not in page.text
    assert "trnready check openai/gpt-oss-120b" in text
    assert "117 B parameters take 217.6 GiB in bfloat16; 16 cores of trn2.48xlarge hold them" in text
    assert "16 cores of trn2.48xlarge, expert parallel: the fewest that hold the weights." in text
    assert "DistributedConfig(tp_size=16, ep_size=16)" in text
    filler = text_of(client.get("/models/acme/filler-050").text)
    assert (
        "It would probably run: a twin of its architecture ran right. By its size it needs 1 core" in filler
    )
    assert "A twin of llama with" in filler
    strange = text_of(client.get("/models/acme/strange-2b").text)
    assert "Whether it runs cannot be said: no twin of its architecture was run." in strange
    assert "None was run of no_such_type." in strange
    nameless = client.get("/models/acme/nameless")
    assert (nameless.status_code, "Whether it runs cannot be said" in nameless.text) == (200, True)


def test_left_out_model_says_why(client: TestClient) -> None:
    text = text_of(client.get("/models/zai/huge-700b").text)
    assert "SKIPPED too large It was left out on purpose." in text
    assert "Its weights take 1.4 TB." in text
    assert "It would be left out of a test: its parameters do not fit on 16 cores." in text


def test_name_with_other_capitals_leads_to_the_model(client: TestClient) -> None:
    answer = client.get("/models/OPENAI/GPT-OSS-120B", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/models/openai/gpt-oss-120b")


def test_model_page_shows_the_evidence(client: TestClient) -> None:
    page = client.get("/models/acme/odd-words-3b")
    text = text_of(page.text)
    assert page.status_code == 200
    assert "not on Trainium itself" in text
    assert '<span class="badge software">software cores</span>' in page.text
    assert "Score 0.62; up to 3 passes" in text
    assert "<mark>museums,</mark>" in page.text
    assert "<mark>galleries,</mark>" in page.text
    assert "Tokens part at step 9" in text
    assert "margin there 0.0125 logits, 0.587 times the noise" in text
    assert "Rounding noise 0.0213 logits" in text
    assert page.text.count('<rect class="low"') == 31
    assert page.text.count('<rect class="high"') == 1
    assert "fallback ops Some operators ran on the CPU" in text
    assert "Ran on the CPU: aten::nonzero, aten::unique2" in text
    assert "pip install transformers==5.24.0 'accelerate>=1.15'" in text


def test_failure_is_explained(client: TestClient) -> None:
    text = text_of(client.get("/models/acme/broken-7b", params={"run": "run-wrong"}).text)
    assert "Stage verify: checking what was generated" in text
    assert f"Reason mismatch: {meanings.REASONS['mismatch']}" in text
    assert "Fingerprint 5f0c2a9e No other run failed the same way." in text
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
def test_every_reason_has_a_page(tmp_path: Path, make_row, make_space, result: str) -> None:
    for reason in REASONS[result]:
        journal.write(tmp_path, make_row(model_id=f"m/{reason}", result=result, reason=reason, run_id=reason))
    client = TestClient(make_space(tmp_path))
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


def test_a_page_and_its_download_show_no_folder_of_the_testers(tmp_path: Path, make_row, make_space) -> None:
    folder = "/home/somebody/.cache/models/tiny-1b"
    row = make_row(model_id="acme/tiny-1b", revision="local-0", run_py=f'MODEL = "{folder}"\nprint(MODEL)\n')
    journal.write(tmp_path, row)
    client = TestClient(make_space(tmp_path))
    page = client.get("/models/acme/tiny-1b").text
    assert "/home/somebody" not in page
    assert "The test read the model from a folder of its own machine." in page
    assert '<a href="/about#device">how to get it</a>' in page
    line = 'MODEL = "acme/tiny-1b"  # in the test, a folder with this model'
    assert client.get("/models/acme/tiny-1b/run.py").text == f"{line}\nprint(MODEL)\n"
    about = client.get("/about").text
    assert 'id="device"' in about
    assert (
        'pip install torch==2.13.0 numpy "setuptools&gt;=77" ninja\npip install --no-build-isolation .'
        in about
    )


NAMES = [
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
]


def test_model_of_any_name_has_a_page_and_a_script(tmp_path: Path, make_row, make_space, serve) -> None:
    """Asked of a real server, since the test client decodes an address once more than a server does."""
    for number, name in enumerate(NAMES):
        run_py = f"print({number})"
        journal.write(tmp_path, make_row(model_id=name, run_py=run_py, run_id=f"run-{number}"))
    with serve(make_space(tmp_path)) as base, httpx.Client(base_url=base) as client:
        listed = client.get("/results").text
        for number, name in enumerate(NAMES):
            assert f'href="{html.escape(model_url(name))}"' in listed, name
            page = client.get(model_url(name))
            assert page.status_code == 200, name
            assert "It runs on 1 software core" in page.text
            (script,) = re.findall(r'<a href="([^"]+)" download', page.text)
            assert client.get(html.unescape(script)).text == f"print({number})"


def test_markup_in_any_field_is_only_text(client: TestClient, example_rows) -> None:
    for address in (
        "/results?device=software",
        "/failures?device=software",
        model_url(example_rows[-1].model_id),
    ):
        page = client.get(address)
        assert page.status_code == 200
        assert "hacked" in page.text
        assert not re.search(r"<script(?! src=\"/static/)", page.text)
        assert not re.search(r'<img(?! class="shield" src="/badge/)', page.text)
        assert "onerror=&#34;" in page.text


@pytest.mark.parametrize(
    ("address", "status", "sentence"),
    [
        ("/models/no/such-model", 404, "There is no model called no/such-model in the lists"),
        ("/models/", 404, "There is no model called"),
        ("/models/" + "x" * 5000, 404, "There is no model called xxx"),
        ("/models/" + quote("<script>alert(1)</script>", safe=""), 404, "called &lt;script&gt;alert"),
        ("/models/acme/tiny-1b?run=none", 404, "This model has no such run"),
        ("/models/..%2f..%2fetc%2fpasswd", 404, "There is no model called ../../etc/passwd in"),
        ("/static/..%2f..%2f..%2fresults%2frow.py", 404, "There is no such page."),
        ("/static/%2e%2e/app.py", 404, "There is no such page."),
        ("/nowhere", 404, "There is no such page."),
        ("/?q=" + "a" * 10_000, 400, "The search is 10,000 characters long"),
        ("/?page=99", 404, "There is no page 99; this list has 1."),
        ("/?page=many", 400, "The value of page makes no sense."),
        ("/?task=juggling", 404, "There is no task juggling."),
        ("/?compiler=9.9", 404, "There is no compiler version 9.9."),
        ("/?version=9.9", 404, "There is no Transformers version 9.9."),
        ("/?device=toaster", 400, "There is no device toaster."),
        ("/?result=MAYBE", 400, "There is no result MAYBE."),
        ("/?reason=spite", 400, "There is no reason spite."),
        ("/?sort=luck", 400, "There is no column to sort by luck."),
        ("/?order=sideways", 400, "There is no order sideways."),
        ("/compare?before=x", 404, "There are no results with the versions x."),
        ("/failures?reason=x", 400, "There is no reason to fail called x."),
        ("/coverage?architecture=x", 404, "There is no architecture called x for this task."),
        ("/coverage?device=x", 400, "There is no device kind x"),
        ("/compare?change=%3Cscript%3E", 400, "There is no change called &lt;script&gt;"),
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


PARAMETERS = (
    "q", "task", "compiler", "version", "device", "result", "reason", "sort", "order", "page", "before",
    "after", "change", "pair", "fingerprint", "architecture", "run", "id",
)  # fmt: skip
VALUES = st.text(max_size=12) | st.sampled_from(
    [
        "",
        "software",
        "any",
        "PASS",
        "untested",
        "mismatch",
        "memory",
        "down",
        "2",
        "-1",
        "9" * 40,
        "1e3",
        "%00",
    ]
)


@settings(max_examples=60)
@given(
    st.sampled_from(["/", "/downloads", "/results", "/compare", "/failures", "/coverage", "/models/"]),
    st.dictionaries(st.sampled_from(PARAMETERS), VALUES, max_size=4),
)
def test_any_question_gets_a_page(study: TestClient, path: str, asked: dict[str, str]) -> None:
    page = study.get(path, params=asked)
    assert page.status_code in (200, 400, 404)
    assert page.text.count("<h1") == 1


def test_space_can_only_be_read(client: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = client.request(method, "/")
        assert answer.status_code == 405
        assert "This Space can only be read." in answer.text
    for address in ("/", "/compare", "/about", "/models/acme/tiny-1b"):
        head = client.head(address)
        assert (head.status_code, head.text) == (200, "")


def test_every_answer_has_the_security_headers(client: TestClient) -> None:
    for address in (
        "/",
        "/models/acme/tiny-1b",
        "/static/style.css",
        "/static/copy.js",
        "/static/htmx.min.js",
    ):
        answer = client.get(address)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY


class Tags(HTMLParser):
    """Collects the tags of a page with their attributes, as a browser reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    @classmethod
    def of(cls, page: str) -> list[tuple[str, dict[str, str | None]]]:
        parser = cls()
        parser.feed(page)
        return parser.found


PAGES = (
    "/", "/trending", "/downloads", "/results", "/compare", "/failures", "/coverage", "/about",
    "/compare?device=software", "/failures?device=software", "/coverage?architecture=llama",
    "/models/acme/tiny-1b", "/models/Qwen/Qwen3-30B-A3B", "/models/openai/gpt-oss-120b", "/models/none",
)  # fmt: skip


def test_pages_hold_nothing_inline_and_nothing_from_elsewhere(study: TestClient, study_rows) -> None:
    for address in (*PAGES, *{model_url(row.model_id) for row in study_rows}):
        page = study.get(address)
        assert page.status_code == (404 if address == "/models/none" else 200), address
        tags = Tags.of(page.text)
        names = {name for _, attributes in tags for name in attributes}
        assert not {name for name in names if name == "style" or name.startswith(("on", "hx-on"))}, address
        assert not {tag for tag, _ in tags} & {"style", "iframe", "object", "base"}
        for tag, attributes in tags:
            assert tag != "script" or attributes.keys() == {"src", "defer"}
            for name in ("src", "href", "action", "hx-get"):
                assert not re.match(r"\w+:|//", attributes.get(name) or ""), address
        assert [tag for tag, _ in tags].count("h1") == 1, address


def test_links_of_every_page_lead_somewhere(study: TestClient) -> None:
    tried: set[str] = set()
    for address in PAGES:
        for link in re.findall(r'href="([^"#][^"]*)"', study.get(address).text):
            tried.add(html.unescape(link).partition("#")[0])
    few = [
        link for link in sorted(tried) if "architecture=" not in link and "/models/acme/filler" not in link
    ]
    assert len(few) > 60
    for link in few:
        assert study.get(link).status_code == 200, link


def test_model_page_of_a_sharded_run(study: TestClient) -> None:
    text = text_of(study.get("/models/Qwen/Qwen3-30B-A3B").text)
    assert "It runs on 4 Trainium cores of trn2.3xlarge." in text
    assert "hf buckets sync hf://buckets/acme/neff-cache/neuronxcc-2.27.1 /tmp/neff_cache" in text
    assert "This copies 2 graphs built in testing" in text
    assert "The bars end at the 24.0 GiB that each core has." in text
    assert "core 3 15.0 GiB 62.5 %" in text
    assert "4 cores of trn2.3xlarge, tensor parallel: the fewest that hold the weights." in text
    assert "its 4 KV heads (model.layers.*.self_attn.k_proj) do not divide by 8" in text


def test_model_page_draws_its_history(study: TestClient) -> None:
    page = study.get("/models/acme/tiny-1b").text
    assert page.count('<g class="point pass"') == 2
    assert page.count('<g class="point fail"') == 1
    assert "FAIL with neuronx-cc 2.26.0, transformers 5.23.0, PASS with neuronx-cc 2.26.0" in page
    software = study.get("/models/acme/tiny-1b", params={"run": "run-1"}).text
    assert "FAIL with neuronx-cc soft-0.0.9, transformers 5.24.0, PASS with neuronx-cc soft-0.1.0" in software


def test_failure_links_to_every_row_with_its_fingerprint(study: TestClient) -> None:
    page = study.get("/models/acme/late-3b", params={"run": "run-late-3b-soft-0.1.0-"}).text
    assert "3 runs failed the same way." in text_of(page)
    (link,) = re.findall(r'href="(/failures\?fingerprint=[^"]+)"', page)
    same = study.get(link).text
    assert names_in(same) == ["acme/late-3b", "acme/moe-16b", "acme/moe-16b"]
    assert "aten::_grouped_mm is not implemented on neuron" in same


def test_coverage_counts_one_kind_of_device_and_shows_every_twin(study: TestClient) -> None:
    page = study.get("/coverage").text
    text = text_of(page)
    assert "Share of each list that was tested on Trainium" in text
    assert "first 100 models 2.0 % passed" in text
    assert re.search(r"text-generation 196 passed \d+ of 196", text)
    assert re.search(r"image-text-to-text 100 passed \d+ of 100", text)
    one = text_of(study.get("/coverage", params={"architecture": "llama", "task": "text-generation"}).text)
    assert "llama PASS match twin software cores" in one


def test_about_says_what_the_card_says(client: TestClient) -> None:
    text = text_of(client.get("/about").text)
    told = text + " ".join(card.render(Counter()).split())
    for sentence in (
        *meanings.RESULTS.values(), *meanings.REASONS.values(), *meanings.WARNINGS.values(), meanings.RULE,
        meanings.TEST, meanings.DEVICES, meanings.PASS_SAYS,
    ):  # fmt: skip
        assert told.count(" ".join(sentence.split())) >= 2


def test_empty_and_missing_folders_say_how_to_fill_them(tmp_path: Path, make_space) -> None:
    missing = tmp_path / "my results"
    client = TestClient(make_space(missing))
    page = text_of(client.get("/results").text)
    assert f"There is no results folder at {missing} yet." in page
    assert f"trnready check HuggingFaceTB/SmolLM2-135M-Instruct --results '{missing}'" in page
    missing.mkdir()
    assert f"There are no results in {missing} yet." in text_of(client.get("/results").text)
    for address in ("/", "/trending", "/downloads", "/compare", "/failures", "/coverage", "/about"):
        assert client.get(address).status_code == 200, address
    assert "passed 0 of 0 tested, 1 skipped, 5 listed" in text_of(client.get("/").text)


def test_without_any_catalog_the_lists_say_so(tmp_path: Path, make_space) -> None:
    empty = tmp_path / "no-catalogs"
    empty.mkdir()
    client = TestClient(make_space(tmp_path / "results", empty))
    for address in ("/", "/trending", "/downloads"):
        page = client.get(address)
        assert page.status_code == 200
        assert "trnready catalog refresh" in page.text
    assert "There is no catalog of the Hub's models here." in text_of(client.get("/coverage").text)


def test_new_result_shows_without_a_restart(tmp_path: Path, make_row, make_space) -> None:
    client = TestClient(make_space(tmp_path))
    assert client.get("/models/acme/brand-new").status_code == 404
    journal.write(tmp_path, make_row(model_id="acme/brand-new", run_id="new"))
    assert client.get("/models/acme/brand-new").status_code == 200


def test_broken_and_newer_files_are_told_on_every_page(results_dir: Path, make_row, make_space) -> None:
    client = TestClient(make_space(results_dir))
    before = names_in(client.get("/results?device=any").text)
    (path,) = (results_dir / "data").glob("*soft*")
    path.write_bytes(b"PAR1 not really")
    newer = make_row().to_json() | {"schema_version": 99}
    (results_dir / "journal" / "newer.json").write_text(json.dumps(newer))
    page = client.get("/results?device=any")
    assert names_in(page.text) == before
    for address in ("/", "/compare", "/models/acme/tiny-1b", "/about"):
        text = text_of(client.get(address).text)
        assert "is damaged and cannot be read. Its last good rows are shown instead." in text
        assert "newer.json was written by a newer trnready and cannot be read by this one." in text


def test_unforeseen_error_is_a_page_and_a_line_in_the_log(
    shared_results_dir: Path, make_space, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("trnready.space.lists.list_page", fail)
    client = TestClient(make_space(shared_results_dir), raise_server_exceptions=False)
    page = client.get("/")
    assert page.status_code == 500
    assert "The Space could not answer" in page.text
    assert "secret detail" not in page.text
    assert "unforeseen error at '/'" in caplog.text
