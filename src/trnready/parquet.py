"""How Parquet files are opened: by Arrow's own code alone, which keeps no Python object in its threads."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def opened(path: Path) -> pq.ParquetFile:
    """Open a file for reading; use it in a `with`. Raises `OSError` or `pyarrow.ArrowException`.

    A Python file, or buffers read ahead from one, would be let go of in Arrow's threads whenever these come
    to it. If the interpreter is ending by then, Python ends the thread in the midst of C++, which aborts the
    process.
    """
    return pq.ParquetFile(pa.OSFile(os.fsencode(path)), pre_buffer=False)
