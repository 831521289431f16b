"""The index that every list, count and model's page of the Space is answered from: the names of the catalogs,
the Selected list, the runs of a results folder, and what the twins of the architectures did. `Index` keeps it
up to date with the files, and goes on with the last good one while a file is broken."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from trnready.errors import TrnreadyError
from trnready.results.row import Row
from trnready.space import coverage, runs, sources
from trnready.space.ask import (
    ALL_REASONS,
    MAX_PAGE_SIZE,
    MAX_SEARCH,
    PAGE_SIZE,
    SORTS,
    UNTESTED,
    VIEWS,
    Architecture,
    Ask,
    Counts,
    Coverage,
    Entry,
    FailureGroup,
    Listing,
    Pair,
    Prediction,
    Share,
    View,
)
from trnready.space.names import Names
from trnready.space.query import BadQuery
from trnready.space.runs import Run, Runs
from trnready.space.snapshot import Snapshot, cores_for
from trnready.space.sources import AboutCatalog, Sources
from trnready.user_cache import user_cache

__all__ = [
    "ALL_REASONS",
    "MAX_PAGE_SIZE",
    "MAX_SEARCH",
    "PAGE_SIZE",
    "SORTS",
    "UNTESTED",
    "VIEWS",
    "AboutCatalog",
    "Architecture",
    "Ask",
    "BadQuery",
    "Counts",
    "Coverage",
    "Entry",
    "FailureGroup",
    "Index",
    "IndexNotWritable",
    "Listing",
    "Pair",
    "Prediction",
    "Run",
    "Share",
    "Snapshot",
    "Sources",
    "View",
    "cores_for",
]

LOOK_EVERY_S = 1.0
KEPT_NAMES = 3
"""Databases of names that a cache keeps: several Spaces may have other catalogs."""

_log = logging.getLogger(__name__)


class IndexNotWritable(TrnreadyError):
    """The folder for the index cannot be written, or its disk is full."""


class Index:
    """The index of one results folder; safe to share between threads.

    Its two databases are kept in `folder`, a cache of its own by default, so that the next start finds them.
    A change of the files is noticed at the first question after `look_every_s` seconds, taken up by a thread,
    and answered from once it is ready; a question waits for it at most `patience_s` seconds.
    """

    def __init__(
        self,
        results_dir: Path,
        catalogs: Path | None = None,
        folder: Path | None = None,
        *,
        name: str | None = None,
        look_every_s: float = LOOK_EVERY_S,
        patience_s: float = 0.0,
    ) -> None:
        self.results_dir = results_dir
        self.name = name or str(results_dir)
        """What a reader calls the results: the folder's path, or the address of a dataset."""
        self._catalogs = catalogs
        self._folder = folder or cache_folder(results_dir)
        # The names are the same for all results, so that a cache holds them once.
        self._names_folder = folder or cache_root()
        self._look_every_s, self._patience_s = look_every_s, patience_s
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._marks: tuple[object, ...] = ()
        self._snapshot: Snapshot | None = None
        self._worker: threading.Thread | None = None

    def snapshot(self) -> Snapshot:
        """Give everything at this moment; several questions about the same moment go to one snapshot.

        The first call builds what the cache does not hold, which takes about 20 s for 400,000 names.
        """
        current = self._snapshot
        if current is None:
            with self._lock:
                if self._snapshot is None:
                    self._take_up(self._look())
                current = self._snapshot
                if current is None:
                    raise AssertionError("a snapshot is always made")
                return current
        if time.monotonic() - self._looked_at >= self._look_every_s and self._lock.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._lock.release()
        if self._patience_s and self._worker is not None:
            self._worker.join(self._patience_s)
        return self._snapshot or current

    def is_built(self) -> bool:
        """Say whether the names have been indexed, which is what takes long."""
        found = sources.find(self.results_dir, self._catalogs)
        return self._names_path(found).exists()

    def list(self, ask: Ask) -> Listing:
        """Give one page of what was asked for. Raises `BadQuery`."""
        return self.snapshot().list(ask)

    def model(self, model_id: str, task: str | None = None, ask: Ask | None = None) -> Entry | None:
        """Give what is known of a model, with its newest row of the versions and device that were asked for;
        None when it is neither listed nor tested."""
        return self.snapshot().model(model_id, task, ask)

    def runs_of(self, model_id: str) -> Sequence[Run]:
        """Give every row of a model: hardware before software, then the newest first."""
        return self.snapshot().runs_of(model_id)

    def rows_of(self, model_id: str) -> Sequence[Row]:
        """Give every row of a model, whole, in the order of `runs_of`."""
        return self.snapshot().rows_of(model_id)

    def row(self, run_id: str) -> Row | None:
        """Give the row of a run, whole; None when it is not there."""
        return self.snapshot().row(run_id)

    def row_json(self, run_id: str) -> bytes | None:
        """Give what `row` gives as JSON, as it was stored."""
        return self.snapshot().row_json(run_id)

    def pairs(self) -> Sequence[Pair]:
        """Give every pair of versions that was tested, hardware before software, newest versions first."""
        return self.snapshot().pairs()

    def coverage(
        self,
        *,
        task: str | None = None,
        neuronx_cc: str | None = None,
        library_version: str | None = None,
        device_kind: str | None = None,
    ) -> Coverage:
        """Give how much of the Hub's lists is covered, by count and by downloads, and every architecture."""
        ask = Ask(task=task, neuronx_cc=neuronx_cc, library_version=library_version, device_kind=device_kind)
        return coverage.coverage(self.snapshot(), ask)

    def fingerprints(
        self,
        *,
        task: str | None = None,
        neuronx_cc: str | None = None,
        library_version: str | None = None,
        device_kind: str | None = None,
    ) -> Sequence[FailureGroup]:
        """Give the failures that are alike, the largest groups first."""
        return self.snapshot().fingerprints(
            task=task, neuronx_cc=neuronx_cc, library_version=library_version, device_kind=device_kind
        )

    def tasks(self) -> Sequence[str]:
        """Give every task of which there is a list or a row."""
        return self.snapshot().tasks

    def notices(self) -> Sequence[str]:
        """Give a sentence for each file that cannot be read."""
        snapshot = self.snapshot()
        return (*snapshot.runs.notices, *json.loads(snapshot.names.notes["notices"]))

    def about_catalogs(self) -> Sequence[AboutCatalog]:
        """Give where the list of each task comes from and when each of its orders was taken."""
        return sources.about(self.snapshot().names.notes)

    def _look(self) -> tuple[object, ...]:
        """Give what changes when any file does that the index is made from."""
        self._looked_at = time.monotonic()
        found = sources.find(self.results_dir, self._catalogs)
        return (found, tuple(_mark(path) for path in found.files()), runs.marks(self.results_dir))

    def _refresh(self) -> None:
        if self._worker is not None and self._worker.is_alive():
            return
        marks = self._look()
        if marks != self._marks:
            self._worker = threading.Thread(target=self._take_up, args=(marks,), daemon=True)
            self._worker.start()

    def _take_up(self, marks: tuple[object, ...]) -> None:
        """Make the snapshot of the files as they are, or keep the one before."""
        try:
            found = sources.find(self.results_dir, self._catalogs)
            self._snapshot = Snapshot(self._names(found), self._runs(), sources.read_twins(found.tables))
        except Exception as error:
            # Whatever a file may hold: those who ask get the last good snapshot, not a trace.
            if self._snapshot is not None:
                _log.exception("the index stays as it was")
            elif isinstance(error, OSError | sqlite3.Error):
                raise IndexNotWritable(f"the index cannot be written to {self._folder}: {error}.") from error
            else:
                raise
        self._marks = marks

    def _names(self, found: Sources) -> Names:
        """Give the names as the files have them: those in use, those in the cache, or new ones."""
        path = self._names_path(found)
        mark = path.stem
        before = self._snapshot.names if self._snapshot else None
        if before is not None and before.notes["digest"] == mark:
            return before
        try:
            return Names(path)
        except (sqlite3.Error, KeyError, ValueError):
            sources.build(path, found, mark)
        names = Names(path)
        if before is not None and json.loads(names.notes["notices"]):
            # A list that cannot be read is no reason to forget what it held.
            before.notes["notices"] = names.notes["notices"]
            before.notes["digest"] = mark
            return before
        for old in sorted(self._names_folder.glob("names-*.sqlite"), key=_age)[:-KEPT_NAMES]:
            old.unlink(missing_ok=True)
        return names

    def _names_path(self, found: Sources) -> Path:
        mark = sources.digest(path for path in found.files() if path not in found.tables)
        return self._names_folder / f"names-{mark}.sqlite"

    def _runs(self) -> Runs:
        before = self._snapshot.runs if self._snapshot else self._runs_in_cache()
        wanted = runs.marks(self.results_dir)
        if before is not None and before.marks == wanted:
            return before
        path = self._folder / f"runs-{uuid.uuid4().hex}.sqlite"
        runs.build(path, before.path if before else None, self.results_dir, wanted)
        found = Runs(path)
        for old in self._folder.glob("runs-*.sqlite"):
            if old != path:
                # Who still reads it has it open.
                old.unlink(missing_ok=True)
        return found

    def _runs_in_cache(self) -> Runs | None:
        for path in sorted(self._folder.glob("runs-*.sqlite")):
            try:
                found = Runs(path)
            except (sqlite3.Error, KeyError, ValueError):
                continue
            return found
        return None


def cache_root() -> Path:
    """Give the folder for what the Space keeps: in the user's cache, or where that cannot be written a
    temporary one."""
    root = user_cache("space")
    try:
        root.mkdir(parents=True, exist_ok=True)
        if os.access(root, os.W_OK):
            return root
    except OSError:
        pass
    other = Path(tempfile.gettempdir()) / f"trnready-space-{os.getuid()}"
    other.mkdir(mode=0o700, exist_ok=True)
    return other


def cache_folder(results_dir: Path) -> Path:
    """Give the folder that keeps the database of these results."""
    digest = hashlib.sha256(str(results_dir.resolve()).encode("utf-8", "replace")).hexdigest()[:16]
    return cache_root() / digest


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _mark(path: Path) -> tuple[str, int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
