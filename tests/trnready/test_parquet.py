"""How Parquet files are opened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trnready import parquet

TABLE = pa.table({"name": ["a", "b"], "value": [1, 2]})

NO_THREAD_OF_ARROWS = """
import os, sys
from pathlib import Path
from trnready import parquet

import pyarrow.compute

before = len(os.listdir("/proc/self/task"))
with parquet.opened(Path(sys.argv[1])) as file:
    table = file.read(use_threads=False)
print(table.num_rows, len(os.listdir("/proc/self/task")) - before)
"""


def test_nothing_is_read_ahead_in_threads_that_outlive_the_interpreter(tmp_path: Path) -> None:
    # Read ahead from a Python file, one process in two of `trnready repeat` aborted at its end.
    pq.write_table(TABLE, tmp_path / "it.parquet")
    ran = subprocess.run(
        [sys.executable, "-c", NO_THREAD_OF_ARROWS, str(tmp_path / "it.parquet")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "2 0\n", "")


def test_names_that_are_no_text_are_read(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    with (folder / "it.parquet").open("wb") as file:
        pq.write_table(TABLE, file)
    with parquet.opened(folder / "it.parquet") as opened:
        assert opened.read().equals(TABLE)
