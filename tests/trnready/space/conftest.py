"""What the tests of the Space share: a results folder with a row of every sort."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import uvicorn

from trnready.results import dataset, journal
from trnready.results.row import Judge, Row
from trnready.space.app import create_app
from trnready.space.commands import address, listen

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


@pytest.fixture
def results_dir(tmp_path: Path, example_rows: list[Row]) -> Path:
    """A results folder that holds the example rows, all but the last of them folded into Parquet."""
    return fill(tmp_path / "results", example_rows)


@pytest.fixture(scope="session")
def shared_results_dir(tmp_path_factory: pytest.TempPathFactory, example_rows: list[Row]) -> Path:
    """The same folder for tests that only look at it."""
    return fill(tmp_path_factory.mktemp("space") / "results", example_rows)


@contextmanager
def _serving(results_dir: Path) -> Iterator[str]:
    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(create_app(results_dir), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield address(listening, "127.0.0.1")
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def serve() -> Callable[[Path], AbstractContextManager[str]]:
    """Serves a results folder from a thread and gives the address."""
    return _serving


def fill(results_dir: Path, rows: list[Row]) -> Path:
    for row in rows[:-1]:
        journal.write(results_dir, row)
    dataset.compact(results_dir)
    journal.write(results_dir, rows[-1])
    return results_dir
