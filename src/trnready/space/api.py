"""The JSON API, `/api/v1/…`, with the badge and the feed: everything that the pages show, typed. `app`
puts it beside the pages; both ask the same index."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Query, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from pydantic import TypeAdapter

from trnready.results import diff, meanings
from trnready.results.row import DEVICE_KINDS, RESULTS
from trnready.space import badge, changes, feed, wire
from trnready.space.ask import (
    ALL_REASONS,
    MAX_PAGE_SIZE,
    MAX_SEARCH,
    PAGE_SIZE,
    SORTS,
    UNTESTED,
    VIEWS,
    Ask,
    Pair,
)
from trnready.space.index import Index
from trnready.space.query import BadQuery, NotThere, model_url
from trnready.space.runs import Run

V1 = "/api/v1"
PATHS = ("/api/", "/badge/", "/feed.xml")
"""Addresses that are answered by the API, and refused in JSON."""

MAX_PAGE = 1_000_000

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": wire.Problem, "description": "The question makes no sense; the answer says why."},
    404: {"model": wire.Problem, "description": "There is no such thing; the answer says which."},
}


def _choice(description: str, allowed: tuple[str, ...]) -> Any:
    """A parameter from a fixed list. The index refuses what is not in it with a sentence."""
    return Query(description=description, json_schema_extra={"enum": list(allowed)})


Task = Annotated[
    str | None, Query(description="A task of the Hub's, such as text-generation; by default any.")
]
Compiler = Annotated[str | None, Query(description="Version of neuronx-cc; by default any.")]
LibraryVersion = Annotated[str | None, Query(description="Version of the library; by default any.")]
Device = Annotated[str | None, _choice("Kind of device; by default hardware before software.", DEVICE_KINDS)]
PageNumber = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Which page, from 1.")]
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE, description="Models on a page.")]
ModelId = Annotated[str, Path(description="The model's id, such as Qwen/Qwen3-0.6B.")]


def router(index: Index) -> APIRouter:
    """Give the API as routes."""
    routes = APIRouter(responses=_PROBLEMS)
    _add_lists(routes, index)
    _add_models(routes, index)
    _add_overviews(routes, index)
    return routes


def describe(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """Give the function that makes the OpenAPI description. FastAPI would tell of answers 422, which this
    Space never gives: it says 400, with a sentence."""

    @cache
    def description() -> dict[str, Any]:
        found = get_openapi(
            title=app.title,
            version="1",
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        problem = {"$ref": "#/components/schemas/Problem"}
        for path in found["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                for status in map(str, _PROBLEMS):
                    # Also of addresses that otherwise answer with a picture or a feed.
                    operation["responses"][status]["content"] = {"application/json": {"schema": problem}}
        for name in ("HTTPValidationError", "ValidationError"):
            found.get("components", {}).get("schemas", {}).pop(name, None)
        return found

    return description


def _add_lists(routes: APIRouter, index: Index) -> None:
    @routes.get(f"{V1}/models", response_model=wire.Lines, summary="A list of models")
    def models(
        view: Annotated[
            str, _choice("Which list; results holds every model with a row.", VIEWS)
        ] = "selected",
        task: Task = None,
        neuronx_cc: Compiler = None,
        library: Annotated[str | None, Query(description="Library, such as transformers.")] = None,
        library_version: LibraryVersion = None,
        device_kind: Device = None,
        search: Annotated[
            str,
            Query(
                description="Parts of a name, between spaces; all must be in it.",
                json_schema_extra={"maxLength": MAX_SEARCH},
            ),
        ] = "",
        result: Annotated[str | None, _choice("Result of the newest row.", (*RESULTS, UNTESTED))] = None,
        reason: Annotated[str | None, _choice("Reason of the newest row.", ALL_REASONS)] = None,
        fingerprint: Annotated[str | None, Query(description="Fingerprint of a failure.")] = None,
        sort: Annotated[
            str,
            _choice(
                "What to sort by; position is the list's own order, tested_first the same with those "
                "first that have a result.",
                SORTS,
            ),
        ] = "position",
        descending: Annotated[
            bool | None, Query(description="Largest first; by default as the column is usually read.")
        ] = None,
        page: PageNumber = 1,
        page_size: PageSize = PAGE_SIZE,
    ) -> Response:
        """Models with their newest row of the versions and device asked for, or a prediction."""
        ask = Ask(
            view=view,  # type: ignore[arg-type]  # The index refuses other words with a sentence.
            task=task,
            neuronx_cc=neuronx_cc,
            library=library,
            library_version=library_version,
            device_kind=device_kind,
            search=search,
            result=result,
            reason=reason,
            fingerprint=fingerprint,
            sort=sort,
            descending=descending,
            page=page,
            page_size=page_size,
        )
        return _json(wire.Lines, wire.lines(index.list(ask)))

    @routes.get(f"{V1}/failures", response_model=list[wire.Group], summary="Failures that are alike")
    def failures(
        task: Task = None,
        neuronx_cc: Compiler = None,
        library_version: LibraryVersion = None,
        device_kind: Device = None,
    ) -> Response:
        """Failures grouped by fingerprint, reason and stage, the largest groups first."""
        _check_device(device_kind)
        found = index.fingerprints(
            task=task, neuronx_cc=neuronx_cc, library_version=library_version, device_kind=device_kind
        )
        return _json(list[wire.Group], [wire.group(each) for each in found])

    @routes.get(f"{V1}/compare", response_model=wire.Comparison, summary="What changed between two versions")
    def compare(
        before: Annotated[str, Query(description="A pair of versions, as in the name of its file.")] = "",
        after: Annotated[str, Query(description="Likewise; by default the newest.")] = "",
        device_kind: Device = None,
        task: Task = None,
        page: PageNumber = 1,
        page_size: PageSize = PAGE_SIZE,
    ) -> Response:
        """Models that are fixed, broken, still failing, new or gone, the broken ones first."""
        _check_device(device_kind)
        found = changes.compared(index.snapshot(), before, after, device_kind, task)
        every = [wire.change(kind, each) for kind in diff.KINDS for each in found.difference.of_kind(kind)]
        pages = max(1, -(-len(every) // page_size))
        if page > pages:
            raise NotThere(f"There is no page {page}; this list has {pages}.")
        counts = {kind: len(found.difference.of_kind(kind)) for kind in (*diff.KINDS, "still_passing")}
        return _json(
            wire.Comparison,
            wire.Comparison(
                before=wire.versions(found.before),
                after=wire.versions(found.after),
                device_kind=found.device_kind,
                counts=counts,
                total=len(every),
                page=page,
                pages=pages,
                changes=every[(page - 1) * page_size : page * page_size],
            ),
        )


def _add_models(routes: APIRouter, index: Index) -> None:
    @routes.get(
        f"{V1}/models/{{model_id:path}}",
        response_model=wire.Model,
        summary="Whether a model runs",
    )
    def model(
        model_id: ModelId,
        task: Task = None,
        neuronx_cc: Compiler = None,
        library_version: LibraryVersion = None,
        device_kind: Device = None,
    ) -> Response:
        """Small enough to ask from a CI job: `answer` is yes, no or unknown, `sentence` says it in words."""
        _check_device(device_kind)
        ask = Ask(neuronx_cc=neuronx_cc, library_version=library_version, device_kind=device_kind)
        found = index.model(model_id, task, ask)
        if found is None:
            return _missing("Nothing is known of a model of this name: it is in no list, and has no result.")
        return _json(wire.Model, wire.model(found, ask, model_url(found.model_id)))

    @routes.get(f"{V1}/runs", response_model=list[Run], summary="Every run of a model")
    def runs(model: Annotated[str, Query(description="The model's id.")]) -> Response:
        """Hardware before software, then the newest first; none when it was never tested."""
        return _json(list[Run], list(index.runs_of(model)))

    @routes.get(f"{V1}/runs/{{run_id}}", response_model=wire.WholeRow, summary="A row, whole")
    def run(run_id: Annotated[str, Path(description="Name of the run.")]) -> Response:
        """Every column of the dataset, with the script that ran, both texts, and the log."""
        found = index.row_json(run_id)
        if found is None:
            return _missing("There is no such run.")
        return Response(found, media_type="application/json")

    @routes.head("/badge/{model_id:path}.svg", include_in_schema=False)
    @routes.get("/badge/{model_id:path}.svg", response_class=SvgResponse, summary="A model's badge")
    def badge_of(
        model_id: ModelId,
        neuronx_cc: Compiler = None,
        library_version: LibraryVersion = None,
        device_kind: Device = None,
    ) -> Response:
        """A picture that says whether the model runs; a model that nothing is known of is not tested."""
        _check_device(device_kind)
        ask = Ask(neuronx_cc=neuronx_cc, library_version=library_version, device_kind=device_kind)
        found = index.model(model_id, None, ask)
        return SvgResponse(badge.badge(found), headers={"Cache-Control": "max-age=300"})


def _add_overviews(routes: APIRouter, index: Index) -> None:
    @routes.get(f"{V1}/about", response_model=wire.About, summary="What there is, and what every word means")
    def about() -> Response:
        """Tasks, lists and their source, what each result and reason means, and files that cannot be read."""
        snapshot = index.snapshot()
        return _json(
            wire.About,
            wire.About(
                tasks=list(snapshot.tasks),
                catalogs=list(index.about_catalogs()),
                rows=len(snapshot.runs.all),
                results=meanings.RESULTS,
                reasons=meanings.REASONS,
                warnings=meanings.WARNINGS,
                stages=meanings.STAGES,
                notices=list(index.notices()),
            ),
        )

    @routes.get(f"{V1}/pairs", response_model=list[Pair], summary="Versions that were tested")
    def pairs() -> Response:
        """Hardware before software, the newest versions first."""
        return _json(list[Pair], list(index.pairs()))

    @routes.get(f"{V1}/coverage", response_model=wire.Covered, summary="How much is covered")
    def coverage(
        task: Task = None,
        neuronx_cc: Compiler = None,
        library_version: LibraryVersion = None,
        device_kind: Device = None,
    ) -> Response:
        """Shares of the Hub's lists, by count and by downloads, and every architecture."""
        _check_device(device_kind)
        found = index.coverage(
            task=task, neuronx_cc=neuronx_cc, library_version=library_version, device_kind=device_kind
        )
        return _json(wire.Covered, wire.coverage(found))

    @routes.head("/feed.xml", include_in_schema=False)
    @routes.get("/feed.xml", response_class=AtomResponse, summary="What changed, as Atom")
    def feed_xml(request: Request) -> Response:
        """Models that are new, fixed or broken, the newest first."""
        snapshot = index.snapshot()
        changed = snapshot.wholes.get("news", lambda: feed.news(snapshot.runs.all))
        return AtomResponse(feed.atom(changed, str(request.base_url).rstrip("/")))


class SvgResponse(Response):
    """A picture."""

    media_type = "image/svg+xml"


class AtomResponse(Response):
    """A feed."""

    media_type = "application/atom+xml"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _json(kind: Any, value: Any) -> Response:
    """Give a value of the API as JSON. Pydantic writes it at once; FastAPI would take several steps."""
    return Response(_adapter(kind).dump_json(value), media_type="application/json")


def _missing(sentence: str) -> Response:
    return JSONResponse({"error": sentence}, 404)


def _check_device(device_kind: str | None) -> None:
    if device_kind is not None and device_kind not in DEVICE_KINDS:
        raise BadQuery(f"There is no such kind of device; it is {' or '.join(DEVICE_KINDS)}.")
