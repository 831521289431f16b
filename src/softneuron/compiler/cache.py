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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

DEFAULT_ROOT = "/tmp/neff_cache"
PACKAGE = "graph.pt2"
META = "meta.json"
DONE = "done"
TRACES = "traces"
_PREFIX = "MODULE_"


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled graph on disk; `kept` says that it is in the cache, and not for this process alone."""

    name: str
    package: Path
    kept: bool = True


@dataclass(frozen=True, slots=True)
class Module:
    """One folder of the cache, whole or not. `fault` says what is wrong with it; `meta` is what
    `meta.json` holds, empty when that cannot be read; `size` is in bytes."""

    name: str
    folder: Path
    fault: str | None
    meta: dict[str, object]
    size: int


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _inspect(folder: Path, expected: Mapping[str, object] | None = None) -> Module:
    meta: dict[str, object] = {}
    size = 0
    try:
        meta = dict(json.loads((folder / META).read_text(encoding="utf-8")))
        size = (folder / PACKAGE).stat().st_size
        if not (folder / DONE).exists():
            fault = "its done mark is missing"
        elif f"{_PREFIX}{meta['key']}" != folder.name:
            fault = "it is another graph's entry"
        elif other := [name for name, value in (expected or {}).items() if meta.get(name) != value]:
            fault = f"it was built with another {other[0]}"
        elif _digest(folder / PACKAGE) != meta["package_sha256"]:
            fault = "its package is not the one that was built"
        else:
            fault = None
    except OSError as error:
        fault = f"{Path(error.filename or folder).name} cannot be read"
    except (ValueError, KeyError, TypeError):
        fault = f"{META} is damaged"
    return Module(folder.name, folder, fault, meta, size)


_folders: list[tempfile.TemporaryDirectory[str]] = []
"""What could not be kept in a cache; Python removes these folders when the process ends."""


class NeffCache:
    """Compiled graphs under one folder, safe for many processes.

    `made_with` is what `meta.json` says of the compiler in new entries, and must say in those handed out.
    """

    def __init__(self, root: Path, made_with: Mapping[str, object] | None = None) -> None:
        self.root = root
        self._made_with = dict(made_with or {})

    @classmethod
    def from_environment(cls, made_with: Mapping[str, object] | None = None) -> NeffCache:
        """The cache at `TORCH_NEURONX_NEFF_CACHE_DIR`, by default `/tmp/neff_cache`."""
        root = os.environ.get("TORCH_NEURONX_NEFF_CACHE_DIR", "").strip() or DEFAULT_ROOT
        return cls(Path(root), made_with)

    def folder(self, key: str) -> Path:
        """Where the entry of `key` is, or would be."""
        return self.root / f"{_PREFIX}{key}"

    def find(self, key: str) -> Entry | None:
        """The entry of `key`, when it is there, whole and undamaged."""
        return self.find_named(f"{_PREFIX}{key}")

    def find_named(self, name: str) -> Entry | None:
        """The entry called `name`, `MODULE_<key>`, when it is there, whole and undamaged."""
        module = _inspect(self.root / name, self._made_with)
        return Entry(module.name, module.folder / PACKAGE) if module.fault is None else None

    def modules(self) -> list[Module]:
        """Every folder of the cache, by name."""
        return [_inspect(folder) for folder in sorted(self.root.glob(f"{_PREFIX}*"))]

    def remove(self, module: Module) -> None:
        """Take a folder out of the cache; processes that loaded it already keep running."""
        self._set_aside(module.folder)

    def remove_traces(self) -> None:
        """Forget what `traces` keeps here; graphs are traced again when they are needed."""
        shutil.rmtree(self.root / TRACES, ignore_errors=True)

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
                with self._workplace(key) as folder:
                    self._write(key, folder, build)
                    return self._publish(key, folder), False
        except OSError as error:
            warnings.warn(
                f"softneuron: the NEFF cache {self.root} takes no new entry ({error}); "
                "this graph will be compiled again next time.",
                RuntimeWarning,
                stacklevel=2,
            )
        _folders.append(tempfile.TemporaryDirectory(prefix="softneuron-neff-", ignore_cleanup_errors=True))
        folder_of_this_process = Path(_folders[-1].name)
        self._write(key, folder_of_this_process, build)
        return Entry(f"{_PREFIX}{key}", folder_of_this_process / PACKAGE, kept=False), False

    def _write(self, key: str, folder: Path, build: Callable[[Path], dict[str, object]]) -> None:
        package = folder / PACKAGE
        meta = {"key": key} | build(package) | self._made_with
        meta["package_sha256"] = _digest(package)
        (folder / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        (folder / DONE).touch()

    def _publish(self, key: str, built: Path) -> Entry:
        final = self.folder(key)
        if final.exists():
            self._set_aside(final)
        final.mkdir()
        # The done mark goes last: a reader never sees an entry without its package.
        for name in (PACKAGE, META, DONE):
            (built / name).rename(final / name)
        return Entry(final.name, final / PACKAGE)

    @contextlib.contextmanager
    def _workplace(self, key: str) -> Iterator[Path]:
        """A folder to build `key` in, under its lock; what a killed process left there goes first."""
        folder = self.root / f".building-{key}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _set_aside(self, folder: Path) -> None:
        removed = self.root / f".removed-{folder.name}-{os.getpid()}"
        folder.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        locks = self.root / ".locks"
        locks.mkdir(exist_ok=True)
        # Released by the system when a process dies.
        with FileLock(locks / f"{key}.lock"):
            yield
