"""The database of names: every model of the catalogs and of the Selected list, with a trigram index for part
of a name. Built once into one file of SQLite, which is then only read. `trnready.space.index` asks it."""

from __future__ import annotations

import sqlite3
import uuid
import weakref
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trnready.hub.catalog import Catalog
from trnready.hub.selected import LeftOut, Selected
from trnready.plan import quantization

Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

FORMAT = "4"
"""Raised whenever the tables change, so that a file of an older trnready is built anew."""

TRIGRAM = 3
_TABLES = """
CREATE TABLE models (
    id INTEGER PRIMARY KEY, model_id TEXT NOT NULL, task TEXT NOT NULL, model_type TEXT, parameters INTEGER,
    license TEXT, gated TEXT, likes INTEGER, created TEXT, downloads INTEGER, downloads_position INTEGER,
    trending REAL, trending_position INTEGER, selected_position INTEGER, why TEXT,
    left_out_reason TEXT, left_out_why TEXT
);
CREATE VIRTUAL TABLE names USING fts5(name, content='', tokenize='trigram', columnsize=0);
CREATE TABLE grams (gram BLOB PRIMARY KEY, members BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE arrays (name TEXT PRIMARY KEY, kind TEXT NOT NULL, content BLOB NOT NULL);
CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


def fold(text: str) -> str:
    """Give the form in which names and searches are compared: whatever the capitals."""
    return text.casefold()


@dataclass(slots=True)
class Listed:
    """A model of a catalog or of the Selected list. Positions count from 1; None where it is not in that
    order. `downloads` are those of 30 days, `created` an ISO date."""

    model_id: str
    task: str
    model_type: str | None = None
    parameters: int | None = None
    license: str | None = None
    gated: str | None = None
    likes: int | None = None
    created: str | None = None
    downloads: int | None = None
    downloads_position: int | None = None
    trending: float | None = None
    trending_position: int | None = None
    selected_position: int | None = None
    why: str | None = None
    left_out: LeftOut | None = None


def gather(catalogs: Sequence[Catalog], selected: Sequence[Selected]) -> list[Listed]:
    """Put the lists together: one entry for each model and task."""
    found: dict[tuple[str, str], Listed] = {}
    by_name: dict[str, Listed] = {}
    for catalog in catalogs:
        columns = catalog.table.to_pydict()
        for values in zip(*columns.values(), strict=True):
            each = dict(zip(columns, values, strict=True))
            created = each.pop("created")
            each["trending"] = each.pop("trending_score")
            entry = Listed(**each, created=None if created is None else created.isoformat())
            if found.setdefault((entry.model_id, entry.task), entry) is entry:
                by_name.setdefault(entry.model_id, entry)
    for position, chosen in enumerate(selected, 1):
        key = (chosen.model_id, chosen.task)
        if key not in found:
            found[key] = _of_other_task(chosen, by_name.get(chosen.model_id))
        entry = found[key]
        entry.selected_position, entry.why, entry.left_out = position, chosen.why, chosen.left_out
        entry.model_type = entry.model_type or chosen.model_type
        entry.gated = entry.gated or ("yes" if chosen.gated else None)
        if entry.parameters is None:
            entry.parameters = chosen.parameters
    return list(found.values())


def _of_other_task(chosen: Selected, other: Listed | None) -> Listed:
    """The Hub lists a model under one task; the facts hold for the other too, its places do not."""
    entry = Listed(chosen.model_id, chosen.task)
    if other is not None:
        for name in ("model_type", "parameters", "license", "gated", "likes", "created", "downloads"):
            setattr(entry, name, getattr(other, name))
    return entry


def build(path: Path, models: Sequence[Listed], notes: dict[str, str]) -> None:
    """Write the database, whole or not at all. Raises `OSError` or `sqlite3.Error`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        with closing(sqlite3.connect(temporary, isolation_level=None)) as database:
            database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA page_size=8192;")
            database.executescript(_TABLES)
            database.execute("BEGIN")
            database.executemany(
                f"INSERT INTO models VALUES ({','.join('?' * 17)})",
                (_record(number, each) for number, each in enumerate(models)),
            )
            # Row numbers of FTS begin at 1 by habit; 0 is allowed, and is the first model's here.
            folded = [fold(each.model_id) for each in models]
            database.executemany("INSERT INTO names (rowid, name) VALUES (?, ?)", enumerate(folded))
            database.execute("INSERT INTO names (names) VALUES ('optimize')")
            database.execute("CREATE INDEX by_name ON models (model_id COLLATE NOCASE)")
            arrays = _arrays(models, folded)
            for name, array in arrays.items():
                database.execute(
                    "INSERT INTO arrays VALUES (?, ?, ?)", (name, array.dtype.str, array.tobytes())
                )
            grams = _grams(arrays["text"], arrays["starts"]) if models else ()
            database.executemany("INSERT INTO grams VALUES (?, ?)", grams)
            database.executemany("INSERT INTO notes VALUES (?, ?)", notes.items())
            database.execute("COMMIT")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _record(number: int, each: Listed) -> tuple[Any, ...]:
    left_out = each.left_out
    return (
        number, each.model_id, each.task, each.model_type, each.parameters, each.license, each.gated,
        each.likes, each.created, each.downloads, each.downloads_position, each.trending,
        each.trending_position,
        each.selected_position, each.why, left_out and left_out.reason, left_out and left_out.why,
    )  # fmt: skip


def _arrays(models: Sequence[Listed], folded: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Give what the lists are cut and sorted by, in memory: one number a model, and the text of all names."""
    tasks = sorted({each.task for each in models})
    types = sorted({each.model_type for each in models if each.model_type})
    task_number = {name: number for number, name in enumerate(tasks)}
    type_number: dict[str | None, int] = {name: number for number, name in enumerate(types)}
    facts: dict[str, npt.NDArray[Any]] = {
        "trending_score": np.array([-1.0 if e.trending is None else e.trending for e in models], np.float64),
        "download_count": _numbers([each.downloads for each in models], np.int64),
        "parameters": _numbers([each.parameters for each in models], np.int64),
        "likes": _numbers([each.likes for each in models], np.int64),
    }
    encoded = [name.encode("utf-8", "replace") for name in folded]
    return {
        "task_names": _text(tasks),
        "type_names": _text(types),
        "task": np.array([task_number[each.task] for each in models], np.int32),
        "model_type": np.array([type_number.get(each.model_type, -1) for each in models], np.int32),
        "selected": _numbers([each.selected_position for each in models], np.int32),
        "trending": _numbers([each.trending_position for each in models], np.int32),
        "downloads": _numbers([each.downloads_position for each in models], np.int32),
        **facts,
        "quantized": np.array([quantization.in_name(each.model_id) is not None for each in models], np.bool_),
        "left_out": np.array([each.left_out is not None for each in models], np.bool_),
        "left_out_reason": _text([each.left_out.reason if each.left_out else "" for each in models]),
        "text": np.frombuffer(b"".join(name + b"\n" for name in encoded), np.uint8),
        "starts": np.cumsum([0, *(len(name) + 1 for name in encoded)], dtype=np.int64),
        **{f"by_{name}": _descending(numbers) for name, numbers in facts.items()},
        "by_name": np.array(sorted(range(len(folded)), key=lambda i: (folded[i], i)), np.int32),
    }


def _grams(text: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> Iterator[tuple[bytes, bytes]]:
    """Give every byte and pair of bytes of the names, and which names hold it, as packed bits."""
    count = len(starts) - 1
    owner = np.repeat(np.arange(count, dtype=np.int32), np.diff(starts))
    yield from _members(text.astype(np.uint16), owner, count, 1)
    yield from _members(text[:-1].astype(np.uint16) * 256 + text[1:], owner, count, 2)


def _members(
    codes: npt.NDArray[np.uint16], owner: Ids, count: int, size: int
) -> Iterator[tuple[bytes, bytes]]:
    order = np.argsort(codes, kind="stable")
    found, first = np.unique(codes[order], return_index=True)
    for code, places in zip(found.tolist(), np.split(order, first[1:]), strict=True):
        gram = code.to_bytes(size, "big")
        if b"\n" not in gram:
            members = np.zeros(count, np.bool_)
            members[owner[places]] = True
            yield gram, zlib.compress(np.packbits(members).tobytes(), 1)


def _text(words: Sequence[str]) -> npt.NDArray[np.uint8]:
    return np.frombuffer("\n".join(words).encode("utf-8", "replace"), np.uint8)


def _descending(numbers: npt.NDArray[Any]) -> Ids:
    """Give the models, largest number first; those of which it is not known come last."""
    order: Ids = np.argsort(-numbers, kind="stable").astype(np.int32)
    return order


def _numbers(values: Sequence[int | None], kind: type[np.integer[Any]]) -> npt.NDArray[Any]:
    """What is not known is -1."""
    return np.array([-1 if value is None else value for value in values], kind)


class Names:
    """The database, open for reading; safe to share between threads."""

    def __init__(self, path: Path) -> None:
        """Raises `sqlite3.Error` or `KeyError` when the file is none of ours."""
        self.path = path
        address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        # SQLite itself takes turns on a connection; every question here is answered in a few milliseconds.
        self._database = sqlite3.connect(address, uri=True, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self.notes: dict[str, str] = dict(self._database.execute("SELECT name, value FROM notes"))
        arrays = {
            name: np.frombuffer(content, kind)
            for name, kind, content in self._database.execute("SELECT name, kind, content FROM arrays")
        }
        self.tasks = _words(arrays["task_names"])
        self.model_types = _words(arrays["type_names"])
        self.task: Ids = arrays["task"]
        self.model_type: Ids = arrays["model_type"]
        self.quantized: Mask = arrays["quantized"]
        self.selected: Ids = arrays["selected"]
        self.trending: Ids = arrays["trending"]
        self.downloads: Ids = arrays["downloads"]
        self.facts: dict[str, npt.NDArray[Any]] = {
            "trending": arrays["trending_score"],
            "downloads": arrays["download_count"],
            "parameters": arrays["parameters"],
            "likes": arrays["likes"],
        }
        """Numbers of every model, -1 where they are not known."""
        self.descending: dict[str, Ids] = {
            "trending": arrays["by_trending_score"],
            "downloads": arrays["by_download_count"],
            "parameters": arrays["by_parameters"],
            "likes": arrays["by_likes"],
        }
        """The models by each of these numbers, largest first and unknown last."""
        self.by_name: Ids = arrays["by_name"]
        left_out = arrays["left_out_reason"].tobytes().decode().split("\n") if len(self) else []
        self.left_out = {number: reason for number, reason in enumerate(left_out) if reason}
        self._text: npt.NDArray[np.uint8] = arrays["text"]
        self._starts: npt.NDArray[np.int64] = arrays["starts"]

    def __len__(self) -> int:
        return len(self.task)

    def models(self, numbers: Sequence[int]) -> list[Listed]:
        """Give the models of these numbers, in the order asked for."""
        marks = ",".join("?" * len(numbers))
        found = self._database.execute(
            f"SELECT * FROM models WHERE id IN ({marks})", list(numbers)
        ).fetchall()
        by_number = {record[0]: _listed(record) for record in found}
        return [by_number[number] for number in numbers]

    def tasks_of(self, model_id: str) -> dict[str, int]:
        """Give the number of each entry of a model, by the task it is listed under."""
        found = self._database.execute(
            "SELECT task, id FROM models WHERE model_id = ? COLLATE NOCASE AND model_id = ? ORDER BY id",
            (model_id, model_id),
        )
        return dict(found.fetchall())

    def spelled(self, model_id: str) -> str | None:
        """Give the name of a model as it is listed, from one with other capitals; None when there is none."""
        found = self._database.execute(
            "SELECT model_id FROM models WHERE model_id = ? COLLATE NOCASE "
            "ORDER BY model_id != ?, id LIMIT 1",
            (model_id, model_id),
        ).fetchone()
        return None if found is None else str(found[0])

    def order_with(self, more: Sequence[str]) -> Ids:
        """Give the order by name of all models and of more names, folded, which are numbered after them."""
        places = sorted(
            (bisect_left(self.by_name, name, key=self._name), name, i) for i, name in enumerate(more)
        )
        numbers = [len(self) + i for _, _, i in places]
        order: Ids = np.insert(self.by_name, [place for place, _, _ in places], np.array(numbers, np.int32))
        return order

    def _name(self, number: int) -> str:
        start, end = self._starts[number], self._starts[number + 1] - 1
        return self._text[start:end].tobytes().decode("utf-8")

    def search(self, words: Sequence[str]) -> Mask:
        """Say of each model whether its name holds every word. The words are folded and not empty."""
        found: Mask = np.ones(len(self), np.bool_)
        if any("\n" in word or "\0" in word for word in words):
            return np.zeros(len(self), np.bool_)
        long = [word for word in words if len(word) >= TRIGRAM]
        if long:
            found = self._by_trigrams(long)
        for word in words:
            if len(word) < TRIGRAM:
                found &= self._by_gram(word.encode("utf-8", "replace"))
        return found

    def _by_trigrams(self, words: Sequence[str]) -> Mask:
        """Look for words of three letters and more. All numbers come as one text: many rows cost far more."""
        query = " AND ".join('"' + word.replace('"', '""') + '"' for word in words)
        (numbers,) = self._database.execute(
            "SELECT group_concat(rowid) FROM names WHERE names MATCH ?", (query,)
        ).fetchone()
        found: Mask = np.zeros(len(self), np.bool_)
        if numbers:
            found[np.fromstring(numbers, np.int32, sep=",")] = True
        return found

    def _by_gram(self, wanted: bytes) -> Mask:
        """Look for one or two letters, for which the trigram index has no answer."""
        if len(wanted) > 2:
            return self._by_text(wanted)
        members = self._database.execute("SELECT members FROM grams WHERE gram = ?", (wanted,)).fetchone()
        if members is None:
            return np.zeros(len(self), np.bool_)
        packed = np.frombuffer(zlib.decompress(members[0]), np.uint8)
        return np.unpackbits(packed, count=len(self)).astype(np.bool_)

    def _by_text(self, wanted: bytes) -> Mask:
        """Look for letters in the text of all names: one or two that are no ASCII."""
        text = self._text
        found: Mask = np.zeros(len(self), np.bool_)
        if len(wanted) > len(text):
            return found
        places = np.flatnonzero(text[: len(text) - len(wanted) + 1] == wanted[0])
        for offset in range(1, len(wanted)):
            places = places[text[places + offset] == wanted[offset]]
        found[np.searchsorted(self._starts, places, side="right") - 1] = True
        return found


def _listed(record: tuple[Any, ...]) -> Listed:
    reason, why = record[-2:]
    entry = Listed(*record[1:-2])
    entry.left_out = None if reason is None else LeftOut(reason, why)
    return entry


def _words(array: npt.NDArray[np.uint8]) -> list[str]:
    return array.tobytes().decode().split("\n") if len(array) else []
