"""The web Space: pages and a JSON API over one results folder. `trnready serve` runs it."""

from __future__ import annotations

import logging
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from trnready.space import api, pages, query
from trnready.space.headers import SecurityHeaders
from trnready.space.howto import Bucket
from trnready.space.index import Index
from trnready.space.render import Pages

_log = logging.getLogger(__name__)

_SENTENCES = {
    404: "There is no such page.",
    405: "This Space can only be read.",
}


def create_app(results_dir: Path, public: Bucket | None = None, index: Index | None = None) -> FastAPI:
    """Give the Space over a results folder, which need not exist yet and may change while it runs.

    `public` is the public cache of compiled graphs that models' pages tell of; `index` one that is kept
    elsewhere or looks at the files more or less often.
    """
    app = FastAPI(
        title="Which models run on AWS Trainium",
        description="The rows that the Space shows, as JSON.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    index = index or Index(results_dir)
    render = Pages(index)
    app.add_middleware(SecurityHeaders)
    # Anyone's page may read this Space: it holds nothing but what is public, and knows no cookies.
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["GET", "HEAD"])
    app.mount("/static", StaticFiles(packages=[("trnready.space", "static")]), name="static")
    app.include_router(pages.router(index, render, public))
    app.include_router(api.router(index))
    app.openapi = api.describe(app)  # type: ignore[method-assign]
    _add_errors(app, render)
    return app


def _add_errors(app: FastAPI, render: Pages) -> None:
    def answer(request: Request, status: int, title: str, sentence: str) -> Response:
        if request.url.path.startswith(api.PATHS):
            return JSONResponse({"error": sentence}, status)
        return render.refuse(status, title, sentence)

    @app.exception_handler(query.BadQuery)
    def bad_query(request: Request, error: query.BadQuery) -> Response:
        return answer(request, error.status, "That cannot be answered", str(error))

    @app.exception_handler(RequestValidationError)
    def bad_request(request: Request, error: RequestValidationError) -> Response:
        name = ".".join(str(part) for part in error.errors()[0]["loc"][1:])
        return answer(request, 400, "That address makes no sense", f"The value of {name} makes no sense.")

    @app.exception_handler(HTTPException)
    def http_error(request: Request, error: HTTPException) -> Response:
        sentence = _SENTENCES.get(error.status_code, "This cannot be answered.")
        said = answer(request, error.status_code, "Nothing here", sentence)
        said.headers.update(error.headers or {})  # Such as the methods that an address allows.
        return said

    @app.exception_handler(Exception)
    def unforeseen(request: Request, error: Exception) -> Response:
        _log.error("unforeseen error at %r", request.url.path, exc_info=error)
        return answer(request, 500, "Something went wrong", "The Space could not answer; its log says why.")
