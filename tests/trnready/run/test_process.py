"""Real processes: how they end, what their group leaves behind, where their output goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trnready.run import process
from trnready.run.failure import explain
from trnready.run.process import CannotStart, Exited, Finished, Killed, TimedOut, TooLarge


def _run(tmp_path: Path, code: str, timeout_s: float = 60, tick=lambda: None) -> process.Ended:
    return process.run(
        [sys.executable, "-c", code],
        folder=tmp_path,
        log=tmp_path / "log",
        environment=os.environ,
        timeout_s=timeout_s,
        tick=tick,
    )


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _wait_until_gone(pid: int) -> bool:
    for _ in range(200):
        if not _is_running(pid):
            return True
        time.sleep(0.05)
    return False


def test_a_good_end_with_both_outputs_in_the_log(tmp_path):
    ended = _run(tmp_path, "import sys; print('out', flush=True); print('err', file=sys.stderr)")
    assert ended.ending == Finished()
    assert (tmp_path / "log").read_text() == "out\nerr\n"


def test_an_exit_status_is_told(tmp_path):
    assert _run(tmp_path, "raise SystemExit(7)").ending == Exited(7)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_a_signal_is_told(tmp_path, number):
    ended = _run(tmp_path, f"import os; os.kill(os.getpid(), {int(number)})")
    assert ended.ending == Killed(number, by_kernel=False)
    assert ended.ending.name == number.name


def test_there_is_nothing_to_read_from_standard_input(tmp_path):
    assert _run(tmp_path, "import sys; assert sys.stdin.read() == ''").ending == Finished()


CHILD = """
import os, signal, subprocess, sys, time
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("child.tmp", "w").write(str(child.pid))
os.rename("child.tmp", "child")
time.sleep({rest})
"""


@pytest.mark.parametrize("deaf", [False, True])
def test_when_the_time_is_up_the_whole_group_ends(tmp_path, monkeypatch, deaf):
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    ended = _run(tmp_path, CHILD.format(deaf=deaf, rest=600), timeout_s=3)
    assert ended.ending == TimedOut(3)
    assert _wait_until_gone(int((tmp_path / "child").read_text()))


def test_a_child_left_behind_ends_with_the_script(tmp_path):
    assert _run(tmp_path, CHILD.format(deaf=False, rest=0)).ending == Finished()
    assert _wait_until_gone(int((tmp_path / "child").read_text()))


STRANGER = (
    "import pathlib, subprocess, sys, time\n"
    "code = 'import time; held = bytearray(HELD); time.sleep(600)'\n"
    "child = subprocess.Popen([sys.executable, '-c', code], start_new_session=True)\n"
    "pathlib.Path('child').write_text(str(child.pid))\n"
    "time.sleep(2)\n"
)
"""Starts a child in a session of its own, as torch.distributed.run does with its ranks."""


@pytest.mark.parametrize(
    "end", ["time.sleep(600)", "raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"]
)
def test_a_child_in_a_session_of_its_own_is_not_left_running(tmp_path, end):
    _run(tmp_path, STRANGER.replace("HELD", "0") + end, timeout_s=4)
    assert _wait_until_gone(int((tmp_path / "child").read_text()))


def test_an_interrupt_of_ours_ends_the_group(tmp_path):
    def interrupt() -> None:
        if (tmp_path / "child").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, CHILD.format(deaf=False, rest=600), tick=interrupt)
    assert _wait_until_gone(int((tmp_path / "child").read_text()))


def test_the_script_dies_with_us(tmp_path):
    """Even SIGKILL, which nobody can answer, leaves no model running."""
    parent = f"""
import os, sys
from pathlib import Path
from trnready.run import process
from trnready.run.failure import explain
code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
process.run([sys.executable, "-c", code], folder=Path({str(tmp_path)!r}), log=Path({str(tmp_path / "log")!r}),
            environment=os.environ, timeout_s=600, tick=lambda: None)
"""
    ours = subprocess.Popen([sys.executable, "-c", parent])
    log = tmp_path / "log"
    while not (log.exists() and log.read_text().endswith("\n")):
        time.sleep(0.05)
    ours.kill()
    ours.wait()
    assert _wait_until_gone(int(log.read_text()))


def test_an_interpreter_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(CannotStart, match="cannot run /nowhere/python: No such file or directory"):
        process.run(
            ["/nowhere/python"],
            folder=tmp_path,
            log=tmp_path / "log",
            environment={},
            timeout_s=1,
            tick=lambda: None,
        )


HOG = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
HOARD = "import time; held = bytearray(b'x') * 300_000_000; time.sleep(60)"


def _with_200_megabytes(folder: Path, program: str) -> process.Ended:
    return process.run(
        [sys.executable, "-c", program],
        folder=folder,
        log=folder / "log",
        environment=dict(os.environ),
        timeout_s=50,
        memory_bytes=200_000_000,
        tick=lambda: None,
    )


def test_the_whole_group_may_hold_so_much_memory_and_no_more(tmp_path):
    ended = _with_200_megabytes(tmp_path, HOG.format(child=HOARD))
    assert ended.ending == TooLarge(200_000_000)
    failure = explain(ended.ending, "")
    assert (failure.reason, failure.error) == (
        "host_out_of_memory",
        "Held more than 0.186 GiB of the host's memory.",
    )


def test_memory_counts_in_whatever_session_it_is_held(tmp_path):
    ended = _with_200_megabytes(tmp_path, STRANGER.replace("HELD", "400_000_000") + "time.sleep(600)")
    assert ended.ending == TooLarge(200_000_000)
    assert _wait_until_gone(int((tmp_path / "child").read_text()))
