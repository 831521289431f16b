"""Makes a task's catalog from the Hub's orders, and says which ids of the Selected list the Hub no longer
has. The commands `trnready catalog refresh` and `trnready catalog check` call it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

from trnready.errors import TrnreadyError
from trnready.hub import catalog, listing
from trnready.hub.catalog import UNKNOWN_TASK, About, Listed
from trnready.hub.checkpoint import HubUnreachable
from trnready.hub.listing import Described
from trnready.hub.selected import Selected
from trnready.results.files import ResultsNotWritable, write_whole

KEPT = ".refresh"
"""Folder with what an interrupted refresh has fetched."""

SOURCE = "The Hub's own lists"


class CatalogNotWritable(TrnreadyError):
    """The folder of the catalogs cannot be written."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh found: models listed, those with a place by trend, private ones that were left out, and
    ones that the Hub names no task of, which are listed under the task `unknown`."""

    path: Path
    models: int
    trending: int
    private: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with an id of the Selected list: `gone`, `back`, `renamed`, `task` or
    `gated`, and a sentence."""

    model_id: str
    kind: str
    sentence: str


def refresh(task: str, limit: int | None, folder: Path, tell: Callable[[str, int], None]) -> Refreshed:
    """Write the catalog of a task, and give what was found. `tell` hears of an order and its models so far.

    Raises `HubUnreachable`, after which the next call goes on from where it was, or `CatalogNotWritable`.
    """
    kept = {order: folder / KEPT / f"{task}-{order}.jsonl" for order in listing.ORDERS}
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        orders = {order: _order(task, order, limit, path, tell) for order, path in kept.items()}
        before = _before(folder)
        found = _listed(orders, before)
        public = [each for each in found if each.task == task]
        unknown = [each for each in found if each.task == UNKNOWN_TASK]
        about = About(f"{SOURCE} ({listing.endpoint()})", taken_at, taken_at)
        path = folder / f"{task}.parquet"
        _write_unknown(folder, unknown, {each.model_id for each in public}, about)
        write_whole(path, catalog.encode(about, public))
        for each in kept.values():
            each.unlink(missing_ok=True)
    except ResultsNotWritable as error:
        raise CatalogNotWritable(f"cannot write to {folder}: {error.__cause__}.") from error
    except OSError as error:
        raise CatalogNotWritable(f"cannot write to {folder}: {error.strerror or error}.") from error
    private = {each.model_id for order in orders.values() for each in order if each.private}
    trending = sum(each.trending_position is not None for each in public)
    return Refreshed(path, len(public), trending, len(private), len(unknown))


def check(models: Sequence[Selected], tell: Callable[[int], None]) -> list[Finding]:
    """Ask the Hub for every model of the Selected list, and give what has to be mended there. `tell` hears of
    how many were asked for. Raises `HubUnreachable`."""
    findings: list[Finding] = []
    for count, each in enumerate(models, 1):
        findings += _findings(each)
        tell(count)
    return findings


def _findings(chosen: Selected) -> Iterable[Finding]:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    name = chosen.model_id
    known_gone = chosen.left_out is not None and chosen.left_out.reason == "not_found"
    try:
        found = listing.model(name)
    except GatedRepoError:
        return
    except RepositoryNotFoundError:
        if not known_gone:
            yield Finding(name, "gone", "is not on the Hub (deleted, or private).")
        return
    except HfHubHTTPError as error:
        raise HubUnreachable(
            f"the Hub refuses to tell about {name} (HTTP status {error.response.status_code}); "
            "try again later."
        ) from error
    if found is None:
        raise HubUnreachable(f"the Hub's answer about {name} names no model; try again later.")
    if known_gone:
        yield Finding(name, "back", "is on the Hub, though the list says that it is gone.")
    elif found.model_id != name:
        yield Finding(name, "renamed", f"is called {found.model_id} now.")
    elif found.private:
        yield Finding(name, "gone", "is private.")
    elif found.task not in (None, chosen.task):
        yield Finding(name, "task", f"is listed under {found.task} on the Hub, not {chosen.task}.")
    elif found.gated in ("auto", "manual") and not chosen.gated:
        yield Finding(name, "gated", "is gated, and the list does not say so.")


def _order(
    task: str, order: str, limit: int | None, kept: Path, tell: Callable[[str, int], None]
) -> list[Described]:
    """Give the models of one order. The order moves while it is read, so that a model may come twice."""
    found: dict[str, Described] = {}
    try:
        for page in listing.pages(task, order, limit, kept):
            for each in page.models:
                if order != "trending" or each.trending_score:
                    found.setdefault(each.model_id, each)
            tell(order, len(found))
    except listing.CursorRefused:
        kept.unlink(missing_ok=True)
        return _order(task, order, limit, kept, tell)
    return list(found.values())[:limit]


def _listed(orders: Mapping[str, Sequence[Described]], before: Mapping[str, Listed]) -> list[Listed]:
    """Put the orders together. Private models, which only their owner is shown, get no place."""
    found: dict[str, Listed] = {}
    for order, described in orders.items():
        place = 0
        for each in described:
            if each.private:
                continue
            place += 1
            known = found.get(each.model_id) or _from(each, before.get(each.model_id))
            position = {f"{order}_position": place}
            found[each.model_id] = replace(known, **position)  # type: ignore[arg-type]
    return sorted(found.values(), key=lambda each: (each.downloads_position or len(found) + 1, each.model_id))


def _from(each: Described, before: Listed | None) -> Listed:
    """What the Hub does not say this time is as it was said before; such facts do not change."""
    fresh = Listed(
        model_id=each.model_id,
        task=each.task or UNKNOWN_TASK,
        model_type=each.model_type,
        parameters=each.parameters,
        license=each.license,
        gated=each.gated,
        likes=each.likes,
        created=None if each.created is None else date.fromisoformat(each.created),
        downloads=each.downloads,
        trending_score=each.trending_score,
    )
    if before is None:
        return fresh
    lasting = ("model_type", "parameters", "license", "created")
    missing = {name: getattr(before, name) for name in lasting if getattr(fresh, name) is None}
    return replace(fresh, **missing)


def _before(folder: Path) -> dict[str, Listed]:
    """Give what the catalogs say until now; one that cannot be read says nothing."""
    found: dict[str, Listed] = {}
    for path in catalog.files(folder):
        try:
            found |= {each.model_id: each for each in catalog.models(catalog.read(path))}
        except catalog.UnreadableCatalog:
            continue
    return found


def _write_unknown(folder: Path, unknown: Sequence[Listed], placed: set[str], about: About) -> None:
    """Add to the models without a task; those that have one now leave that list."""
    path = folder / f"{UNKNOWN_TASK}.parquet"
    try:
        read = catalog.read(path) if path.exists() else None
    except catalog.UnreadableCatalog:
        read = None
    old = catalog.models(read) if read else []
    fresh = {each.model_id for each in unknown}
    stay = [each for each in old if each.model_id not in placed and each.model_id not in fresh]
    if len(stay) == len(old) and not unknown:
        return
    both = sorted([*stay, *unknown], key=lambda each: -(each.downloads or 0))
    numbered = [
        replace(each, downloads_position=place, trending_position=None) for place, each in enumerate(both, 1)
    ]
    write_whole(path, catalog.encode(about if unknown or read is None else read.about, numbered))
