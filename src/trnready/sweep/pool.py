"""Worker processes side by side: each takes one architecture at a time; one that hangs or dies is
replaced, and what it ran is recorded as a time-out or a crash. `trnready sweep` drives it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trnready.plan.architectures import Architecture
from trnready.plan.twin_row import LEVEL, BadRecord, TwinRow

RUNS_PER_WORKER = 25
"""A worker is replaced after so many twins, so that nothing can gather in it."""
POLL_S = 0.2
COMMAND = ("-m", "trnready.plan.twin_worker")
"""What Python runs as a worker."""


@dataclass(slots=True)
class Progress:
    """What is going on: the architecture each worker is at and since when (monotonic seconds)."""

    running: dict[int, tuple[Architecture, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to run: `workers` processes, `level` of the compiler (`-O0`, `-O1`), seconds that one twin may
    take, the file that the workers' own output goes to, and the cores that each twin is split over."""

    workers: int
    level: str
    timeout_s: float
    log: Path
    cores: int = 1


def run_all(
    work: Sequence[Architecture], settings: Settings, progress: Progress, tick: Callable[[], None]
) -> Iterator[TwinRow]:
    """Run every architecture's twin and give the rows as they come; `tick` is called while waiting. Leaving
    early, Ctrl-C included, ends every worker."""
    todo: queue.SimpleQueue[Architecture] = queue.SimpleQueue()
    for each in work:
        todo.put(each)
    done: queue.SimpleQueue[TwinRow] = queue.SimpleQueue()
    stop = threading.Event()
    threads = [
        threading.Thread(target=_serve, args=(number, todo, done, settings, progress, stop), daemon=True)
        for number in range(min(settings.workers, len(work)))
    ]
    for thread in threads:
        thread.start()
    try:
        left = len(work)
        while left:
            tick()
            with suppress(queue.Empty):
                row = done.get(timeout=POLL_S)
                left -= 1
                yield row
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _serve(
    number: int,
    todo: queue.SimpleQueue[Architecture],
    done: queue.SimpleQueue[TwinRow],
    settings: Settings,
    progress: Progress,
    stop: threading.Event,
) -> None:
    worker: _Worker | None = None
    try:
        while not stop.is_set():
            try:
                architecture = todo.get_nowait()
            except queue.Empty:
                return
            if worker is None or worker.runs >= RUNS_PER_WORKER:
                if worker is not None:
                    worker.end()
                worker = _Worker(settings)
            progress.running[number] = (architecture, time.monotonic())
            row = worker.run(architecture, stop)
            progress.running.pop(number, None)
            if row is None:
                return
            if worker.ended:
                worker = None
            done.put(row)
    finally:
        progress.running.pop(number, None)
        if worker is not None:
            worker.end()


class _Worker:
    """One process, in a session of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.runs = 0
        self.ended = False
        settings.log.parent.mkdir(parents=True, exist_ok=True)
        with settings.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {LEVEL: settings.level, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
                text=True,
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def run(self, architecture: Architecture, stop: threading.Event) -> TwinRow | None:
        """Give the row of an architecture; None when told to stop."""
        self.runs += 1
        deadline = time.monotonic() + self._settings.timeout_s
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(
                json.dumps(asdict(architecture) | {"cores": self._settings.cores}) + "\n"
            )
            self._process.stdin.flush()
        while not stop.is_set():
            try:
                line = self._answers.get(timeout=POLL_S)
            except queue.Empty:
                if time.monotonic() < deadline:
                    continue
                self.end()
                error = f"Still running after {self._settings.timeout_s:g} s."
                return self._failed(architecture, "timeout", error)
            if line:
                try:
                    return TwinRow.from_line(line)
                except BadRecord as flaw:
                    return self._failed(architecture, "error", str(flaw))
            self.end()
            return self._failed(architecture, "crash", _last_words(self._process.returncode))
        self.end()
        return None

    def _failed(self, architecture: Architecture, reason: str, error: str) -> TwinRow:
        return TwinRow(
            architecture.model_type,
            architecture.task,
            "FAIL",
            reason,
            "run",
            error,
            level=self._settings.level,
            cores=self._settings.cores,
        )

    def end(self) -> None:
        """End the process and whatever it started."""
        self.ended = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _last_words(status: int | None) -> str:
    if status is not None and status < 0 and -status != signal.SIGKILL:
        return f"The worker was ended by {signal.Signals(-status).name}."
    return "The worker ended without an answer."
