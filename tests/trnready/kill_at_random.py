"""Kills `trnready check` at random moments, and says whether the dataset can be read each time and nothing
is left running: `python tests/trnready/kill_at_random.py CHECKPOINT [--times 20] [--seed 0]`. The suite runs
a sample."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from trnready.results import dataset, journal

GONE_S = 20.0
"""How long the kernel may take to end what a killed command had started."""


@dataclass(frozen=True)
class Kill:
    """One kill: after how many seconds, what the dataset held after it, and what was wrong, if anything."""

    after_s: float
    rows: int
    wrong: str | None


def kills(checkpoint: Path, results: Path, times: int, seed: int, longest_s: float) -> Iterator[Kill]:
    """Start the command and kill it, so many times, on one results folder."""
    chance = random.Random(seed)
    environment = os.environ | {
        "NEURON_COMPILER_OPT_LEVEL": "-O0",
        "TRNREADY_REFERENCES": str(results.with_name("references")),
    }
    command = [sys.executable, "-m", "trnready", "check", str(checkpoint), "--results", str(results)]
    for _ in range(times):
        after_s = chance.uniform(0, longest_s)
        # A command that ends before its time begins anew, so that every kill meets one at work.
        deadline = time.monotonic() + after_s
        while True:
            started = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                started.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                break
        started.send_signal(signal.SIGKILL)
        started.wait()
        yield Kill(after_s, *_state(results))


def _state(results: Path) -> tuple[int, str | None]:
    """Give how many rows there are, and what is wrong with the folder."""
    left = _left_running(results)
    if left:
        return 0, f"processes {left} are still running"
    if not results.is_dir():
        return 0, None
    try:
        rows = dataset.read(results)
        for path in journal.entries(results):
            journal.load(path)
        if dataset.data_files(results):
            pd.read_parquet(results / "data")
    except Exception as error:
        return 0, f"{type(error).__name__}: {error}"
    return len(rows), None


def _left_running(results: Path) -> list[int]:
    """Give the processes whose working folder is below the results, once they have had time to end."""
    deadline = time.monotonic() + GONE_S
    while True:
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    if os.readlink(process / "cwd").startswith(str(results.absolute())):
                        found.append(int(process.name))
                except OSError:
                    continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=30.0, metavar="SECONDS")
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        results = Path(name) / "results"
        for kill in kills(args.checkpoint.absolute(), results, args.times, args.seed, args.longest):
            wrong += kill.wrong is not None
            print(
                f"killed after {kill.after_s:5.1f} s: {kill.wrong or f'readable, {kill.rows} rows'}",
                flush=True,
            )
    print(f"{args.times} kills, {wrong} left something wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
