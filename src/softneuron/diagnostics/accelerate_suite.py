"""Accelerate's own test suite on the CPU and on neuron, side by side: `make accelerate-suite`.

Its tests come from the source distribution of the version that is installed, its
helpers find the device by themselves. Each file runs in a process of its own; a run
that is started again goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

VERSION = version("accelerate")
HELPERS = ("parameterized", "pytest-subtests", "pytest-order", "pytest-timeout")
FILE_SECONDS = 1800
TEST_SECONDS = 300
# Two cores: some of the tests are written for two devices and wrong for more.
DEVICES: Mapping[str, Mapping[str, str]] = {
    "cpu": {"SOFTNEURON": "0"},
    "neuron": {"NEURON_RT_NUM_CORES": "2"},
}


def fetch(directory: Path) -> Path:
    """The unpacked source distribution, downloaded with pip once, and its helpers beside it."""
    source = directory / f"accelerate-{VERSION}"
    if not (source / "tests").is_dir():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        download = ["download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, *download, "--dest", str(directory), f"accelerate=={VERSION}"], check=True)
        target = ["install", "--no-deps", "--target", str(directory / "helpers")]
        subprocess.run([*pip, *target, *HELPERS], check=True)
        with tarfile.open(directory / f"accelerate-{VERSION}.tar.gz") as archive:
            archive.extractall(directory, filter="data")
    return source


def run_file(source: Path, file: str, device: str, report: Path) -> None:
    """Run one test file; `report` (JUnit's XML) appears when it has ended."""
    helpers = source.parent / "helpers"
    environment = (
        os.environ
        | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        | {
            "PYTHONPATH": f"{helpers}{os.pathsep}{source / 'src'}",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        | dict(DEVICES[device])
    )
    partial = report.with_suffix(".partial")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{file}"]
    command += [f"--junit-xml={partial}", f"--timeout={TEST_SECONDS}", "--timeout-method=signal"]
    with report.with_suffix(".log").open("w") as log:
        try:
            subprocess.run(
                command,
                cwd=source,
                env=environment,
                stdout=log,
                stderr=log,
                timeout=FILE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            log.write(f"\nno end after {FILE_SECONDS} s\n")
    if not partial.exists():
        partial.write_text(
            f'<testsuite><testcase name="{file}"><error message="the process died"/></testcase></testsuite>'
        )
    partial.replace(report)


def read_report(report: Path) -> dict[str, tuple[str, str]]:
    """Outcome (`passed`, `failed`, `skipped`) and message of each test in JUnit's XML."""
    found: dict[str, tuple[str, str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        outcome = ("passed", "")
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome = ("skipped" if child.tag == "skipped" else "failed", child.get("message", ""))
        if found.get(name, ("passed", ""))[0] != "failed":
            found[name] = outcome
    return found


Reports = Mapping[str, Mapping[str, Mapping[str, tuple[str, str]]]]
"""By device, by test file, by test: outcome and message."""


def table(reports: Reports) -> str:
    """Markdown: counts per file on both devices, then every test that does worse on neuron."""
    files = sorted(reports["cpu"].keys() & reports["neuron"].keys())
    lines = ["| file | CPU: passed, failed, skipped | neuron: passed, failed, skipped |", "|---|---|---|"]
    totals = {device: [0, 0, 0] for device in DEVICES}
    for file in files:
        cells = []
        for device in DEVICES:
            outcomes = [outcome for outcome, _ in reports[device][file].values()]
            counts = [outcomes.count(name) for name in ("passed", "failed", "skipped")]
            totals[device] = [a + b for a, b in zip(totals[device], counts, strict=True)]
            cells.append(", ".join(map(str, counts)))
        lines.append(f"| {file} | {' | '.join(cells)} |")
    lines.append(f"| all | {' | '.join(', '.join(map(str, totals[device])) for device in DEVICES)} |")
    lines += ["", "| test | CPU | neuron | what neuron says |", "|---|---|---|---|"]
    for file in files:
        cpu = reports["cpu"][file]
        for test, (outcome, message) in sorted(reports["neuron"][file].items()):
            on_cpu = cpu.get(test, ("absent", ""))[0]
            worse = outcome == "failed" and on_cpu != "failed"
            if worse or (outcome == "skipped" and on_cpu == "passed"):
                says = " ".join(message.split()).replace("|", "\\|")[:200]
                lines.append(f"| {file} {test.rpartition('.')[2]} | {on_cpu} | {outcome} | {says} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: `python -m softneuron.diagnostics.accelerate_suite [DIRECTORY] [--file NAME ...]`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=Path("accelerate-suite"))
    parser.add_argument("--file", action="append", default=[], help="only this test file; may be repeated")
    parser.add_argument("--again", action="store_true", help="run what has a result too")
    chosen = parser.parse_args(arguments)
    directory = chosen.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    source = fetch(directory)
    files = chosen.file or sorted(path.name for path in (source / "tests").glob("test_*.py"))
    reports: dict[str, dict[str, dict[str, tuple[str, str]]]] = {device: {} for device in DEVICES}
    for number, file in enumerate(files, start=1):
        for device in DEVICES:
            report = directory / VERSION / device / f"{file}.xml"
            report.parent.mkdir(parents=True, exist_ok=True)
            if chosen.again or not report.exists():
                print(
                    f"accelerate-suite: {number}/{len(files)} {file} on {device}", file=sys.stderr, flush=True
                )
                run_file(source, file, device, report)
            reports[device][file] = read_report(report)
    text = table(reports)
    (directory / VERSION / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
