"""The Hub's own orders of a task's models, page by page, with what was fetched kept on disk so that a refresh
that was interrupted goes on where it stopped. `trnready.hub.refresh` makes catalogs of them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from trnready.errors import TrnreadyError
from trnready.hub.checkpoint import HubUnreachable

PAGE_SIZE = 500
PAUSE_S = 0.2
"""Seconds between two pages: one reader, who does not hurry."""

FRESH_FOR = timedelta(hours=24)
"""How long an interrupted refresh can be gone on with; after that the Hub's order is another."""

ORDERS = {"downloads": "downloads", "trending": "trendingScore"}
"""The orders of a catalog, and what the Hub calls them."""

_EXPAND = (
    "config", "createdAt", "downloads", "gated", "likes", "pipeline_tag", "private", "safetensors", "tags",
    "trendingScore",
)  # fmt: skip


T = TypeVar("T")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


class CursorRefused(TrnreadyError):
    """The Hub no longer knows the place where an interrupted refresh stopped."""


@dataclass(frozen=True, slots=True)
class Described:
    """What the Hub says of a model in a list. `created` is an ISO date; `gated` as in a catalog."""

    model_id: str
    task: str | None
    private: bool
    gated: str | None
    model_type: str | None
    parameters: int | None
    license: str | None
    likes: int | None
    created: str | None
    downloads: int | None
    trending_score: float | None


@dataclass(frozen=True, slots=True)
class Page:
    """Models in the Hub's order, and the address of the next page; None after the last."""

    models: tuple[Described, ...]
    next: str | None


def pages(task: str, order: str, limit: int | None, kept: Path) -> Iterator[Page]:
    """Give the pages of a task in one of the orders, first those that `kept` holds of an interrupted refresh.

    Every page is in `kept` before it is given. Ends after `limit` models, and in the order by trend where
    models no longer have one. Raises `HubUnreachable`, or `CursorRefused` when an interrupted refresh cannot
    be gone on with.
    """
    first = _first_address(task, order, limit)
    count = 0
    following: str | None = first
    for page in _read_kept(kept, first):
        count, following = count + len(page.models), page.next
        yield page
        if _is_last(page, order, count, limit):
            return
    resumed = count > 0
    while following is not None:
        if count:
            time.sleep(PAUSE_S)
        page = _ask(following, refusable=resumed)
        resumed = False
        _keep(kept, first, page)
        count, following = count + len(page.models), page.next
        yield page
        if _is_last(page, order, count, limit):
            return


def model(name: str) -> Described | None:
    """Ask the Hub for one model, with retries and growing waits; one that was renamed has its new name.

    Raises huggingface_hub's errors for what the Hub refuses, `HubUnreachable` when it does not answer.
    """
    return describe(_get(f"{endpoint()}/api/models/{quote(name)}")[0])


def endpoint() -> str:
    """Give the Hub's address; HF_ENDPOINT names another."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def _is_last(page: Page, order: str, count: int, limit: int | None) -> bool:
    if limit is not None and count >= limit:
        return True
    return order == "trending" and bool(page.models) and not page.models[-1].trending_score


def _first_address(task: str, order: str, limit: int | None) -> str:
    size = PAGE_SIZE if limit is None else min(limit, PAGE_SIZE)
    asked = {"pipeline_tag": task, "sort": ORDERS[order], "limit": size, "expand": _EXPAND}
    return f"{endpoint()}/api/models?{urlencode(asked, doseq=True)}"


def _ask(address: str, *, refusable: bool) -> Page:
    from huggingface_hub.errors import HfHubHTTPError

    try:
        models, following = _get(address)
    except HfHubHTTPError as error:
        status = error.response.status_code
        if refusable and 400 <= status < 500 and status != 429:
            raise CursorRefused("the Hub no longer knows that place.") from error
        raise HubUnreachable(f"the Hub refuses the list (HTTP status {status}); try again later.") from error
    if not isinstance(models, list):
        raise HubUnreachable("the Hub answers with something that is no list of models; try again later.")
    return Page(tuple(each for each in map(describe, models) if each is not None), following)


def describe(item: Any) -> Described | None:
    """Give what an entry of the Hub's answer says; None when it names no model. What is missing or of another
    type than it should be is not known."""
    if not isinstance(item, dict) or not isinstance(item.get("id"), str) or not item["id"]:
        return None
    tags = [tag for tag in _of(item, "tags", list) or [] if isinstance(tag, str)]
    gated = item.get("gated")
    created = _of(item, "createdAt", str)
    score = item.get("trendingScore")
    return Described(
        model_id=item["id"],
        task=_of(item, "pipeline_tag", str),
        private=item.get("private") is True,
        gated="no" if gated is False else gated if gated in ("auto", "manual") else None,
        model_type=_of(_of(item, "config", dict) or {}, "model_type", str),
        parameters=_of(_of(item, "safetensors", dict) or {}, "total", int),
        license=next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), None),
        likes=_of(item, "likes", int),
        created=created[:10] if created and _DATE.match(created) else None,
        downloads=_of(item, "downloads", int),
        trending_score=float(score) if isinstance(score, int | float) else None,
    )


def _of(item: dict[str, Any], name: str, kind: type[T]) -> T | None:
    value = item.get(name)
    return value if isinstance(value, kind) and not isinstance(value, bool) and value != "" else None


def _get(address: str) -> tuple[Any, str | None]:
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

    try:
        response = http_backoff("GET", address, headers=build_hf_headers(library_name="trnready"), timeout=30)
        hf_raise_for_status(response)
        return response.json(), response.links.get("next", {}).get("url")
    except HfHubHTTPError:
        raise
    except OfflineModeIsEnabled:
        raise HubUnreachable("HF_HUB_OFFLINE is set, so the Hub cannot be asked.") from None
    except Exception as error:
        # Whatever else went wrong on the way, in whichever HTTP library.
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise HubUnreachable(f"the Hub does not answer ({reason[0]}); try again later.") from error


def _read_kept(path: Path, first: str) -> Iterator[Page]:
    """Give the pages that an interrupted refresh of the same list kept; a line cut short ends them."""
    try:
        head, *lines = path.read_text("utf-8").splitlines()
        start = json.loads(head)
        fresh = datetime.now(UTC) - datetime.fromisoformat(start["started"]) < FRESH_FOR
        if start["address"] != first or not fresh:
            raise ValueError("another refresh")
    except (OSError, ValueError, KeyError, TypeError):
        path.unlink(missing_ok=True)
        return
    for number, line in enumerate(lines):
        try:
            whole = json.loads(line)
            page = Page(tuple(Described(**each) for each in whole["models"]), whole["next"])
        except (ValueError, TypeError, KeyError):
            path.write_text("\n".join([head, *lines[:number]]) + "\n", "utf-8")
            return
        yield page


def _keep(path: Path, first: str, page: Page) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(page))]
    if not path.exists():
        lines.insert(0, json.dumps({"address": first, "started": datetime.now(UTC).isoformat()}))
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())
