"""A few rank processes that stay up for many tests, so that each collective can have a test of its own."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).parent
ANSWER_SECONDS = 120


def rank_environment(rank: int, size: int, store: Path, **extra: str) -> dict[str, str]:
    """The environment of one rank: software cores without Trainium's rule on their number."""
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
        "SOFTNEURON_INSTANCE": "custom",
        "SOFTNEURON_CORES": "4",
        "TEST_STORE": str(store),
        **extra,
    }
    environment.pop("NEURON_RT_VISIBLE_CORES", None)
    return environment


class Ranks:
    """`size` processes in one group; `run` has all of them do the same case."""

    def __init__(self, size: int, **environment: str) -> None:
        self.size = size
        self._environment = environment
        self._processes: list[subprocess.Popen[str]] = []
        self._answers: list[queue.Queue[str]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="softneuron-ranks-")
        store = Path(self._folder.name) / "store"
        for rank in range(self.size):
            process = subprocess.Popen(
                [sys.executable, str(HERE / "worker.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=rank_environment(rank, self.size, store, **self._environment),
            )
            answers: queue.Queue[str] = queue.Queue()
            threading.Thread(target=_pump, args=(process, answers), daemon=True).start()
            self._processes.append(process)
            self._answers.append(answers)

    def run(self, case: str, module: str = "cases", **arguments: object) -> None:
        """Have every rank run `module.case(**arguments)`.

        Raises:
            AssertionError: with the trace of every rank that raised or fell silent.
        """
        if not self._processes:
            self._start()
        order = json.dumps({"module": module, "case": case, "arguments": arguments})
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(order + "\n")
            process.stdin.flush()
        troubles = []
        for rank, answers in enumerate(self._answers):
            try:
                answer = json.loads(answers.get(timeout=ANSWER_SECONDS))
            except queue.Empty:
                answer = f"no answer within {ANSWER_SECONDS} s"
            if answer:
                troubles.append(f"rank {rank}: {answer}")
        if troubles:
            self.stop()
            raise AssertionError("\n".join(troubles))

    def stop(self) -> None:
        """End the processes; the next `run` starts new ones."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._processes, self._answers = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _pump(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        answers.put(line)
    answers.put(json.dumps("the process ended"))
