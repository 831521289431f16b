"""The Space in a real browser: on a wide screen and a phone, light and dark, with scripts and without."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from trnready.space.query import model_url

Serve = Callable[[Path], AbstractContextManager[str]]

pytestmark = pytest.mark.browser

SCREENS = Path(__file__).parents[3] / "artifacts" / "screens"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
WIDTHS = {"wide": 1280, "phone": 360}
PAGES = {
    "start": "/",
    "search": "/?q=acme",
    "nothing-found": "/?q=zzz",
    "within-noise": "/models/acme/odd-words-3b",
    "wrong": "/models/acme/broken-7b?run=run-wrong",
    "hardware": "/models/acme/broken-7b",
    "skipped": "/models/acme/secret-70b",
    "not-tested": "/models/no/such-model",
}


@pytest.fixture(scope="module")
def base(shared_results_dir: Path, serve: Serve) -> Iterator[str]:
    with serve(shared_results_dir) as address:
        yield address


@pytest.fixture(scope="module")
def empty_base(tmp_path_factory: pytest.TempPathFactory, serve: Serve) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("empty")) as address:
        yield address


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", WIDTHS)
def test_every_page_fits_the_screen_and_the_policy(
    open_page: Any, base: str, empty_base: str, example_rows, screen: str, scheme: str
) -> None:
    page, complaints = open_page(WIDTHS[screen], color_scheme=scheme)
    addresses = {name: base + path for name, path in PAGES.items()}
    addresses["hostile"] = base + model_url(example_rows[-1].model_id)
    addresses["local"] = base + model_url(example_rows[-2].model_id)
    addresses["empty"] = empty_base
    SCREENS.mkdir(parents=True, exist_ok=True)
    for name, where in addresses.items():
        page.goto(where)
        page.screenshot(path=SCREENS / f"{name}-{screen}-{scheme}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[screen], name
        assert page.locator("h1").count() == 1, name
        assert "hacked" not in page.title() or "<script>" in page.title(), name
    assert [c for c in complaints if "404" not in c] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_the_paper(open_page: Any, base: str, scheme: str) -> None:
    """Contrast of every text is at least 4.5 to 1, as the accessibility guidelines ask."""
    page, _ = open_page(color_scheme=scheme)
    for path in (PAGES["start"], PAGES["within-noise"], PAGES["wrong"], PAGES["hardware"]):
        page.goto(base + path)
        assert page.evaluate(CONTRAST) == []


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


def test_copy_button_copies_the_script(open_page: Any, base: str, example_rows) -> None:
    page, complaints = open_page(permissions=["clipboard-read", "clipboard-write"])
    page.goto(base + PAGES["within-noise"])
    page.get_by_role("button", name="Copy run.py").click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == example_rows[0].run_py
    assert complaints == []


def test_copy_button_selects_when_the_clipboard_is_shut(open_page: Any, base: str, example_rows) -> None:
    page, _ = open_page()
    page.add_init_script("navigator.clipboard.writeText = () => Promise.reject(new Error('no'))")
    page.goto(base + PAGES["within-noise"])
    page.get_by_role("button", name="Copy run.py").click()
    page.get_by_text("Selected: press Ctrl+C").wait_for()
    assert page.evaluate("getSelection().toString()").strip() == example_rows[0].run_py.strip()


def test_everything_works_without_scripts(open_page: Any, base: str, example_rows) -> None:
    page, _ = open_page(java_script_enabled=False)
    page.goto(base)
    page.get_by_label("Part of a model's name").fill("odd words")
    page.get_by_role("button", name="Search").click()
    assert page.url == f"{base}/?q=odd+words"
    page.get_by_role("link", name="acme/odd-words-3b").click()
    assert page.get_by_role("heading", level=1).inner_text() == "acme/odd-words-3b"
    assert page.get_by_role("button").count() == 0
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "run.py"
    assert download.value.path().read_text() == example_rows[1].run_py


def test_keyboard_alone_finds_a_model(open_page: Any, base: str) -> None:
    page, _ = open_page()
    page.goto(base)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("tiny")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"q=tiny"))
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "acme/tiny-1b":
            break
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/models/acme/tiny-1b"))


def test_markup_in_a_row_runs_nothing(open_page: Any, base: str, example_rows) -> None:
    page, complaints = open_page()
    for where in (base, base + model_url(example_rows[-1].model_id), f"{base}/?q={quote('<script>')}"):
        page.goto(where)
        assert page.title() != "hacked"
        assert page.locator("main img, main script").count() == 0
    assert complaints == []


def test_links_lead_to_models_with_odd_names(open_page: Any, base: str, example_rows) -> None:
    page, _ = open_page()
    page.goto(base)
    page.get_by_role("link", name="/srv/models").click()
    assert page.get_by_role("heading", level=1).inner_text() == example_rows[-2].model_id
