"""The feed of what changed: models that are new, fixed or broken, as Atom. feedgen writes it, so that times,
ids and escaping are as feed readers want them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from feedgen.feed import FeedGenerator

from trnready.results import meanings
from trnready.space.answer import device
from trnready.space.plain import plain
from trnready.space.query import model_url
from trnready.space.runs import Run

MOST = 50
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""When an empty feed was last changed; Atom wants a time."""


@dataclass(frozen=True, slots=True)
class News:
    """A run that says something new of its model: `new`, `fixed` or `broken`."""

    kind: str
    run: Run


def news(runs: Sequence[Run]) -> list[News]:
    """Give what changed, newest first: the first run of a model on a kind of device, and those whose
    result is another than that of the run before. What was skipped says nothing."""
    last: dict[tuple[str, str, str, str], Run] = {}
    found: list[News] = []
    for run in sorted(runs, key=lambda each: (each.tested_at, each.run_id)):
        if run.result == "SKIPPED":
            continue
        subject = (run.model_id, run.task, run.checkpoint_kind, run.device_kind)
        before = last.get(subject)
        if before is None:
            found.append(News("new", run))
        elif before.result != run.result:
            found.append(News("fixed" if run.result == "PASS" else "broken", run))
        last[subject] = run
    return found[::-1]


def atom(changed: Sequence[News], base: str) -> bytes:
    """Give the feed; `base` is the Space's address, without a slash at its end."""
    feed = FeedGenerator()
    feed.id(f"{base}/feed.xml")
    feed.title("Which models run on AWS Trainium: what changed")
    feed.link(href=f"{base}/feed.xml", rel="self")
    feed.link(href=f"{base}/", rel="alternate")
    feed.author(name="trnready")
    feed.updated(changed[0].run.tested_at if changed else EPOCH)
    for each in changed[:MOST]:
        run = each.run
        entry = feed.add_entry(order="append")
        entry.id(f"{base}/api/v1/runs/{run.run_id}")
        entry.title(plain(f"{each.kind}: {run.model_id} {_verb(run)} on {device(run)}"))
        entry.link(href=base + model_url(run.model_id))
        entry.updated(run.tested_at)
        entry.summary(plain(_summary(run)))
    feed_text: bytes = feed.atom_str(pretty=True)
    return feed_text


def _verb(run: Run) -> str:
    return "runs" if run.result == "PASS" else "fails"


def _summary(run: Run) -> str:
    caution = " A result from software cores, not from Trainium." if run.device_kind == "software" else ""
    stack = f"neuronx-cc {run.neuronx_cc}, {run.library} {run.library_version}."
    return f"{meanings.REASONS[run.reason]} {stack}{caution}"
