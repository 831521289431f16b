"""A twin split over several cores: its checkpoint is saved once, and one process per core loads its share
with Transformers' own plan. The processes stay up from twin to twin; `trnready.plan.twin_run` asks.

Ranks on the CPU run the same split without any device, over Gloo: what fails there too is no fault of the
device."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from trnready.plan.blueprint import InvalidConfiguration
from trnready.plan.twin_generate import Failed, stage
from trnready.run.report import Report, from_facts

COMMAND = ("-m", "trnready.plan.twin_rank")
"""What Python runs as a rank."""
SILENCE_S = 600.0
"""Seconds after which ranks that do not answer are ended."""
SETTLE_S = 5.0
"""Seconds that the other ranks have to answer after one failed: they may wait for it for ever."""


class RankFailed(Exception):
    """What a rank raised, by its words."""


def failure_of(failed: Failed) -> dict[str, str]:
    """Give what a stage failed with, to be sent to another process."""
    cause = failed.__cause__
    return {"stage": failed.stage, "type": type(cause).__name__, "message": str(cause)}


@dataclass(frozen=True, slots=True)
class Order:
    """What ranks are to do: load a model saved from `auto_class` with these arguments of DistributedConfig in
    this type, and generate from the prompt (token ids) and further tensors."""

    auto_class: str
    distributed: Mapping[str, Any]
    prompt: tuple[int, ...]
    extra: Mapping[str, Any]
    dtype: str


class Ranks:
    """`size` processes in one group, one for each core or, on the CPU, instead of each. A context manager;
    leaving it ends them."""

    def __init__(self, size: int, place: Literal["neuron", "cpu"] = "neuron") -> None:
        self.size = size
        self._place = place
        self._processes: list[subprocess.Popen[str]] = []
        self._answers: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def generate(self, model: Any, order: Order) -> tuple[Report, list[int] | None]:
        """Save the model, have every rank load its share and generate, and give one report of it all, with
        peaks per core and the logits of rank 0, and the bytes that each core held after loading. Raises
        `Failed` and `BadReport`."""
        answers, logits = self._run(model, order, {})
        facts = _together(answers)
        return from_facts(facts, logits), facts["held_bytes"]

    def generate_fed(self, model: Any, order: Order, tokens: Sequence[int]) -> Any:
        """Do the same on the CPU, fed these tokens, and give the logits (float32, steps by vocabulary).
        Raises `Failed`."""
        return self._run(model, order, {"tokens": list(tokens)})[1]

    def _run(self, model: Any, order: Order, more: dict[str, Any]) -> tuple[list[dict[str, Any]], Any]:
        with tempfile.TemporaryDirectory(prefix="trnready-twin-") as name:
            folder = Path(name)
            with stage("load"):
                model.save_pretrained(folder)
            torch.save(dict(order.extra), folder / "extra.pt")
            request = {
                "auto_class": order.auto_class,
                "distributed": dict(order.distributed),
                "prompt": list(order.prompt),
                "dtype": order.dtype,
            }
            (folder / "request.json").write_text(json.dumps(request | more), encoding="utf-8")
            answers = self._ask(folder)
            return answers, np.load(folder / "logits.npy")

    def _ask(self, folder: Path) -> list[dict[str, Any]]:
        if not self._processes:
            self._start()
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.write(f"{folder}\n")
                process.stdin.flush()
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + SILENCE_S
        while len(answers) < self.size and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                rank, line = self._answers.get(timeout=0.2)
                answers[rank] = json.loads(line) if line else {"failed": _died(self._processes[rank], rank)}
                if "failed" in answers[rank]:
                    deadline = min(deadline, time.monotonic() + SETTLE_S)
        failed = {rank: each["failed"] for rank, each in sorted(answers.items()) if "failed" in each}
        if not failed and len(answers) == self.size:
            return [answers[rank] for rank in range(self.size)]
        # Whoever is left may be in the middle of a collective: nobody is asked again.
        self.end()
        if not failed:
            silent = sorted(set(range(self.size)) - set(answers))
            raise Failed("run") from TimeoutError(f"ranks {silent} did not answer within {SILENCE_S:g} s")
        # A rank whose neighbour died says no more than that; the first cause is another's.
        first = min(failed.values(), key=lambda each: each["type"] == "DistBackendError")
        raise Failed(first["stage"]) from _cause(first)

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trnready-ranks-")
        self._answers = queue.SimpleQueue()
        store = Path(self._folder.name) / "store"
        for rank in range(self.size):
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.size, "LOCAL_WORLD_SIZE": self.size}
            process = subprocess.Popen(
                [sys.executable, *COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ
                | {name: str(value) for name, value in ranks.items()}
                | {"TWIN_STORE": str(store), "TWIN_PLACE": self._place, "OMP_NUM_THREADS": "1"}
                # PyTorch itself then leaves every device of a plug-in alone.
                | ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if self._place == "cpu" else {}),
            )
            threading.Thread(target=_listen, args=(rank, process, self._answers), daemon=True).start()
            self._processes.append(process)

    def end(self) -> None:
        """End the processes; the next call starts new ones."""
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(OSError):
                    stream.close()
        self._processes = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _listen(rank: int, process: subprocess.Popen[str], answers: queue.SimpleQueue[tuple[int, str]]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError):
        for line in process.stdout:
            answers.put((rank, line))
    answers.put((rank, ""))


def _died(process: subprocess.Popen[str], rank: int) -> dict[str, str]:
    status = process.wait()
    return {"stage": "run", "type": "RankFailed", "message": f"rank {rank} ended with status {status}"}


def _cause(failure: dict[str, str]) -> Exception:
    """Stand for an exception of another process: its own type's name is kept in the words."""
    if failure["type"] == InvalidConfiguration.__name__:
        return InvalidConfiguration(failure["message"])
    return RankFailed(f"{failure['type']}: {failure['message']}")


def _together(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """One report of all ranks: what each has of its own in the order of the cores, the rest from rank 0. Of
    the counters the worst counts."""
    first = dict(facts[0])
    first["cores"] = len(facts)
    first["parameter_devices"] = sorted({name for each in facts for name in each["parameter_devices"]})
    first["parameter_bytes_per_core"] = [each["parameter_bytes"] for each in facts]
    first["parameter_bytes"] = sum(first["parameter_bytes_per_core"])
    first["graphs_per_core"] = [len(each["graphs"] or ()) for each in facts]
    for name in ("graphs_first_call", "graphs"):
        first[name] = None if any(each[name] is None for each in facts) else first[name]
    for name in ("peak_bytes", "held_bytes"):
        known = [each[name] for each in facts]
        first[name] = None if None in known else [value for each in known for value in each]
    fallbacks = [each["fallback_ops"] for each in facts]
    first["fallback_ops"] = (
        None if None in fallbacks else sorted({name for each in fallbacks for name in each})
    )
    first["graph_breaks"] = max((each["graph_breaks"] or {} for each in facts), key=len)
    return first
