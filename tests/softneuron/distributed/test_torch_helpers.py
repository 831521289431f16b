"""PyTorch's own helpers for tests of DTensor and FSDP2 on device neuron; see `torch_suite.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "cases"), [("TestDTensor", 6), ("TestFullyShard", 2)])
def test_suite(suite: str, cases: int) -> None:
    """By unittest, in a process of its own: the helpers start ranks themselves."""
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "-v", f"torch_suite.{suite}"],
        cwd=Path(__file__).parent,
        env=os.environ | {"OMP_NUM_THREADS": "1", "SOFTNEURON_INSTANCE": "trn2.3xlarge"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    # None skipped: with "OK (skipped=1)" the last line would be another.
    assert re.search(rf"^Ran {cases} tests in .*\n+OK$", done.stderr, re.MULTILINE), done.stderr[-6000:]
