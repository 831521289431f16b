"""References that are kept: what the CPU computed for a checkpoint, so that many device runs share one CPU
run. Bounded in size, safe for many processes; what is damaged is thrown away and computed again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from trnready.run.memory import parse_size
from trnready.run.report import OUTPUTS_FILE, REPORT_FILE
from trnready.user_cache import user_cache

FOLDER_VARIABLE = "TRNREADY_REFERENCES"
SIZE_VARIABLE = "TRNREADY_REFERENCES_SIZE"
DEFAULT_SIZE = 2 * 2**30
LEFTOVER_S = 3600.0
"""Age of a half-written entry, in seconds, at which whoever wrote it must be dead."""

_MARK = "digest"
_TEMPORARY = ".tmp-"
_LOCKS = ".locks"
_SETTINGS = ("OMP_", "MKL_", "KMP_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH_NUM_THREADS")
"""Beginnings of the environment variables that the CPU's last bits may depend on."""


@dataclass(frozen=True, slots=True)
class Question:
    """All that a reference depends on: the checkpoint's content, the script that runs it (which holds model,
    prompt and revision), how it is run, the tokens it is fed, and the software and processor that compute
    it."""

    content: str
    script: str
    options: tuple[str, ...]
    fed: tuple[int, ...] | None
    versions: Mapping[str, str]
    cpu: str | None

    def key(self) -> str:
        """Give the name of the entry."""
        settings = {name: each for name, each in os.environ.items() if name.startswith(_SETTINGS)}
        parts = [
            self.content,
            self.script,
            self.options,
            self.fed,
            dict(self.versions),
            self.cpu,
            os.cpu_count(),
            settings,
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one reference, which nobody else uses meanwhile. None where nothing can be kept."""

    folder: Path | None
    limit: int

    def found(self) -> Path | None:
        """Give the folder with the whole report, or None; a damaged one is removed."""
        if self.folder is None or not self.folder.is_dir():
            return None
        with suppress(OSError):
            mark = self.folder / _MARK
            if mark.read_text(encoding="utf-8") == _digest(self.folder):
                mark.touch()
                return self.folder
        shutil.rmtree(self.folder, ignore_errors=True)
        return None

    def keep(self, report: Path) -> None:
        """Keep a copy of the report in this folder. A disk that is full keeps nothing, and says nothing."""
        if self.folder is None or _size(report) > self.limit:
            return
        temporary = self.folder.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}")
        try:
            temporary.mkdir()
            for name in (REPORT_FILE, OUTPUTS_FILE):
                shutil.copyfile(report / name, temporary / name)
            (temporary / _MARK).write_text(_digest(temporary), encoding="utf-8")
            temporary.rename(self.folder)
        except OSError:
            return
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _make_room(self.folder, self.limit)


@dataclass(frozen=True, slots=True)
class References:
    """A folder of references, of so many bytes at most."""

    folder: Path
    limit: int = DEFAULT_SIZE

    @staticmethod
    def of_user() -> References:
        """Give the user's own, by the XDG rules; `TRNREADY_REFERENCES` names another folder, and
        `TRNREADY_REFERENCES_SIZE` another size, such as 500MB, or 0 for none. Raises `NoAmount`."""
        folder = os.environ.get(FOLDER_VARIABLE) or user_cache("references")
        size = os.environ.get(SIZE_VARIABLE)
        return References(Path(folder).absolute(), parse_size(size) if size else DEFAULT_SIZE)

    @contextmanager
    def place(self, question: Question) -> Iterator[Place]:
        """Give the place of a reference, for this process alone as long as the context lasts: whoever else
        needs it waits, and then finds it. A folder that cannot be written keeps nothing."""
        key = question.key()
        lock = FileLock(self.folder / _LOCKS / key)
        try:
            (self.folder / _LOCKS).mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except OSError:
            yield Place(None, 0)
            return
        try:
            yield Place(self.folder / key, self.limit)
        finally:
            lock.release()


def _digest(folder: Path) -> str:
    """Give the digest of the report's two files. Raises OSError."""
    digest = hashlib.sha256()
    for name in (REPORT_FILE, OUTPUTS_FILE):
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _make_room(kept: Path, limit: int) -> None:
    """Remove what was used longest ago until the rest fits; never the one just kept, nor one in use."""
    for leftover in kept.parent.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > LEFTOVER_S:
                shutil.rmtree(leftover, ignore_errors=True)
    entries = [each for each in kept.parent.iterdir() if (each / _MARK).is_file() and each != kept]
    room = limit - _size(kept) - sum(map(_size, entries))
    for entry in sorted(entries, key=_used):
        if room >= 0:
            return
        size = _size(entry)
        with suppress(Timeout, OSError), FileLock(kept.parent / _LOCKS / entry.name, timeout=0):
            shutil.rmtree(entry)
            room += size


def _used(entry: Path) -> float:
    with suppress(OSError):
        return (entry / _MARK).stat().st_mtime
    return 0.0


def _size(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total
