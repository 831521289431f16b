"""What `trnready check` adds to `python3 run.py` by hand, reference and judge apart: the wall time of the
command minus that of its own runs of the model, against the wall time of the same script by hand.

    python benchmarks/check_overhead.py CHECKPOINT [--rounds 3]

Both sides are run in turn with a filled NEFF cache; the CPU's references are kept, so that they are not part
of it."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trnready.results import dataset

ALLOWED_SHARE = 0.05
ALLOWED_S = 3.0


@dataclass(frozen=True)
class Took:
    """Seconds of a command: by the clock, and of processor time with all that it started."""

    wall: float
    processor: float


def timed(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Took:
    """Time a command. Raises `CalledProcessError`."""
    start, before = time.monotonic(), os.times()
    subprocess.run(command, cwd=folder, env=dict(environment), check=True, capture_output=True)
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return Took(time.monotonic() - start, used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = os.environ | {
            "TORCH_NEURONX_NEFF_CACHE_DIR": str(folder / "neff"),
            "TRNREADY_REFERENCES": str(folder / "references"),
        }
        results = folder / "results"
        check = [sys.executable, "-m", "trnready", "check", str(args.checkpoint.absolute())]
        check += ["--results", str(results)]
        timed(check, folder, environment)  # fills the NEFF cache and the references
        (row,) = dataset.read(results)
        (folder / "run.py").write_text(row.run_py or "", encoding="utf-8")
        by_hand, by_check = [], []
        for _ in range(args.rounds):
            by_hand.append(timed([sys.executable, "run.py"], folder, environment))
            by_check.append(timed(check, folder, environment))
    hand, checked = (statistics.median(each.wall for each in took) for took in (by_hand, by_check))
    used = [statistics.median(each.processor for each in took) for took in (by_hand, by_check)]
    added, allowed = checked - hand, max(ALLOWED_SHARE * hand, ALLOWED_S)
    print(f"python3 run.py {hand:.1f} s, trnready check {checked:.1f} s, medians of {args.rounds}")
    print(f"of processor time {used[0]:.1f} s and {used[1]:.1f} s, so {used[1] - used[0]:.1f} s more")
    print(f"added {added:.1f} s ({added / hand:.0%}); at most {allowed:.1f} s (5 % or 3 s)")
    sys.exit(0 if added <= allowed else 1)


if __name__ == "__main__":
    main()
