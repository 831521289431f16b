"""The journal: one JSON file per finished run, written the moment the run ends. `trnready check` and sweeps
write it; the dataset folds it into Parquet."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from trnready.errors import TrnreadyError
from trnready.results.files import ResultsNotWritable, write_whole
from trnready.results.row import InvalidRow, NewerSchema, Row
from trnready.results.schema import UnreadableData

__all__ = ["ResultsNotWritable", "check_writable", "entries", "load", "write"]

FOLDER = "journal"


def write(results_dir: Path, row: Row) -> Path:
    """Record one run and give the file it is in. Raises `ResultsNotWritable`."""
    content = json.dumps(row.to_json(), ensure_ascii=False, allow_nan=False, indent=1).encode()
    # The digest keeps two different rows of one run apart, so no entry is ever written over.
    path = results_dir / FOLDER / f"{row.run_id}-{hashlib.sha256(content).hexdigest()[:12]}.json"
    write_whole(path, content)
    return path


def check_writable(results_dir: Path) -> None:
    """Raise `ResultsNotWritable` unless a row could be recorded, so that no run is started in vain."""
    probe = results_dir / FOLDER / ".tmp-probe"
    write_whole(probe, b"")
    probe.unlink(missing_ok=True)


def entries(results_dir: Path) -> list[Path]:
    """Give the journal's files, in order of name; none when there is no journal."""
    return sorted(p for p in (results_dir / FOLDER).glob("*.json") if not p.name.startswith("."))


def load(path: Path) -> Row:
    """Read one file of the journal.

    Raises `NewerSchema`, `UnreadableData`, or `FileNotFoundError` when another process has folded it since.
    """
    try:
        return Row.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise
    except NewerSchema as error:
        raise NewerSchema(f"{path}: {error}") from error
    except (OSError, ValueError, RecursionError, InvalidRow) as error:
        reason = str(error) if isinstance(error, TrnreadyError) else "it is damaged."
        raise UnreadableData(
            f"{path} cannot be read as a result: {reason} Move it away or restore it; it was left as it is."
        ) from error
