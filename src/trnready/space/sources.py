"""What the Space's index is made from besides the results: catalogs, Selected list, and the twins' table.
Finds these files, and reads them into one database of names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from trnready import carried
from trnready.errors import TrnreadyError
from trnready.hub import catalog, selected
from trnready.plan import twin_row
from trnready.plan.twin_row import TwinRow
from trnready.space import names

TWINS = Path("datasets") / "architectures.jsonl"
SPLIT_TWINS = TWINS.with_name("architectures-2-cores.jsonl")


class NoSuchFolder(TrnreadyError):
    """A folder that was named on the command line is not there."""


@dataclass(frozen=True, slots=True)
class Sources:
    """A folder with the catalogs and `selected.yaml`, and the file of twins; either may be missing. Twins
    that were split over two cores have a file of their own beside it."""

    catalogs: Path | None
    twins: Path | None

    @property
    def tables(self) -> tuple[Path, ...]:
        """The files of twins that are there."""
        beside = () if self.twins is None else (self.twins, self.twins.with_name(SPLIT_TWINS.name))
        return tuple(path for path in beside if path.is_file())

    def files(self) -> tuple[Path, ...]:
        """Give the files that are there, in order."""
        found: list[Path] = []
        if self.catalogs is not None:
            found += [*catalog.files(self.catalogs), self.catalogs / selected.NAME]
        found += self.tables
        return tuple(path for path in found if path.is_file())


@dataclass(frozen=True, slots=True)
class AboutCatalog:
    """Where the list of a task comes from, and when each order was taken; None where there is none."""

    task: str
    source: str
    models: int
    downloads_at: str | None
    trending_at: str | None


def find(results_dir: Path, catalogs: Path | None = None) -> Sources:
    """Give what is nearest: what was asked for, what lies beside the results, in the working folder, what
    trnready carries."""
    folders = [results_dir / catalog.FOLDER, Path(catalog.FOLDER), carried.root() / catalog.FOLDER]
    tables = [results_dir / TWINS.name, TWINS, carried.root() / TWINS]
    return Sources(
        catalogs if catalogs is not None else next((each for each in folders if each.is_dir()), None),
        next((each for each in tables if each.is_file()), None),
    )


def check_named(results_dir: Path | None, catalogs: Path | None = None) -> None:
    """Look whether the folders are there that somebody named. Raises `NoSuchFolder`."""
    for named in (results_dir, catalogs):
        if named is not None and named.exists() and not named.is_dir():
            raise NoSuchFolder(f"{named} is a file, not a folder.")
    if results_dir is not None and not results_dir.is_dir():
        raise NoSuchFolder(
            f"there is no results folder at {results_dir}; `trnready check MODEL --results {results_dir}` "
            "makes one."
        )
    if catalogs is not None and not catalogs.is_dir():
        raise NoSuchFolder(
            f"there is no folder with catalogs at {catalogs}; "
            f"`trnready catalog refresh --catalog {catalogs}` makes one."
        )


def digest(files: Iterable[Path]) -> str:
    """Give what changes when any of the files does."""
    found = hashlib.sha256(names.FORMAT.encode())
    for path in files:
        try:
            content = path.read_bytes()
        except OSError:
            continue
        found.update(f"\n{path.name} {len(content)}\n".encode() + content)
    return found.hexdigest()[:32]


def build(path: Path, sources: Sources, mark: str) -> None:
    """Write the database of names; what cannot be read is left out and told. Raises `OSError` or
    `sqlite3.Error`."""
    notices: list[str] = []
    catalogs: list[catalog.Catalog] = []
    about: list[dict[str, str | int | None]] = []
    chosen: tuple[selected.Selected, ...] = ()
    for file in sources.files():
        try:
            if file.suffix == ".parquet":
                read = catalog.read(file)
                catalogs.append(read)
                about.append(_about(file.stem, read))
            elif file.name == selected.NAME:
                chosen = selected.read(file)
        except TrnreadyError:
            notices.append(f"{file.name} is damaged and cannot be read; what it lists is not shown.")
    names.build(
        path,
        names.gather(catalogs, chosen),
        {"digest": mark, "notices": json.dumps(notices), "about": json.dumps(about)},
    )


def about(notes: dict[str, str]) -> tuple[AboutCatalog, ...]:
    """Give back what `build` noted of the catalogs."""
    return tuple(AboutCatalog(**each) for each in json.loads(notes["about"]))


def read_twins(tables: Iterable[Path]) -> tuple[TwinRow, ...]:
    """Give the twins of these files; of one that cannot be read there are none."""
    found: list[TwinRow] = []
    for path in tables:
        with suppress(TrnreadyError):
            found += twin_row.read_rows(path).values()
    return tuple(found)


def _about(task: str, read: catalog.Catalog) -> dict[str, str | int | None]:
    return {"task": task, "models": read.table.num_rows} | asdict(read.about)
