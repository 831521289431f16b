"""A test of one model in one process: the `run.py` that `trnready check` would run, on the device and on the
CPU, and the rule over the three reports. For the fault table, where a process for each would cost a
minute."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from trnready.run.report import Report, read
from trnready.script.task import Prompt, Script, find
from trnready.verdict import rule
from trnready.verdict.rule import Reference, Verdict

_numbers = itertools.count()


@dataclass(frozen=True)
class Checked:
    """What a test came to: the verdict, and the reports behind it."""

    verdict: Verdict
    device: Report
    reference: Reference | None

    @property
    def score(self) -> float | None:
        """The score; in float32, where the rule looks at the worst step, that step's."""
        numbers = self.verdict.comparison
        if numbers is None:
            return None
        return numbers.worst if self.device.dtypes == ("float32",) else numbers.score


def check(model: Path, dtype: str = "bfloat16", prompt: str | None = None) -> Checked:
    """Test a model on the device; what the run raises is raised."""
    task = find("text-generation")
    script = Script(
        model=str(model),
        revision=None,
        prompt=task.prompts[0] if prompt is None else Prompt(prompt),
        dtype=dtype,
    )
    _forget_earlier_runs()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        (folder / "run.py").write_text(task.render(script), encoding="utf-8")
        program = _load(folder / "run.py")
        device = _run(program, folder / "device", "--device", "neuron")
        verdict = rule.without_reference(device, "software")
        if verdict is not None:
            return Checked(verdict, device, None)
        reference = None
        if np.isfinite(device.logits).all():
            replay = ("--device", "cpu", "--replay", str(folder / "device" / "report.json"))
            same = _run(program, folder / "same", *replay, "--dtype", dtype)
            noise = rule.noise_dtype(dtype, "software")
            other = None if noise is None else _run(program, folder / "other", *replay, "--dtype", noise)
            reference = Reference(same, other)
        return Checked(rule.decide(device, reference, "software"), device, reference)


def by_the_hardware_rule(model: Path, checked: Checked, dtype: str, other_dtype: str) -> Verdict:
    """Judge the same run as if it came from Trainium: its noise is measured against `other_dtype`."""
    task = find("text-generation")
    script = Script(model=str(model), revision=None, prompt=task.prompts[0], dtype=dtype)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        (folder / "run.py").write_text(task.render(script), encoding="utf-8")
        (folder / "tokens.json").write_text(f'{{"tokens": {list(checked.device.tokens)}}}', encoding="utf-8")
        replay = ("--device", "cpu", "--replay", str(folder / "tokens.json"))
        other = _run(_load(folder / "run.py"), folder / "other", *replay, "--dtype", other_dtype)
    assert checked.reference is not None
    return rule.decide(checked.device, Reference(checked.reference.same, other), "hardware")


def _forget_earlier_runs() -> None:
    """Set the device's counters back to what a fresh process has."""
    import torch
    import torch_neuronx

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch_neuronx.reset_dynamo_metrics()
    torch_neuronx.clear_op_tracking()
    for core in range(torch.neuron.device_count()):
        torch.neuron.reset_peak_memory_stats(core)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"run_py_{next(_numbers)}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(program: ModuleType, report: Path, *options: str) -> Report:
    with _arguments("--report", str(report), *options):
        program.main()
    return read(report)


@contextlib.contextmanager
def _arguments(*arguments: str) -> Iterator[None]:
    before = sys.argv
    sys.argv = ["run.py", *arguments]
    try:
        yield
    finally:
        sys.argv = before
