"""The web Space: pages and a JSON API over one results folder. `trnready serve` runs it."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException

from trnready.results import meanings, units
from trnready.results.row import Row
from trnready.space import query, view
from trnready.space.headers import SecurityHeaders
from trnready.space.store import Snapshot, Store

_log = logging.getLogger(__name__)

_SENTENCES = {
    404: "There is no such page.",
    405: "This Space can only be read.",
}


class Pages:
    """Renders the templates with what every page needs."""

    def __init__(self, results_dir: Path) -> None:
        self._environment = Environment(
            loader=PackageLoader("trnready.space"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            plain=view.plain,
            seconds=units.seconds,
            size=units.size,
            count=units.count,
            when=view.when,
            model_url=query.model_url,
        )
        self._environment.globals.update(
            reasons=meanings.REASONS,
            warnings_meaning=meanings.WARNINGS,
            threshold=meanings.THRESHOLD,
            results_dir=view.plain(str(results_dir)),
            results_argument=shlex.quote(view.plain(str(results_dir))),
        )

    def render(self, template: str, status: int, /, **values: Any) -> HTMLResponse:
        """Give a page; every page is named by its template, and `snapshot` is needed by all."""
        return HTMLResponse(self._environment.get_template(template).render(values), status)


def create_app(results_dir: Path) -> FastAPI:
    """Give the Space over a results folder, which need not exist yet and may change while it runs."""
    app = FastAPI(
        title="Which models run on AWS Trainium",
        description="The rows that the Space shows, as JSON.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    store, pages = Store(results_dir), Pages(results_dir)
    app.add_middleware(SecurityHeaders)
    app.mount("/static", StaticFiles(packages=[("trnready.space", "static")]), name="static")
    _add_errors(app, store, pages)

    def page(path: str) -> Callable[[Callable[..., Response]], Callable[..., Response]]:
        return app.api_route(
            path, methods=["GET", "HEAD"], include_in_schema=False, response_class=HTMLResponse
        )

    @page("/")
    def start(q: str = "", page: int = 1) -> Response:
        snapshot = store.snapshot()
        listing = query.find(snapshot.rows, q, page)
        return pages.render("index.html", 200, snapshot=snapshot, listing=listing, query=q)

    @app.get("/api/models.json", summary="The rows of the start page")
    def models(
        q: Annotated[str, Query(description="Part of a model's name.")] = "",
        page: Annotated[int, Query(description="Which page, from 1.")] = 1,
    ) -> query.Listing:
        return query.find(store.snapshot().rows, q, page)

    @page("/models/{path:path}")
    def model(path: str, run: str | None = None, id: str | None = None) -> Response:
        snapshot = store.snapshot()
        wanted = _wanted(snapshot, path, id)
        if wanted is None:
            return _unknown_model(pages, snapshot, id or path)
        rows, script = wanted
        shown = view.model_page(rows, run)
        if shown is None:
            sentence = "This model has no such run; a newer one may have replaced it."
            return pages.render("error.html", 404, snapshot=snapshot, title="No such run", sentence=sentence)
        if script:
            return _script(pages, snapshot, shown)
        return pages.render("model.html", 200, snapshot=snapshot, page=shown, device=view.device(shown.row))

    return app


def _wanted(snapshot: Snapshot, path: str, model_id: str | None) -> tuple[list[Row], bool] | None:
    """Give the rows of the model that an address names, and whether it asks for the script of it.

    A model whose own name ends in /run.py is found before the script of one that is called the same without.
    """
    if path in ("", "run.py") and model_id is not None:
        rows = query.results_of(snapshot.rows, model_id)
        return (rows, path == "run.py") if rows else None
    for name, script in ((path, False), (path.removesuffix("/run.py"), True)):
        rows = query.results_of(snapshot.rows, name)
        if rows:
            return rows, script
    return None


def _script(pages: Pages, snapshot: Snapshot, shown: view.ModelPage) -> Response:
    if shown.run_py is None:
        sentence = "No script was recorded for this run: it ended before there was one."
        return pages.render("error.html", 404, snapshot=snapshot, title="No script", sentence=sentence)
    return PlainTextResponse(
        shown.run_py,
        media_type="text/x-python",
        headers={"Content-Disposition": 'attachment; filename="run.py"'},
    )


def _unknown_model(pages: Pages, snapshot: Snapshot, name: str) -> Response:
    shown = view.plain(name if len(name) <= 100 else name[:100] + "…")
    return pages.render(
        "error.html",
        404,
        snapshot=snapshot,
        title="Not tested",
        sentence=f"There is no result of a model called {shown}.",
    )


def _add_errors(app: FastAPI, store: Store, pages: Pages) -> None:
    def answer(request: Request, status: int, title: str, sentence: str) -> Response:
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": sentence}, status)
        return pages.render("error.html", status, snapshot=store.snapshot(), title=title, sentence=sentence)

    @app.exception_handler(query.BadQuery)
    def bad_query(request: Request, error: query.BadQuery) -> Response:
        return answer(request, 400, "That search cannot be answered", str(error))

    @app.exception_handler(RequestValidationError)
    def bad_request(request: Request, error: RequestValidationError) -> Response:
        name = ".".join(str(part) for part in error.errors()[0]["loc"][1:])
        return answer(request, 400, "That address makes no sense", f"The value of {name} makes no sense.")

    @app.exception_handler(HTTPException)
    def http_error(request: Request, error: HTTPException) -> Response:
        sentence = _SENTENCES.get(error.status_code, "This cannot be answered.")
        return answer(request, error.status_code, "Nothing here", sentence)

    @app.exception_handler(Exception)
    def unforeseen(request: Request, error: Exception) -> Response:
        _log.error("unforeseen error at %r", request.url.path, exc_info=error)
        return answer(request, 500, "Something went wrong", "The Space could not answer; its log says why.")
