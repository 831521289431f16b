"""A dataset of results on the Hub, kept up to date in a folder on this machine, which the index then reads
like any other. `trnready serve` and `trnready can-i-run` use it for `hf://datasets/owner/name`."""

from __future__ import annotations

import glob
import logging
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from trnready.errors import TrnreadyError
from trnready.hub.checkpoint import HubUnreachable
from trnready.results.files import write_whole
from trnready.space.index import cache_root

SCHEME = "hf://"
LOOK_EVERY_S = 60.0

_ADDRESS = re.compile(r"hf://datasets/([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?/?")
_WANTED = re.compile(
    r"(?:data|catalog)/[^/\\]+\.parquet|journal/[^/\\]+\.json|catalog/selected\.yaml|architectures\.jsonl"
)
"""What the Space reads; nothing else is brought, whatever the names of the others."""

_log = logging.getLogger(__name__)


class BadAddress(TrnreadyError):
    """An address that names no dataset on the Hub."""


class NoDataset(TrnreadyError):
    """The Hub has no dataset of that name, or not for this account."""


@dataclass(frozen=True, slots=True)
class Address:
    """A dataset on the Hub, and the branch or commit of it; None for its main branch."""

    name: str
    revision: str | None

    def __str__(self) -> str:
        return f"{SCHEME}datasets/{self.name}" + (f"@{self.revision}" if self.revision else "")


def parse(text: str) -> Address | None:
    """Read an address; None when it is the path of a folder. Raises `BadAddress`."""
    if not text.startswith(SCHEME):
        return None
    found = _ADDRESS.fullmatch(text)
    if found is None or ".." in text:
        raise BadAddress(f"{text[:200]!r} names no dataset; one is written hf://datasets/owner/name.")
    return Address(found[1], found[2])


class Mirror:
    """The folder that holds the dataset's files. `update` brings what is new; `follow` does so by itself."""

    def __init__(self, address: Address, folder: Path | None = None) -> None:
        self.address = address
        flat = re.sub(r"[^\w.-]", "--", f"{address.name}@{address.revision or 'main'}")
        self.folder = folder or cache_root() / "datasets" / flat
        self._done = self.folder / ".commit"
        """Holds the commit that was brought whole."""
        self._stop = threading.Event()

    def open(self) -> Path:
        """Bring the dataset, and give its folder; what was brought before is shown while the Hub is away.

        Raises `NoDataset`, or `HubUnreachable` when nothing was brought before.
        """
        try:
            self.update()
        except HubUnreachable as error:
            if not self._done.is_file():
                raise
            _log.warning("%s What was brought before is shown.", error)
        return self.folder

    def update(self) -> None:
        """Bring what is new and remove what is gone. Raises `NoDataset` or `HubUnreachable`."""
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import (
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        name, revision = self.address.name, self.address.revision
        try:
            info = HfApi().dataset_info(name, revision=revision, timeout=30)
            if info.sha is not None and info.sha == self._brought():
                return
            names = [each.rfilename for each in info.siblings or []]
            wanted = [each for each in names if _WANTED.fullmatch(each)]
            self.folder.mkdir(parents=True, exist_ok=True)
            if wanted:
                snapshot_download(
                    name,
                    repo_type="dataset",
                    revision=info.sha or revision,
                    local_dir=self.folder,
                    allow_patterns=[glob.escape(each) for each in wanted],
                )
        except RevisionNotFoundError:
            raise NoDataset(f"{name} has no revision {revision!r} on the Hub.") from None
        except RepositoryNotFoundError:
            raise NoDataset(
                f"there is no dataset {name} on the Hub for you (a private one needs `hf auth login`)."
            ) from None
        except OfflineModeIsEnabled:
            raise HubUnreachable("HF_HUB_OFFLINE is set, so the dataset cannot be brought.") from None
        except Exception as error:
            # Whatever else went wrong on the way, in whichever HTTP library.
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            raise HubUnreachable(f"the Hub does not give the dataset {name} ({reason[0]}).") from error
        self._remove_all_but(set(wanted))
        write_whole(self._done, (info.sha or "").encode())

    def _brought(self) -> str | None:
        try:
            return self._done.read_text("utf-8")
        except OSError:
            return None

    def follow(self, every_s: float = LOOK_EVERY_S) -> None:
        """Bring what is new from now on, in a thread that ends with the process or at `stop`."""
        threading.Thread(target=self._follow, args=(every_s,), daemon=True).start()

    def stop(self) -> None:
        """End following."""
        self._stop.set()

    def _follow(self, every_s: float) -> None:
        while not self._stop.wait(every_s):
            try:
                self.update()
            except (TrnreadyError, OSError) as error:
                _log.warning("%s What was brought before is shown.", error)

    def _remove_all_but(self, wanted: set[str]) -> None:
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and not name.startswith(".") and name not in wanted:
                path.unlink(missing_ok=True)
