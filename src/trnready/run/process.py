"""Runs a script in a process group of its own, under a time limit, its output streamed to a file. Whatever
happens to us, nothing of the group is left running."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trnready.errors import TrnreadyError

POLL_S = 0.1
GRACE_S = 3.0
"""How long a group may take to end by itself once it was asked to."""

_PR_SET_PDEATHSIG = 1
_OOM_KILLS = Path("/proc/vmstat")


class CannotStart(TrnreadyError):
    """The interpreter or the log file is not to be had."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The script ended by itself and well."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The script ended by itself with an exit status other than 0."""

    status: int


@dataclass(frozen=True, slots=True)
class Killed:
    """A signal ended the script; `by_kernel` when the kernel was short of memory and says that it did it."""

    signal: int
    by_kernel: bool

    @property
    def name(self) -> str:
        """The signal's name, such as SIGSEGV."""
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The script was still running when its time was up."""

    limit_s: float


Ending = Finished | Exited | Killed | TimedOut


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended and how long it took, in seconds."""

    ending: Ending
    wall_s: float


def run(
    command: Sequence[str],
    *,
    folder: Path,
    log: Path,
    environment: Mapping[str, str],
    timeout_s: float,
    tick: Callable[[], None],
) -> Ended:
    """Run a command in `folder` to its end, stdout and stderr into `log`; `tick` is called while waiting.

    Raises `CannotStart`. Any other exception, Ctrl-C among them, ends the whole group before it goes on.
    """
    kills_before = _oom_kills()
    start = time.monotonic()
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_DIE_WITH_PARENT,
            )
    except OSError as error:
        raise CannotStart(f"cannot run {command[0]}: {error.strerror or error}.") from error
    try:
        status = _wait(process, start + timeout_s, tick)
    finally:
        _end_group(process)
    wall_s = time.monotonic() - start
    if status is None:
        return Ended(TimedOut(timeout_s), wall_s)
    if status < 0:
        by_kernel = -status == signal.SIGKILL and _oom_kills() > kills_before
        return Ended(Killed(-status, by_kernel), wall_s)
    return Ended(Finished() if status == 0 else Exited(status), wall_s)


def _wait(process: subprocess.Popen[bytes], deadline: float, tick: Callable[[], None]) -> int | None:
    """Give the exit status, or None when the time is up."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return process.poll()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(POLL_S, left))
        tick()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the group: politely first, unless its leader is gone already."""
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _signal_group(group: int, number: int) -> None:
    # The group outlives its leader as long as a child of it runs; PermissionError is what macOS says of a
    # group whose processes have all ended.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _oom_kills() -> int:
    """Give how many processes the kernel has killed for want of memory; 0 where it does not say."""
    with suppress(OSError, ValueError):
        for line in _OOM_KILLS.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _parent_death_signal() -> Callable[[], None] | None:
    """Give what a child calls so that the kernel kills it when we are killed; Linux alone offers that."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return die_with_parent


_DIE_WITH_PARENT = _parent_death_signal()
