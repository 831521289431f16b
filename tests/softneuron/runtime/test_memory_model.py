"""The random programs of `memory_programs.py`, in a process whose cores nobody else has used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).with_name("memory_programs.py")


def test_random_programs_cost_what_their_model_says():
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(PROGRAMS)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout[-6000:]
    assert "3 passed" in ran.stdout
