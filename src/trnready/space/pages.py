"""The addresses of the Space's pages and what answers them. `app` puts them beside the API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from trnready.results import diff
from trnready.results.row import REASONS, Row
from trnready.space import compare, coverage_view, failures, lists, view
from trnready.space.addresses import joined
from trnready.space.ask import View
from trnready.space.grouped import Grouped, group
from trnready.space.howto import TORCH, Bucket
from trnready.space.index import Index
from trnready.space.plain import shown
from trnready.space.prediction import untested_page
from trnready.space.query import model_url
from trnready.space.render import Pages
from trnready.space.snapshot import Snapshot

_Page = Callable[[str], Callable[[Callable[..., Response]], Callable[..., Response]]]
_ListQuestion = Annotated[lists.Question, Depends()]


def router(index: Index, render: Pages, public: Bucket | None) -> APIRouter:
    """Give the pages as routes."""
    routes = APIRouter()

    def page(path: str) -> Callable[[Callable[..., Response]], Callable[..., Response]]:
        return routes.api_route(
            path, methods=["GET", "HEAD"], include_in_schema=False, response_class=HTMLResponse
        )

    _add_lists(page, index, render)
    _add_studies(page, index, render)
    _add_models(page, index, render, public)
    return routes


def _add_lists(page: _Page, index: Index, render: Pages) -> None:
    def listed(request: Request, view: View, asked: lists.Question) -> Response:
        # A form without a script sends what was left empty too; the address that is shared goes without it.
        short = joined(lists.PATHS[view], _told(asked))
        by_htmx = request.headers.get("HX-Request") == "true"
        if not by_htmx and any(value == "" for value in request.query_params.values()):
            return RedirectResponse(short, 303)
        shown_page = lists.list_page(index.snapshot(), view, asked)
        about = [each for each in index.about_catalogs() if each.task == shown_page.task]
        answer = render.render("list.html", shown=shown_page, about=about[0] if about else None)
        if by_htmx:
            typing = request.headers.get("HX-Source", "").endswith("#q")
            answer.headers["HX-Replace-Url" if typing else "HX-Push-Url"] = short
        return answer

    @page("/")
    def selected(request: Request, asked: _ListQuestion) -> Response:
        return listed(request, "selected", asked)

    @page("/trending")
    def trending(request: Request, asked: _ListQuestion) -> Response:
        return listed(request, "trending", asked)

    @page("/downloads")
    def downloads(request: Request, asked: _ListQuestion) -> Response:
        return listed(request, "downloads", asked)

    @page("/results")
    def results(request: Request, asked: _ListQuestion) -> Response:
        return listed(request, "results", asked)


def _told(asked: lists.Question) -> dict[str, object]:
    """Give what was asked for, without what is left as it comes."""
    usual = {each.name: each.default for each in fields(asked)}
    return {name: value for name, value in asdict(asked).items() if value != usual[name]}


def _add_studies(page: _Page, index: Index, render: Pages) -> None:
    @page("/compare")
    def compare_page(
        before: str = "", after: str = "", device: str = "", task: str = "", change: str = "", page: int = 1
    ) -> Response:
        asked = compare.Question(before, after, device, task, change, page)
        snapshot = index.snapshot()

        def kept(grouped: Grouped, sides: compare.Sides) -> diff.Difference:
            return snapshot.wholes.get(sides, lambda: compare.difference(grouped, sides))

        return render.render("compare.html", shown=compare.compare(_grouped(snapshot), asked, kept))

    @page("/failures")
    def failures_page(
        pair: str = "",
        device: str = "",
        task: str = "",
        reason: str = "",
        fingerprint: str = "",
        page: int = 1,
    ) -> Response:
        asked = failures.Question(pair, device, task, reason, fingerprint, page)
        grouped = _grouped(index.snapshot())
        if fingerprint:
            return render.render("alike.html", shown=failures.alike(grouped, asked))
        return render.render("failures.html", shown=failures.failures(grouped, asked))

    @page("/coverage")
    def coverage_page(device: str = "", architecture: str = "", task: str = "") -> Response:
        shown_page = coverage_view.coverage_page(index.snapshot(), device, architecture, task)
        return render.render("coverage.html", page=shown_page)

    @page("/about")
    def about() -> Response:
        return render.render("about.html", by_result=REASONS, catalogs=index.about_catalogs(), torch=TORCH)


def _grouped(snapshot: Snapshot) -> Grouped:
    return snapshot.wholes.get("grouped", lambda: group(snapshot.runs.all))


def _add_models(page: _Page, index: Index, render: Pages, public: Bucket | None) -> None:
    @page("/models/{path:path}")
    def model(path: str, run: str | None = None, id: str | None = None) -> Response:
        snapshot = index.snapshot()
        wanted = _wanted(snapshot, path, id)
        if wanted is None:
            return _without_result(render, snapshot, id or path)
        shown_page = view.model_page(
            wanted.rows,
            run,
            public=public,
            same_failures=lambda mark: len(_grouped(snapshot).by_fingerprint.get(mark, ())),
        )
        if shown_page is None:
            sentence = "This model has no such run; a newer one may have replaced it."
            return render.refuse(404, "No such run", sentence)
        if wanted.script:
            return _script(render, shown_page)
        return render.render("model.html", page=shown_page)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The rows of the model that an address names, and whether the address asks for its script."""

    rows: Sequence[Row]
    script: bool


def _wanted(snapshot: Snapshot, path: str, model_id: str | None) -> _Wanted | None:
    """Give what an address names.

    A model whose own name ends in /run.py is found before the script of one that is called the same without.
    """
    if path in ("", "run.py") and model_id is not None:
        rows = snapshot.rows_of(model_id)
        return _Wanted(rows, path == "run.py") if rows else None
    for name, script in ((path, False), (path.removesuffix("/run.py"), True)):
        rows = snapshot.rows_of(name)
        if rows:
            return _Wanted(rows, script)
    return None


def _script(render: Pages, shown_page: view.ModelPage) -> Response:
    if shown_page.script is None:
        sentence = "No script was recorded for this run: it ended before there was one."
        return render.refuse(404, "No script", sentence)
    return PlainTextResponse(
        shown_page.script.text,
        media_type="text/x-python",
        headers={"Content-Disposition": 'attachment; filename="run.py"'},
    )


def _without_result(render: Pages, snapshot: Snapshot, name: str) -> Response:
    """Answer for a model that was never tested: with a prediction if it is listed, and with a sentence if it
    is not."""
    entry = snapshot.model(name)
    if entry is not None and entry.model_id != name:
        return RedirectResponse(model_url(entry.model_id), 307)
    if entry is not None:
        return render.render("untested.html", page=untested_page(entry))
    sentence = f"There is no model called {shown(name)} in the lists or the results of this Space."
    return render.refuse(404, "Not known", sentence)
