"""Writing a file so that it is there whole or not at all, whatever happens. Used by the journal, the dataset
and its card, and by what is kept of Transformers."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from trnready.errors import TrnreadyError

TEMPORARY_PREFIX = ".tmp-"
"""Names that begin so are half-written files; Arrow and pandas skip names that begin with a dot."""


class ResultsNotWritable(TrnreadyError):
    """The results folder cannot be written: permissions, a full disk, or something else in its place."""


def not_writable(path: Path, error: OSError) -> ResultsNotWritable:
    """Give the error to raise for a refused write."""
    reason = error.strerror or str(error)
    return ResultsNotWritable(
        f"cannot write results to {path}: {reason}. Nothing that was there has been lost."
    )


def write_whole(path: Path, content: bytes) -> None:
    """Write a file by a temporary name and a rename, and see it onto the disk.

    Raises `ResultsNotWritable`; the file that was there before, if any, is then still there.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise not_writable(path, error) from error


def temporaries(folder: Path) -> list[Path]:
    """Give the half-written files in a folder, in order of name: some are being written, others were left by
    a process that was killed. None of them is ever read."""
    return sorted(folder.glob(f"{TEMPORARY_PREFIX}*"))


def sync_folder(folder: Path) -> None:
    """See renames and removals in a folder onto the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
