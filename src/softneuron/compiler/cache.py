"""The NEFF cache on disk: `MODULE_<key>/` with the package, `meta.json` and a done mark. Called by `graph`.

Entries are written under another name and renamed, one lock per key; one that
is damaged or half-written is never handed out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

DEFAULT_ROOT = "/tmp/neff_cache"
PACKAGE = "graph.pt2"
META = "meta.json"
DONE = "done"
_PREFIX = "MODULE_"


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled graph on disk."""

    name: str
    package: Path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class NeffCache:
    """Compiled graphs under one folder, safe for many processes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def from_environment(cls) -> NeffCache:
        """The cache at `TORCH_NEURONX_NEFF_CACHE_DIR`, by default `/tmp/neff_cache`."""
        return cls(Path(os.environ.get("TORCH_NEURONX_NEFF_CACHE_DIR", "").strip() or DEFAULT_ROOT))

    def find(self, key: str) -> Entry | None:
        """The entry of `key`, when it is there, whole and undamaged."""
        folder = self.root / f"{_PREFIX}{key}"
        try:
            meta = json.loads((folder / META).read_text(encoding="utf-8"))
            whole = (folder / DONE).exists() and _digest(folder / PACKAGE) == meta["package_sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Entry(folder.name, folder / PACKAGE) if whole else None

    def find_or_build(self, key: str, build: Callable[[Path], dict[str, object]]) -> tuple[Entry, bool]:
        """The entry of `key` and whether it was there already; if not, `build(package)` writes it.

        `build` gets a path to write the package to and returns what else
        `meta.json` should say. When the folder cannot be written to, the
        package lives in a temporary folder until the process ends, with a warning.
        """
        entry = self.find(key)
        if entry is not None:
            return entry, True
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with self._locked(key):
                entry = self.find(key)
                if entry is not None:
                    return entry, True
                with tempfile.TemporaryDirectory(dir=self.root, prefix=".building-") as folder:
                    self._write(Path(folder), build)
                    return self._publish(key, Path(folder)), False
        except OSError as error:
            warnings.warn(
                f"softneuron: the NEFF cache {self.root} takes no new entry ({error}); "
                "this graph will be compiled again next time.",
                RuntimeWarning,
                stacklevel=2,
            )
        folder_kept = Path(tempfile.mkdtemp(prefix="softneuron-neff-"))
        self._write(folder_kept, build)
        return Entry(f"{_PREFIX}{key}", folder_kept / PACKAGE), False

    def _write(self, folder: Path, build: Callable[[Path], dict[str, object]]) -> None:
        package = folder / PACKAGE
        meta = build(package)
        meta["package_sha256"] = _digest(package)
        (folder / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        (folder / DONE).touch()

    def _publish(self, key: str, built: Path) -> Entry:
        final = self.root / f"{_PREFIX}{key}"
        if final.exists():
            damaged = self.root / f".damaged-{key}-{os.getpid()}"
            final.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)
        final.mkdir()
        # The done mark goes last: a reader never sees an entry without its package.
        for name in (PACKAGE, META, DONE):
            (built / name).rename(final / name)
        return Entry(final.name, final / PACKAGE)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        locks = self.root / ".locks"
        locks.mkdir(exist_ok=True)
        # Released by the system when a process dies.
        with FileLock(locks / f"{key}.lock"):
            yield
