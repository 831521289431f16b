"""What the package adds to `import torch`: interpreters with and without it, in turn, medians of CPU time.

    python benchmarks/import_time.py

"Not installed" sees the same packages without this one: PyTorch looks for device modules and finds none of
ours. "Switched off" is `SOFTNEURON=0`, where the package looks at its environment and stands aside; "no
autoload" is PyTorch's own switch, `TORCH_DEVICE_BACKEND_AUTOLOAD=0`, which spares PyTorch the search too.

The last column is that search with all that it loads, by the clock of the same interpreter: the whole of
`import torch` varies by more than this package takes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import softneuron

# The search that `import torch` ends with, apart from the rest.
PROGRAM = """
import os, time
search = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0"
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
start = time.process_time()
import torch
torch_is_there = time.process_time()
if search:
    torch._import_device_backends()
end = time.process_time()
print(end - start, end - torch_is_there)
"""
OURS = ("softneuron", "trnready")
VARIANTS = {
    "not installed": {},
    "no autoload": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    "switched off": {"SOFTNEURON": "0"},
    "with the device": {"SOFTNEURON": "1"},
}


def packages(folder: Path, *, ours: bool) -> list[str]:
    """Search paths with every installed package, links in `folder`; with or without ours."""
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if ours or not package.name.startswith(OURS):
            (folder / package.name).symlink_to(package)
    return [str(folder), str(Path(softneuron.__file__).parents[1])] if ours else [str(folder)]


def seconds(paths: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds of CPU time of `import torch` in a fresh interpreter that finds packages in `paths`: the whole,
    and the search for device modules that it ends with."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path += {paths!r}\n{PROGRAM}"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    whole, search = map(float, done.stdout.split())
    return whole, search


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as without, tempfile.TemporaryDirectory() as installed:
        paths = dict.fromkeys(VARIANTS, packages(Path(installed), ours=True))
        paths["not installed"] = packages(Path(without), ours=False)
        for name, environment in VARIANTS.items():
            seconds(paths[name], environment)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in VARIANTS}
        for _ in range(rounds):
            for name, environment in VARIANTS.items():
                taken[name].append(seconds(paths[name], environment))
    print(f"import torch, medians of {rounds} fresh interpreters each, interleaved")
    base = statistics.median(whole for whole, _ in taken["not installed"])
    for name, values in taken.items():
        whole = statistics.median(whole for whole, _ in values)
        search = statistics.median(search for _, search in values)
        print(f"{name:16}{whole * 1e3:>9.0f} ms{whole / base:>8.3f}{search * 1e3:>9.1f} ms of device modules")


if __name__ == "__main__":
    main()
