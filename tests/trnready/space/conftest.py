"""What the tests of the Space share: a results folder with a row of every sort."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest
import uvicorn
from fastapi import FastAPI

from trnready.hub import catalog
from trnready.hub.catalog import About, Listed
from trnready.plan import known_plans
from trnready.results import dataset, journal
from trnready.results.row import Judge, Row
from trnready.run.failure import fingerprint
from trnready.space.app import create_app
from trnready.space.commands import address, listen
from trnready.space.howto import Bucket
from trnready.space.index import Index

HOSTILE = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"

TEXT_COLUMNS = (
    "revision",
    "task",
    "library",
    "library_version",
    "neuronx_cc",
    "error",
    "fingerprint",
    "hint",
    "model_type",
    "dtype",
    "parallelism",
    "plan",
    "instance",
    "host_cpu",
    "run_py",
    "prompt",
    "text",
    "log_tail",
)

RUN_PY = '''"""Generates 32 tokens with acme/tiny-1b on one NeuronCore."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "acme/tiny-1b"
PROMPT = "The capital of France is"

tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16, device_map="neuron")
inputs = tokenizer(PROMPT, return_tensors="pt")
output = model.generate(**inputs, max_new_tokens=32, do_sample=False, cache_implementation="static")
print(tokenizer.decode(output[0], skip_special_tokens=True))  # wider than a phone
'''


@pytest.fixture(scope="session")
def example_rows(make_row) -> list[Row]:
    """Rows of every sort: within noise with warnings, equal, wrong, not finite, skipped, hostile, local."""
    start = make_row().tested_at
    steps = [0.4 + 0.35 * abs(math.sin(i)) + (4.2 if i == 17 else 0) for i in range(32)]
    text = " Paris. The city is known for its museums, its food and the river that runs through it."
    stack = {
        "torch": "2.13.0",
        "transformers": "5.24.0",
        "accelerate": "1.15.0",
        "numpy": "2.4.1",
        "python": "3.11.2",
    }
    measured = {
        "load_s": 1.93,
        "compile_s": 24.8,
        "compile_warm_s": 0.61,
        "first_token_s": 0.31,
        "tokens_per_s": 14.27,
        "graphs": 2,
        "recompiles": 0,
        "graph_breaks": 0,
        "fallback_ops": [],
        "neff_hits": 0,
        "bytes_per_core": [314572800],
        "versions": stack,
        "packages": ["transformers==5.24.0", "accelerate>=1.15"],
        "run_py": RUN_PY,
        "prompt": "The capital of France is",
        "host_cpu": "Example CPU @ 2.50GHz",
        "model_type": "llama",
    }
    evidence = {
        "score": 0.62,
        "noise": 0.0213,
        "score_steps": steps,
        "text": text,
        "text_reference": text,
        "tokens_device": list(range(32)),
        "tokens_reference": list(range(32)),
    }
    tiny = make_row(**measured, **evidence)
    within = make_row(
        model_id="acme/odd-words-3b",
        reason="match_within_noise",
        run_id="run-within",
        warnings=["graph_breaks", "fallback_ops"],
        **measured | {"graphs": 3, "graph_breaks": 1, "fallback_ops": ["aten::nonzero", "aten::unique2"]},
        **evidence
        | {
            "text_reference": text.replace("museums, its food", "galleries, its cafés"),
            "tokens_reference": [*range(9), *range(40, 63)],
            "first_divergence": 9,
            "margin_at_divergence": 0.0125,
        },
    )
    wrong = make_row(
        model_id="acme/broken-7b",
        result="FAIL",
        reason="mismatch",
        neuron_cores=4,
        parallelism="tp=4",
        run_id="run-wrong",
        fingerprint="5f0c2a9e",
        hint="Compare with --dtype float32: if that passes, the model is at the edge of bfloat16.",
        error="score 41.8 is above 3",
        log_tail="loading 4 shards\n\x1b[31mERROR\x1b[0m step 3: logits differ\n" + "x" * 200,
        flaky=True,
        peak_memory_bytes=5 * 2**30,
        **measured | {"bytes_per_core": [5 * 2**30, 5 * 2**30 - 9**8, 4 * 2**30, 4 * 2**30], "graphs": None},
        **evidence
        | {
            "score": 41.8,
            "score_steps": [0.9, 2.1, 55.0, *[41.8] * 26, math.nan, math.inf, 310.0],
            "text": " the the the the the the",
            "tokens_device": [7] * 32,
            "first_divergence": 0,
            "margin_at_divergence": 2.5,
        },
    )
    hardware = make_row(
        model_id="acme/broken-7b",
        neuronx_cc="2.27.1",
        device_kind="hardware",
        neuron_cores=16,
        instance="trn2.48xlarge",
        parallelism="tp=16",
        reason="judged",
        run_id="run-hardware",
        wall_time_s=7843.0,
        peak_memory_bytes=21 * 2**30,
        tested_at=start + timedelta(days=3),
        text=text,
        judge=Judge(model="SmolLM2-135M-Instruct", perplexity=48.2, repetition=0.02, language="en"),
        versions=stack,
        run_py=RUN_PY,
    )
    skipped = make_row(
        model_id="acme/secret-70b",
        result="SKIPPED",
        reason="gated",
        stage="resolve",
        neuron_cores=None,
        wall_time_s=None,
        peak_memory_bytes=None,
        dtype=None,
        run_id="run-skipped",
        hint="Accept the terms on the model's page, then log in with `hf auth login`.",
    )
    local = make_row(
        model_id="/srv/models/my model #1?/../50%/café",
        checkpoint_kind="twin",
        result="FAIL",
        reason="out_of_memory",
        stage="load",
        run_id="run-local",
        error="neuron:0 asked for 2.0 GiB with 23.1 GiB in use of 24.0 GiB",
    )
    hostile = make_row(
        model_id=f"evil/{HOSTILE}",
        run_id="run-hostile",
        **dict.fromkeys(TEXT_COLUMNS, HOSTILE),
        result="FAIL",
        reason="crash",
        stage="run",
        text_reference="fine",
        versions={HOSTILE: HOSTILE},
        packages=[HOSTILE],
        fallback_ops=[HOSTILE],
        judge=Judge(model=HOSTILE, language=HOSTILE),
    )
    return [tiny, within, wrong, hardware, skipped, local, hostile]


@pytest.fixture(scope="session")
def study_rows(make_row, example_rows) -> list[Row]:
    """The example rows, and rows of more versions: what is compared, grouped and drawn over versions."""
    start = make_row().tested_at
    run = {"run_py": RUN_PY, "packages": ["transformers==5.24.0"]}

    def tested(model_id: str, compiler: str, day: int, **changes: object) -> Row:
        word = f"{model_id.partition('/')[2]}-{compiler}-{changes.get('library_version', '')}"
        when = start + timedelta(days=day)
        return make_row(
            model_id=model_id, neuronx_cc=compiler, tested_at=when, run_id=f"run-{word}", **run | changes
        )

    def failed(model_id: str, compiler: str, day: int, reason: str, error: str, **changes: object) -> Row:
        mark = fingerprint(reason, error)
        outcome = {
            "result": "FAIL",
            "reason": reason,
            "stage": "compile",
            "error": error,
            "fingerprint": mark,
        }
        return tested(model_id, compiler, day, **outcome | changes)

    hardware = {"device_kind": "hardware", "instance": "trn2.3xlarge"}
    plan = json.dumps(known_plans.find("Qwen/Qwen3-30B-A3B"))
    split = {
        "neuron_cores": 4,
        "parallelism": "tp=4",
        "model_type": "qwen3_moe",
        "plan": plan,
        "bytes_per_core": [int(14.9 * 2**30)] * 3 + [15 * 2**30],
        "peak_memory_bytes": 15 * 2**30,
        "compile_s": 412.0,
        "compile_warm_s": 3.4,
        "neff_modules": ["MODULE_1", "MODULE_2"],
    }
    operator = "aten::_grouped_mm is not implemented on neuron"
    return [
        *example_rows[:-1],
        failed("acme/tiny-1b", "soft-0.0.9", -40, "compile_error", "internal error in pass 3"),
        failed("acme/small-2b", "soft-0.0.9", -40, "compile_error", "internal error in pass 3"),
        tested("acme/small-2b", "soft-0.1.0", 1, wall_time_s=61.0),
        tested("acme/late-3b", "soft-0.0.9", -40),
        failed("acme/late-3b", "soft-0.1.0", 1, "unsupported_operator", operator, hint="Try -O0."),
        tested("acme/gone-3b", "soft-0.0.9", -40),
        failed("acme/moe-16b", "soft-0.0.9", -40, "unsupported_operator", operator),
        failed("acme/moe-16b", "soft-0.1.0", 1, "unsupported_operator", operator),
        tested("acme/tiny-1b", "2.26.0", 2, wall_time_s=290.0, **hardware),
        failed(
            "acme/tiny-1b", "2.26.0", 2, "timeout", "no answer in 600 s", library_version="5.23.0", **hardware
        ),
        tested(
            "acme/tiny-1b", "2.27.1", 3, wall_time_s=118.0, compile_s=80.2, compile_warm_s=1.1, **hardware
        ),
        tested("Qwen/Qwen3-30B-A3B", "2.27.1", 3, wall_time_s=611.0, **hardware | split),
        tested("Qwen/Qwen3-0.6B", "2.27.1", 3, wall_time_s=88.0, model_type="qwen3", **hardware),
        example_rows[-1],
    ]


@pytest.fixture
def results_dir(tmp_path: Path, example_rows: list[Row]) -> Path:
    """A results folder that holds the example rows, all but the last of them folded into Parquet."""
    return fill(tmp_path / "results", example_rows)


@pytest.fixture(scope="session")
def shared_results_dir(tmp_path_factory: pytest.TempPathFactory, example_rows: list[Row]) -> Path:
    """The same folder for tests that only look at it."""
    return fill(tmp_path_factory.mktemp("space") / "results", example_rows)


@pytest.fixture(scope="session")
def study_dir(tmp_path_factory: pytest.TempPathFactory, study_rows: list[Row]) -> Path:
    """A results folder with the rows of more versions, for tests that only look at it."""
    return fill(tmp_path_factory.mktemp("study") / "results", study_rows)


SELECTED = """
models:
  - {id: Qwen/Qwen3-0.6B, task: text-generation, model_type: qwen3, parameters: 751632384, why: downloads}
  - {id: acme/tiny-1b, task: text-generation, why: downloads}
  - {id: acme/broken-7b, task: text-generation, why: downloads}
  - {id: acme/look-3b, task: image-text-to-text, model_type: qwen2_vl, why: trending}
  - {id: zai/huge-700b, task: text-generation, parameters: 700000000000, why: trending, left_out: too_large,
     because: Its weights take 1.4 TB.}
"""
PLACES = 120


@pytest.fixture(scope="session")
def catalogs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small catalog of two tasks, one of them without a trend order, and a Selected list."""
    folder = tmp_path_factory.mktemp("catalogs")
    known = [
        ("Qwen/Qwen3-0.6B", "qwen3", 751632384),
        ("openai/gpt-oss-120b", "gpt_oss", 116829156672),
        ("acme/tiny-1b", "llama", 1000000000),
        ("acme/afm-4b", "afmoe", 4000000000),
        ("zai/huge-700b", "deepseek_v3", 700000000000),
        ("acme/strange-2b", "no_such_type", 2000000000),
        ("acme/nameless", None, None),
        ("acme/twin-says-nothing", "llama", 8000000000),
        ("acme/Small-8B-AWQ", "llama", 8000000000),
    ]
    known += [(f"acme/filler-{number:03}", "llama", 7000000000) for number in range(len(known), PLACES)]
    models = [
        Listed(
            model_id=name,
            task="text-generation",
            model_type=kind,
            parameters=size,
            downloads=5_000_000 // place,
            downloads_position=place,
            trending_score=float(1000 - 7 * place % 1000),
            trending_position=PLACES + 1 - place,
        )
        for place, (name, kind, size) in enumerate(known, 1)
    ]
    looking = [
        Listed(
            model_id="acme/look-3b", task="image-text-to-text", model_type="qwen2_vl", downloads=9,
            downloads_position=1,
        )
    ]  # fmt: skip
    files = {
        "text-generation": (About("the tests", "2026-10", "2026-10-05"), models),
        "image-text-to-text": (About("the tests", "2026-10", None), looking),
    }
    for name, (about, listed) in files.items():
        (folder / f"{name}.parquet").write_bytes(catalog.encode(about, listed))
    (folder / "selected.yaml").write_text(SELECTED, encoding="utf-8")
    return folder


class MakeSpace(Protocol):
    def __call__(self, results_dir: Path, catalogs: Path | None = None) -> FastAPI: ...


@pytest.fixture(scope="session")
def make_space(tmp_path_factory: pytest.TempPathFactory, catalogs: Path) -> MakeSpace:
    """Gives the Space over a results folder, with the small catalog unless another is named; a change of a
    file is answered from at once."""
    small = catalogs

    def made(results_dir: Path, catalogs: Path | None = None) -> FastAPI:
        cache = tmp_path_factory.mktemp("index")
        index = Index(results_dir, catalogs or small, cache, look_every_s=0, patience_s=60)
        return create_app(results_dir, Bucket("acme/neff-cache", ("2.27.1",)), index)

    return made


@contextmanager
def _serving(app: FastAPI) -> Iterator[str]:
    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield address(listening, "127.0.0.1")
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def serve() -> Callable[[FastAPI], AbstractContextManager[str]]:
    """Serves a Space from a thread and gives the address."""
    return _serving


def fill(results_dir: Path, rows: list[Row]) -> Path:
    for row in rows[:-1]:
        journal.write(results_dir, row)
    dataset.compact(results_dir)
    journal.write(results_dir, rows[-1])
    return results_dir
