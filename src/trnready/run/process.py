"""Runs a script in a process group of its own, under limits of time and memory, its output streamed to a
file. Whatever becomes of the script, nothing that it started is left running."""

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
FAMILY_POLL_S = 0.5
"""How often the script's processes and their memory are looked at, in seconds."""

GRACE_S = 3.0
"""How long a group may take to end by itself once it was asked to."""

_PR_SET_PDEATHSIG = 1
_PARENT, _SESSION, _START, _RESIDENT_PAGES = 1, 3, 19, 21
"""Places in /proc/PID/stat behind the process's name (man proc_pid_stat)."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
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


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The group held more of the host's memory than it may."""

    limit_bytes: int


Ending = Finished | Exited | Killed | TimedOut | TooLarge


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
    memory_bytes: int | None = None,
    tick: Callable[[], None],
) -> Ended:
    """Run a command in `folder` to its end, stdout and stderr into `log`; `tick` is called while waiting. All
    its processes may hold so many `memory_bytes` of the host's memory together, where Linux tells.

    Raises `CannotStart`. Any other exception, Ctrl-C among them, ends them all before it goes on.
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
    family = _Family(process.pid)
    try:
        status = _wait(process, family, start + timeout_s, memory_bytes, tick)
    finally:
        _end(process, family)
    wall_s = time.monotonic() - start
    if isinstance(status, TooLarge):
        return Ended(status, wall_s)
    if status is None:
        return Ended(TimedOut(timeout_s), wall_s)
    if status < 0:
        by_kernel = -status == signal.SIGKILL and _oom_kills() > kills_before
        return Ended(Killed(-status, by_kernel), wall_s)
    return Ended(Finished() if status == 0 else Exited(status), wall_s)


def _wait(
    process: subprocess.Popen[bytes],
    family: _Family,
    deadline: float,
    memory_bytes: int | None,
    tick: Callable[[], None],
) -> int | TooLarge | None:
    """Give the exit status, or None when the time is up."""
    look_again = time.monotonic()
    while True:
        now = time.monotonic()
        left = deadline - now
        if left <= 0:
            return process.poll()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(POLL_S, left))
        if now >= look_again:
            look_again = now + FAMILY_POLL_S
            held = family.look()
            if memory_bytes is not None and held > memory_bytes:
                return TooLarge(memory_bytes)
        tick()


@dataclass(frozen=True, slots=True)
class _Process:
    """What the kernel says of a process: `start` tells it from a later one of the same number."""

    parent: int
    session: int
    start: int
    resident_bytes: int


class _Family:
    """A script's process and all that it or its children started, as far as Linux tells. A session is not
    enough: `torch.distributed.run` gives each rank one of its own."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._start_of: dict[int, int] = {}

    def look(self) -> int:
        """See who has come; give the bytes of memory that all hold. What they share counts for each."""
        running = _running()
        members = {
            pid
            for pid, each in running.items()
            if self._leader in (pid, each.session) or self._start_of.get(pid) == each.start
        }
        while True:
            children = {pid for pid, each in running.items() if each.parent in members} - members
            if not children:
                break
            members |= children
        self._start_of |= {pid: running[pid].start for pid in members}
        return sum(running[pid].resident_bytes for pid in members)

    def kill(self) -> None:
        """End whoever is left of those that were seen."""
        for pid, each in _running().items():
            if self._start_of.get(pid) == each.start:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def _running() -> dict[int, _Process]:
    found = {}
    # Read often while a model runs, so without pathlib, which takes three times as long.
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            # The name in the second field may hold anything; what follows its last bracket is regular.
            fields = file.read().rpartition(b")")[2].split()
            found[int(name)] = _Process(
                int(fields[_PARENT]),
                int(fields[_SESSION]),
                int(fields[_START]),
                int(fields[_RESIDENT_PAGES]) * _PAGE,
            )
    return found


def _end(process: subprocess.Popen[bytes], family: _Family) -> None:
    """End what is left: politely first, unless the leader is gone already."""
    family.look()
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    _signal_group(process.pid, signal.SIGKILL)
    family.kill()
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
