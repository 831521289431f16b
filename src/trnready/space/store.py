"""The rows that the Space shows: read from the results folder, read again when a file changes, and kept when
a file can no longer be read. The pages and the API ask it for a snapshot at every request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trnready.errors import TrnreadyError
from trnready.results import dataset, journal
from trnready.results.row import NewerSchema, Row

_Mark = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All rows at one moment, and a sentence for each file that cannot be read."""

    rows: tuple[Row, ...]
    folder_exists: bool
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _File:
    """What a file held when it was last good, and what is wrong with it now."""

    mark: _Mark
    rows: tuple[Row, ...]
    notice: str | None


class Store:
    """Reads a results folder; safe to share between threads."""

    def __init__(self, results_dir: Path) -> None:
        self.results_dir = results_dir
        self._lock = threading.Lock()
        self._files: dict[Path, _File] = {}
        self._snapshot: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """Give the rows as they are on disk now; only files that have changed are read. Never raises."""
        with self._lock:
            # The journal first: an entry that vanishes meanwhile is then in the Parquet files, read after.
            files = self._look(journal.entries(self.results_dir), lambda path: [journal.load(path)])
            files |= self._look(dataset.data_files(self.results_dir), dataset.read_file)
            exists = self.results_dir.is_dir()
            if self._snapshot is None or files != self._files or exists != self._snapshot.folder_exists:
                self._files = files
                self._snapshot = Snapshot(
                    rows=tuple(dataset.newest(row for file in files.values() for row in file.rows)),
                    folder_exists=exists,
                    notices=tuple(file.notice for file in files.values() if file.notice),
                )
            return self._snapshot

    def _look(self, paths: list[Path], load: Callable[[Path], list[Row]]) -> dict[Path, _File]:
        files: dict[Path, _File] = {}
        for path in paths:
            before = self._files.get(path)
            try:
                mark = _mark(path)
            except OSError:
                continue
            if before is not None and before.mark == mark:
                files[path] = before
                continue
            try:
                files[path] = _File(mark, tuple(load(path)), None)
            except FileNotFoundError:
                continue
            except TrnreadyError as error:
                kept = before.rows if before else ()
                files[path] = _File(mark, kept, self._notice(path, error, kept))
        return files

    def _notice(self, path: Path, error: Exception, kept: tuple[Row, ...]) -> str:
        """Say what is wrong without showing where on the disk the folder is."""
        name = path.relative_to(self.results_dir)
        wrong = (
            "was written by a newer trnready and cannot be read by this one"
            if isinstance(error, NewerSchema)
            else "is damaged and cannot be read"
        )
        shown = "Its last good rows are shown instead." if kept else "Its rows are not shown."
        return f"{name} {wrong}. {shown}"


def _mark(path: Path) -> _Mark:
    """Give what changes when a file is written again; a rename over it changes the inode."""
    status = path.stat()
    return (status.st_ino, status.st_size, status.st_mtime_ns)
