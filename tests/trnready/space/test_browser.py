"""The Space in a real browser: on a wide screen and a phone, light and dark, with scripts and without. Every
page and state is kept as a picture in `.screenshots/`, for people to look at."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI

from trnready.results import journal
from trnready.space.query import model_url

Serve = Callable[[FastAPI], AbstractContextManager[str]]

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[3]
SCREENS = ROOT / ".screenshots"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
WIDTHS = {"wide": 1280, "phone": 360}
PAGES = {
    "selected": "/",
    "selected-both": "/?device=any",
    "selected-search": "/?q=acme&device=any",
    "selected-nothing-found": "/?q=zzz",
    "selected-skipped": "/?result=SKIPPED",
    "trending": "/trending",
    "trending-without-an-order": "/trending?task=image-text-to-text",
    "downloads": "/downloads",
    "downloads-last-page": "/downloads?page=3",
    "results": "/results?device=any",
    "results-sorted": "/results?device=any&sort=memory&order=down",
    "compare": "/compare?device=software",
    "compare-one-kind": "/compare?device=software&change=fixed",
    "failures": "/failures?device=software",
    "failures-hidden": "/failures",
    "fingerprint": "/failures?fingerprint=5f0c2a9e",
    "coverage": "/coverage?architecture=afmoe&task=text-generation",
    "about": "/about",
    "model-history": "/models/acme/tiny-1b",
    "model-within-noise": "/models/acme/odd-words-3b",
    "model-wrong": "/models/acme/broken-7b?run=run-wrong",
    "model-judged": "/models/acme/broken-7b",
    "model-sharded": "/models/Qwen/Qwen3-30B-A3B",
    "model-skipped": "/models/acme/secret-70b",
    "model-untested": "/models/openai/gpt-oss-120b",
    "model-predicted": "/models/acme/filler-050",
    "model-left-out": "/models/zai/huge-700b",
    "model-unknown": "/models/no/such-model",
    "bad-version": "/?compiler=9.9",
    "bad-length": "/?q=" + "a" * 10_000,
}
AXE = {
    ("wide", "light"): (
        "selected-both", "selected-nothing-found", "downloads", "trending-without-an-order", "compare",
        "failures", "fingerprint", "coverage", "about", "model-history", "model-wrong", "model-sharded",
        "model-untested", "model-left-out", "bad-version", "hostile", "broken-files", "empty-results",
    ),
    ("phone", "light"): (),
    ("wide", "dark"): ("selected-both", "compare", "coverage", "model-wrong"),
    ("phone", "dark"): ("downloads", "failures", "model-sharded", "model-untested"),
}  # fmt: skip
"""Pages that axe looks at: each sort of page once, and the fullest in the dark and on the phone."""
OTHERS = ("/results", "/compare", "/failures", "/coverage")


@pytest.fixture(scope="module")
def bases(
    tmp_path_factory: pytest.TempPathFactory, study_dir: Path, study_rows, make_row, make_space, serve: Serve
) -> Iterator[dict[str, str]]:
    """Addresses of three Spaces: one with rows of every sort, one without rows, one with files that broke."""
    broken = tmp_path_factory.mktemp("broken")
    journal.write(broken, make_row())
    (broken / "journal" / "damaged.json").write_text("{")
    newer = make_row().to_json() | {"schema_version": 99}
    (broken / "journal" / "newer.json").write_text(json.dumps(newer))
    folders = {"study": study_dir, "empty": tmp_path_factory.mktemp("empty"), "broken": broken}
    with ExitStack() as stack:
        yield {name: stack.enter_context(serve(make_space(folder))) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def base(bases: dict[str, str]) -> str:
    return bases["study"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no Chromium on this machine; on Debian: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Opens pages that note every complaint of the browser, such as a breach of the content policy."""
    contexts: list[Any] = []

    def opened(width: int = 1280, **options: Any) -> tuple[Any, list[str]]:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page, complaints

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def addresses(bases: dict[str, str], study_rows) -> dict[str, str]:
    """Every page and state by name."""
    found = {name: bases["study"] + path for name, path in PAGES.items()}
    found["hostile"] = bases["study"] + model_url(study_rows[-1].model_id)
    found["local"] = bases["study"] + model_url("/srv/models/my model #1?/../50%/café")
    found |= {f"empty{path.replace('/', '-')}": bases["empty"] + path for path in OTHERS}
    found["empty-selected"] = bases["empty"] + "/"
    found["broken-files"] = bases["broken"] + "/results"
    return found


@pytest.mark.parametrize("screen", WIDTHS)
def test_every_page_fits_the_screen_the_policy_and_axe(
    open_page: Any, addresses: dict[str, str], screen: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page, complaints = open_page(WIDTHS[screen], color_scheme="light")
    SCREENS.mkdir(exist_ok=True)
    for name, where in addresses.items():
        page.goto(where)
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[screen], name
        assert page.locator("h1").count() == 1, name
        assert page.title() != "hacked", name
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=SCREENS / f"{name}-{screen}-{scheme}.png", full_page=True)
            if name in AXE[screen, scheme]:
                found = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
                grave = [
                    (each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] != "minor"
                ]
                assert grave == [], name
    assert [complaint for complaint in complaints if not re.search(r"\b40[04]\b", complaint)] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_the_paper(open_page: Any, addresses: dict[str, str], scheme: str) -> None:
    """Contrast of every text is at least 4.5 to 1, as the accessibility guidelines ask."""
    page, _ = open_page(color_scheme=scheme)
    for name in (
        "selected-both",
        "downloads",
        "compare",
        "coverage",
        "model-wrong",
        "model-untested",
        "about",
    ):
        page.goto(addresses[name])
        assert page.evaluate(CONTRAST) == [], name


CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => {
    const [r, g, b] = parse(c).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor, p = parse(c);
      if (p.length < 4 || p[3] > 0) return c;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || e.closest("svg, .skip") || !e.getClientRects().length) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(paper(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push([texts.currentNode.data.trim(), ratio]);
  }
  return poor;
}"""


def test_typing_part_of_a_name_filters_the_list_and_the_address(open_page: Any, base: str) -> None:
    page, complaints = open_page()
    page.goto(f"{base}/downloads")
    page.evaluate("window.still = true")
    page.get_by_label("Part of a model's name").press_sequentially("filler-11")
    page.wait_for_url(f"{base}/downloads?task=text-generation&q=filler-11")
    assert page.locator("tbody tr").count() == 10
    assert "passed 0 of 0 tested, 10 listed." in page.get_by_role("status").inner_text()
    assert page.evaluate("document.activeElement.id") == "q"
    page.get_by_label("Result").select_option("Not tested")
    page.wait_for_url(f"{base}/downloads?task=text-generation&q=filler-11&result=untested")
    page.get_by_role("columnheader", name="Model").get_by_role("link").click()
    page.wait_for_url(re.compile("sort=name"))
    assert page.evaluate("window.still"), "the page was loaded anew"
    shared, _ = open_page()
    shared.goto(page.url)
    assert shared.locator("tbody").inner_text() == page.locator("tbody").inner_text()
    assert shared.get_by_label("Part of a model's name").input_value() == "filler-11"
    page.go_back()
    page.wait_for_url(f"{base}/downloads?task=text-generation&q=filler-11&result=untested")
    assert complaints == []


def test_pickers_keep_the_order_that_was_chosen(open_page: Any, base: str) -> None:
    page, _ = open_page()
    page.goto(f"{base}/results?device=any")
    page.get_by_role("columnheader", name="Peak memory").get_by_role("link").click()
    page.wait_for_url(re.compile("sort=memory"))
    page.get_by_label("Device").select_option("Software cores")
    page.wait_for_url(re.compile("device=software"))
    assert "sort=memory" in page.url
    assert page.get_by_role("columnheader", name="Peak memory").get_attribute("aria-sort") == "ascending"


def test_copy_button_copies_the_script(open_page: Any, base: str, example_rows) -> None:
    page, complaints = open_page(permissions=["clipboard-read", "clipboard-write"])
    page.goto(base + PAGES["model-within-noise"])
    page.get_by_role("button", name="Copy run.py").click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == example_rows[0].run_py
    assert complaints == []


def test_copy_button_selects_when_the_clipboard_is_shut(open_page: Any, base: str, example_rows) -> None:
    page, _ = open_page()
    page.add_init_script("navigator.clipboard.writeText = () => Promise.reject(new Error('no'))")
    page.goto(base + PAGES["model-within-noise"])
    page.get_by_role("button", name="Copy run.py").click()
    page.get_by_text("Selected: press Ctrl+C").wait_for()
    assert page.evaluate("getSelection().toString()").strip() == example_rows[0].run_py.strip()


def test_newcomer_finds_how_to_run_smollm2_in_three_clicks(
    open_page: Any, tmp_path: Path, make_row, example_rows, make_space, serve: Serve
) -> None:
    """With the catalog and the Selected list that the project carries."""
    name = "HuggingFaceTB/SmolLM2-135M-Instruct"
    journal.write(tmp_path, make_row(model_id=name, run_py=example_rows[0].run_py))
    with serve(make_space(tmp_path, ROOT / "catalog")) as base:
        page, _ = open_page(permissions=["clipboard-read", "clipboard-write"])
        page.goto(f"{base}/downloads")
        assert "9,501 listed" in page.get_by_role("status").inner_text()
        page.goto(base)
        page.get_by_label("Part of a model's name").click()
        page.keyboard.type("smollm2")
        page.get_by_role("link", name=name, exact=True).click()
        assert page.get_by_role("heading", name="How to run it").is_visible()
        page.get_by_role("button", name="Copy run.py").click()
        page.get_by_text("Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == example_rows[0].run_py
        # Or without typing: what passed, the model, the script.
        page.goto(base)
        page.get_by_role("status").get_by_role("link", name="1", exact=True).click()
        page.get_by_role("link", name=name, exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("link", name="Download", exact=True).click()
        assert download.value.path().read_text() == example_rows[0].run_py


def test_everything_works_without_scripts(open_page: Any, base: str, example_rows) -> None:
    page, _ = open_page(java_script_enabled=False)
    page.goto(base)
    page.get_by_label("Part of a model's name").fill("odd words")
    page.get_by_label("Device").select_option("Both")
    page.get_by_role("button", name="Show").click()
    assert page.url == f"{base}/?device=any&q=odd+words"
    page.get_by_role("link", name="Results", exact=True).last.click()
    page.get_by_role("link", name="acme/odd-words-3b").click()
    assert page.get_by_role("heading", level=1).inner_text() == "acme/odd-words-3b"
    assert page.get_by_role("button").count() == 0
    with page.expect_download() as download:
        page.get_by_role("link", name="Download", exact=True).click()
    assert download.value.suggested_filename == "run.py"
    assert download.value.path().read_text() == example_rows[1].run_py
    page.goto(f"{base}/compare?device=software")
    page.get_by_role("link", name=re.compile("fixed")).click()
    assert "change=fixed" in page.url
    page.get_by_role("link", name="Coverage").click()
    page.get_by_role("link", name=re.compile("^afmoe")).first.click()
    said = page.locator("#architecture").inner_text()
    assert "More graphs were compiled than one input shape needs" in said


def test_keyboard_alone_finds_a_model(open_page: Any, base: str) -> None:
    page, _ = open_page()
    page.goto(base)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.type("tiny")
    page.wait_for_url(re.compile(r"q=tiny"))
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "acme/tiny-1b":
            break
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/models/acme/tiny-1b"))


def test_markup_in_a_row_runs_nothing(open_page: Any, base: str, study_rows) -> None:
    page, complaints = open_page()
    paths = (
        "/results?device=any", "/failures?device=software", model_url(study_rows[-1].model_id),
        f"/?q={quote('<script>')}", f"/failures?fingerprint={quote(study_rows[-1].fingerprint)}",
    )  # fmt: skip
    for path in paths:
        page.goto(base + path)
        assert page.title() != "hacked"
        assert page.locator("main img:not(.shield), main script").count() == 0
    assert complaints == []


def test_links_lead_to_models_with_odd_names(open_page: Any, base: str) -> None:
    page, _ = open_page()
    page.goto(f"{base}/results?device=any")
    page.get_by_role("link", name="/srv/models").click()
    assert page.get_by_role("heading", level=1).inner_text() == "/srv/models/my model #1?/../50%/café"
