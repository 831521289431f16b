"""Turns a template and its values into a page. The routes of `pages` and the error pages of `app` use it."""

from __future__ import annotations

import shlex
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from trnready.results import meanings, units
from trnready.space import query, view
from trnready.space.index import Index
from trnready.space.plain import plain


class Pages:
    """Renders the templates with what every page needs."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._environment = Environment(
            loader=PackageLoader("trnready.space"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            plain=plain,
            seconds=units.seconds,
            size=units.size,
            count=units.count,
            short=units.short,
            when=view.when,
            words=lambda word: word.replace("_", " "),
            model_url=query.model_url,
        )
        self._environment.globals.update(
            meanings=meanings,
            reasons=meanings.REASONS,
            warnings_meaning=meanings.WARNINGS,
            threshold=meanings.THRESHOLD,
            results_dir=plain(index.name),
            results_argument=shlex.quote(plain(index.name)),
        )

    def render(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Give a page; `values` are the template's own."""
        page = self._environment.get_template(template)
        exists = self._index.results_dir.is_dir()
        text = page.render(notices=self._index.notices(), folder_exists=exists, **values)
        return HTMLResponse(text, status)

    def refuse(self, status: int, title: str, sentence: str) -> HTMLResponse:
        """Give the page that says in a sentence why there is nothing to show."""
        return self.render("error.html", status=status, title=title, sentence=sentence)
