"""A rank that dies, raises or hangs: the others end with an error that names it, nothing stays behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from softneuron_distributed_tests_ranks import rank_environment

HERE = Path(__file__).parent
TIMEOUT = 6.0


def start(
    script: str, *arguments: str, size: int, folder: Path, **environment: str
) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=rank_environment(rank, size, folder / "store", **environment),
        )
        for rank in range(size)
    ]


def finish(processes: list[subprocess.Popen[str]], seconds: float) -> list[str]:
    """What each process printed; kills those that stay longer than `seconds` and says so."""
    outputs = []
    for process in processes:
        try:
            outputs.append(process.communicate(timeout=seconds)[0])
        except subprocess.TimeoutExpired:
            process.kill()
            outputs.append(process.communicate()[0] + "\nleft behind")
    return outputs


@pytest.mark.parametrize(
    ("trouble", "blame", "status"),
    [("dies", "has ended", 7), ("raises", "(has ended|does not answer)", 1), ("hangs", "does not answer", 0)],
)
def test_others_name_the_rank(tmp_path: Path, trouble: str, blame: str, status: int) -> None:
    shared = set(Path("/dev/shm").iterdir())
    processes = start("failing_rank.py", trouble, size=3, folder=tmp_path)
    outputs = finish(processes, 120)
    assert "left behind" not in "".join(outputs)
    assert [process.returncode for process in processes] == [3, status, 3], outputs
    for rank in (0, 2):
        # A Python process that raised takes a moment to end.
        assert re.search(rf"rank 1 \(process {processes[1].pid}\) {blame}", outputs[rank])
        assert f"failed on rank {rank}" in outputs[rank]
        assert "neuron:all_reduce (number 2" in outputs[rank]
    assert not set(Path("/dev/shm").iterdir()) - shared
