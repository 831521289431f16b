"""Every task's script on the device and on the CPU, with its verdict: right devices pass, wrong ones fail."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from trnready.check import Request, check
from trnready.hub.packaged import minilm
from trnready.run.report import ArrayReport, Report
from trnready.run.runner import read_report
from trnready.script.task import Prompt, Script, Task, find, names
from trnready.verdict import arrays, rule
from trnready.verdict.arrays import ArrayReference
from trnready.verdict.rule import Reference, Verdict

pytestmark = pytest.mark.usefixtures("neuron")

HERE = Path(__file__).parent
MODELS = {
    "automatic-speech-recognition": "whisper",
    "image-text-to-text": "llava",
    "sentence-similarity": "minilm",
    "text-to-image": "diffusion",
    "text2text-generation": "t5",
}
MOE = "moe"
CASES = (*MODELS, MOE)
UNUSUAL = ("sliding", "shared", "linear")
"""Kinds of attention that a static cache treats in ways of their own."""


def _task(case: str) -> Task:
    return find(case if case in MODELS else "text-generation")


@dataclass(frozen=True)
class Runs:
    """A folder with every case's script, and its reports under a name for each device."""

    folder: Path

    def report(self, case: str, name: str) -> Report | ArrayReport:
        return read_report(self.folder / case / name, _task(case).output)

    def verdict(self, case: str, device: str, same: str, other: str) -> Verdict:
        task = _task(case)
        ours, cpu, wide = (self.report(case, each) for each in (device, same, other))
        if isinstance(ours, Report) and isinstance(cpu, Report) and isinstance(wide, Report):
            return rule.decide(ours, Reference(cpu, wide), "software")
        assert isinstance(ours, ArrayReport)
        assert isinstance(cpu, ArrayReport)
        assert isinstance(wide, ArrayReport)
        return arrays.decide(ours, ArrayReference(cpu, wide), task.output, "software", task.graphs)


def _run(folder: Path, name: str, jobs: list[list[str]], **settings: str) -> None:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(jobs))
    fast = {
        "NEURON_COMPILER_OPT_LEVEL": "-O0",
        "TORCH_NEURONX_NEFF_CACHE_DIR": str(folder / "neff"),
        "HF_HUB_OFFLINE": "1",
    }
    ran = subprocess.run(
        [sys.executable, HERE / "batch.py", path],
        env=os.environ | fast | settings,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    failed = {each: each.read_text() for each in folder.glob("*/error")}
    assert not failed


def _jobs(folder: Path, case: str, device: str, same: str, other: str) -> list[list[str]]:
    """The run on the device and its references; embeddings and latents need no tokens to be fed."""
    script, reports = str(folder / case / "run.py"), folder / case
    fed = ["--replay", str(reports / device / "report.json")] if _task(case).output == "logits" else []
    cpu = [script, "--device", "cpu", *fed]
    return [
        [script, "--report", str(reports / device)],
        [*cpu, "--report", str(reports / same)],
        [*cpu, "--report", str(reports / other), "--dtype", "float32"],
    ]


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Every case on the unbroken device, compiled, and on the CPU."""
    folder = tmp_path_factory.mktemp("tasks")
    made = [each for each in (*MODELS.values(), MOE, *UNUSUAL) if each != "minilm"]
    subprocess.run(
        [sys.executable, HERE / "tiny.py", folder / "models", *made], check=True, capture_output=True
    )
    jobs = []
    for case in (*CASES, *UNUSUAL):
        name = MODELS.get(case, case)
        model = minilm(lambda _: None) if name == "minilm" else folder / "models" / name
        task = _task(case)
        (folder / case).mkdir()
        source = task.render(Script(str(model), None, task.prompts[0], "bfloat16"))
        (folder / case / "run.py").write_text(source)
        if case in CASES:
            jobs += _jobs(folder, case, "device", "same", "other")
    _run(folder, "right", jobs)
    return Runs(folder)


@pytest.fixture(scope="module")
def uncompiled(right: Runs) -> Runs:
    """The device without the compiler."""
    jobs = []
    for case in (*CASES, *UNUSUAL):
        jobs += _jobs(right.folder, case, "eager", "eager-same", "eager-other")[: 3 if case == MOE else 2]
    for name, kind in TWICE.items():
        model, out = right.folder / "models" / name, right.folder / f"twice-{name}.json"
        jobs.append([str(HERE / "twice.py"), str(model), kind, str(out)])
    _run(right.folder, "uncompiled", jobs, TORCHDYNAMO_DISABLE="1")
    return right


@pytest.fixture(scope="module")
def wrong(right: Runs) -> Runs:
    """A device that loses the first layer's attention."""
    jobs = [job for case in CASES for job in _jobs(right.folder, case, "wrong", "wrong-same", "wrong-other")]
    _run(right.folder, "wrong", jobs, TORCHDYNAMO_DISABLE="1", SOFTNEURON_FAULTS="skip_layer:0")
    return right


def test_every_task_has_its_case():
    assert set(names()) == {*MODELS, "text-generation"}


@pytest.mark.parametrize("case", CASES)
def test_a_right_device_passes_with_its_evidence(right, case):
    verdict = right.verdict(case, "device", "same", "other")
    # -O0 interprets the graphs, which the row must say.
    assert (verdict.result, verdict.error, verdict.warnings) == ("PASS", None, ("not_compiled",))
    assert verdict.comparison is not None
    assert verdict.comparison.noise > 0
    report = right.report(case, "device")
    assert report.parameter_devices == ("neuron:0",)
    assert report.parameters is not None
    assert report.parameter_bytes >= 2 * report.parameters > 0
    assert report.graphs
    assert len(report.graphs) <= _task(case).graphs
    assert all(each.interpreted for each in report.graphs)
    assert report.compiled_graphs == ()
    assert report.fallback_ops == ()


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_device_fails(wrong, case):
    verdict = wrong.verdict(case, "wrong", "wrong-same", "wrong-other")
    assert (verdict.result, verdict.reason) == ("FAIL", "mismatch")
    assert verdict.comparison is not None
    assert verdict.comparison.score > 2 * rule.LIMIT


@pytest.mark.parametrize("case", [*CASES, *UNUSUAL])
def test_uncompiled_the_device_gives_the_cpus_bits(uncompiled, case):
    """Of a mixture of experts as well, though Transformers decodes it by other kernels off the CPU."""
    ours, cpu = uncompiled.report(case, "eager"), uncompiled.report(case, "eager-same")
    assert ours.graphs == ()
    if isinstance(ours, Report) and isinstance(cpu, Report):
        assert ours.logits.tobytes() == cpu.logits.tobytes()
    elif isinstance(ours, ArrayReport) and isinstance(cpu, ArrayReport):
        for name, rows in ours.arrays.items():
            assert rows.tobytes() == cpu.arrays[name].tobytes()


TWICE = {"t5": "encoder", "linear": "padded", "sliding": "padded"}


@pytest.mark.parametrize("name", TWICE)
def test_nothing_of_a_first_question_is_left_in_the_cache_for_a_second(uncompiled, name):
    """An encoder's states for another text, and a prompt padded on the left."""
    told = json.loads((uncompiled.folder / f"twice-{name}.json").read_text())
    assert told == {"equal": True, "differs from the first": True}


def test_an_uncompiled_mixture_of_experts_passes_with_a_warning(uncompiled):
    verdict = uncompiled.verdict(MOE, "eager", "eager-same", "eager-other")
    assert (verdict.result, verdict.reason, verdict.warnings) == ("PASS", "match", ("not_compiled",))


def test_the_sentences_come_in_the_order_of_their_meaning(right):
    report = right.report("sentence-similarity", "device")
    assert report.text.splitlines()[0].endswith("Paris is the capital city of France.")
    assert "government is in Paris" in report.text.splitlines()[1]


def test_the_image_and_every_step_of_it_are_kept(right):
    report = right.report("text-to-image", "device")
    assert isinstance(report, ArrayReport)
    assert report.arrays["latents"].shape == (8, 4 * 8 * 8)
    assert report.arrays["image"].shape == (1, 3 * 8 * 8)
    assert 0 <= report.arrays["image"].min() < report.arrays["image"].max() <= 1
    steps = np.abs(np.diff(report.arrays["latents"], axis=0)).max(axis=-1)
    assert (steps > 0).all()


def test_the_image_reaches_the_answer(right):
    """The tokens of the image stand in the prompt, and its pixels went in."""
    report = right.report("image-text-to-text", "device")
    assert isinstance(report, Report)
    assert report.input_tokens.count(257) == 16


def test_inputs_that_are_not_cast_are_not_held_against_the_device(right, tmp_path, monkeypatch):
    """The processor gives float32, the model is in bfloat16 and does not cast: the CPU refuses as well."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    case = "automatic-speech-recognition"
    source = (right.folder / case / "run.py").read_text()
    cast = "each.to(model.dtype) if each.is_floating_point() else each"
    assert source.count(cast) == 1
    request = Request(
        name=str(right.folder / "models" / MODELS[case]),
        task=case,
        results=tmp_path / "results",
        timeout_s=900,
        source=source.replace(cast, "each"),
    )
    row = check(request, Silent()).row
    assert (row.result, row.reason, row.stage) == ("SKIPPED", "reference_failed", "compile")
    assert row.error is not None
    assert row.error.startswith("The CPU cannot run it either: RuntimeError: ")


def test_a_processor_that_needs_a_package_which_is_not_here_is_named(right, tmp_path):
    """An image processor that is written for torchvision alone."""
    folder = shutil.copytree(right.folder / "models" / "llava", tmp_path / "acme--sees")
    settings = json.loads((folder / "processor_config.json").read_text())
    settings["image_processor"]["image_processor_type"] = "Sam2ImageProcessor"
    (folder / "processor_config.json").write_text(json.dumps(settings))
    row = check(Request(str(folder), "image-text-to-text", tmp_path / "results", 900), Silent()).row
    assert (row.result, row.reason, row.stage) == ("SKIPPED", "processor_unavailable", "load")
    assert row.error is not None
    assert "torchvision" in row.error
    assert row.hint is not None


class Silent:
    """Looks on and says nothing."""

    def stage(self, name: str) -> None:
        """A stage begins."""

    def tick(self) -> None:
        """A stage goes on."""


def test_what_a_run_imported_besides_is_told(right):
    report = right.report("text2text-generation", "device")
    assert report.imported_later is not None
    assert all(version for version in report.imported_later.values())


ALLOWED = {
    "automatic-speech-recognition": {"torch", "transformers"},
    "image-text-to-text": {"torch", "transformers", "PIL"},
    "sentence-similarity": {"torch", "sentence_transformers"},
    "text-generation": {"torch", "transformers"},
    "text-to-image": {"torch", "diffusers"},
    "text2text-generation": {"torch", "transformers"},
}


@pytest.mark.parametrize("name", names())
def test_a_script_imports_nothing_of_ours(name, tmp_path):
    task = find(name)
    source = task.render(Script("acme/tiny", None, Prompt("a 'quoted' prompt"), "bfloat16"))
    found = {
        each.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for each in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert found - sys.stdlib_module_names == ALLOWED[name]
    path = tmp_path / "run.py"
    path.write_text(source)
    config = str(Path(__file__).parents[3] / "pyproject.toml")
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "--quiet", "--config", config, path], check=True)
    subprocess.run([*ruff, "format", "--quiet", "--check", "--config", config, path], check=True)
