"""Runs a test's `run.py` in a process of its own, on the device or on the CPU, and reads what it reports.
`trnready.check` calls it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trnready.run import process
from trnready.run.process import Ended, Finished
from trnready.run.report import ArrayReport, BadReport, Report, read, read_arrays
from trnready.script.task import Output

PHASES = ("load", "compile", "run")
ALTERING = ("PYTHONOPTIMIZE", "PYTHONINSPECT", "PYTHONWARNINGS")
"""Settings of the caller's Python that would change how a script runs: Transformers needs its docstrings, a
warning is no error, and a script that has ended must not wait for commands."""

FOLDERS = frozenset({"HF_HOME", "HF_HUB_CACHE", "TMPDIR", "TORCH_NEURONX_NEFF_CACHE_DIR", "XDG_CACHE_HOME"})
"""Variables that name a folder."""

LOG_BYTES = 1_000_000
"""As much of a log's end as is read to explain a failure."""


class Watch(Protocol):
    """Who looks on: told of every stage as it begins, and often while one goes on."""

    def stage(self, name: str) -> None:
        """A stage begins."""
        ...

    def tick(self) -> None:
        """A stage goes on."""
        ...


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a script: how it ended, the end of its log, how far it says it got, and its report. Without
    a report, `flaw` says what is wrong with the one that a process left which ended well."""

    ended: Ended
    log: str
    phase: str
    report: Report | ArrayReport | None
    flaw: str | None


@dataclass(frozen=True, slots=True)
class Runner:
    """How a test's script is run: by which interpreter, in which folder, with what report, for how long, in
    how much of the host's memory. `offline` keeps Transformers from asking the Hub."""

    python: str
    folder: Path
    output: Output
    timeout_s: float
    memory_bytes: int | None
    offline: bool
    watch: Watch

    def on_device(self, name: str, options: Sequence[str]) -> Ran:
        """Run the script, its phases shown as stages; its report goes to the folder `name`."""
        self.watch.stage(PHASES[0])
        return self._run(name, options, self.watch.stage)

    def on_cpu(self, name: str, options: Sequence[str]) -> Ran:
        """Run the script on the CPU as one stage, which the caller has named."""
        return self._run(name, ["--device", "cpu", *options], lambda _: None)

    def log(self, name: str) -> Path:
        """Give the log of the run whose report is called `name`."""
        return self.folder / ("run.log" if name == "device" else f"{name}.log")

    def probe(self, program: str) -> tuple[Ended, str]:
        """Run a line of Python in the same way; give how it ended and what it said."""
        log = self.folder / "probe.log"
        return self._process(["-c", program], log, self.watch.tick), _end_of(log)

    def _run(self, name: str, options: Sequence[str], told: Callable[[str], None]) -> Ran:
        report = self.folder / name
        seen = PHASES[0]

        def tick() -> None:
            nonlocal seen
            phase = _phase(report)
            if phase != seen:
                seen = phase
                told(phase)
            self.watch.tick()

        ended = self._process(["run.py", "--report", str(report), *options], self.log(name), tick)
        found, flaw = self._read(report, ended)
        return Ran(ended, _end_of(self.log(name)), _phase(report), found, flaw)

    def _process(self, arguments: Sequence[str], log: Path, tick: Callable[[], None]) -> Ended:
        environment = {name: each for name, each in os.environ.items() if name not in ALTERING}
        # The model runs in a folder of its own, where a relative path would lead elsewhere.
        for name in FOLDERS & environment.keys():
            environment[name] = _absolute(environment[name])
        if "PYTHONPATH" in environment:
            folders = environment["PYTHONPATH"].split(os.pathsep)
            environment["PYTHONPATH"] = os.pathsep.join(map(_absolute, folders))
        environment["PYTHONUNBUFFERED"] = "1"
        if self.offline:
            environment["HF_HUB_OFFLINE"] = "1"
        return process.run(
            [self.python, *arguments],
            folder=self.folder,
            log=log,
            environment=environment,
            timeout_s=self.timeout_s,
            memory_bytes=self.memory_bytes,
            tick=tick,
        )

    def _read(self, report: Path, ended: Ended) -> tuple[Report | ArrayReport | None, str | None]:
        """A report counts only when the process that wrote it also ended well."""
        if not isinstance(ended.ending, Finished):
            return None, None
        try:
            return read_report(report, self.output), None
        except BadReport as error:
            return None, str(error)


def _absolute(path: str) -> str:
    """Give a path from the root; none, addresses such as `s3://bucket` and `~` stay as they are."""
    return path if not path or "://" in path or path.startswith("~") else str(Path(path).absolute())


def read_report(folder: Path, output: Output) -> Report | ArrayReport:
    """Read the report of a task with this output. Raises `BadReport`."""
    return read(folder) if output == "logits" else read_arrays(folder, output)


def _phase(report: Path) -> str:
    """Give how far `run.py` says it has got."""
    try:
        phase = (report / "phase").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return PHASES[0]
    return phase if phase in PHASES else PHASES[0]


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - LOG_BYTES, 0))
        return file.read().decode("utf-8", "replace")
