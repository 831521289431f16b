"""One rank of a split twin: takes the name of a folder per line on its standard input, loads its share of the
checkpoint in it, generates on a core or on the CPU, and answers with one line. `trnready.plan.twin_ranks`
starts it, one for each core, as `python -m trnready.plan.twin_rank`."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer until the input ends."""
    # Models print what they like; the answers go out on a channel of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend, run = PLACES[os.environ["TWIN_PLACE"]]
    dist.init_process_group(
        backend, init_method=f"file://{os.environ['TWIN_STORE']}", rank=rank, world_size=size
    )
    for line in sys.stdin:
        answers.write(json.dumps(_answer(Path(line.strip()), rank, run), default=str) + "\n")
        answers.flush()


def _answer(folder: Path, rank: int, run: Run) -> dict[str, Any]:
    """The facts of this rank's report, or how it failed. Rank 0 leaves the logits in the folder."""
    import numpy as np

    from trnready.plan import twin_generate
    from trnready.plan.twin_ranks import failure_of

    try:
        request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        facts, logits = run(folder, request)
    except twin_generate.Failed as failed:
        return {"failed": failure_of(failed)}
    if rank == 0:
        np.save(folder / "logits.npy", logits)
    return facts


def _on_core(folder: Path, request: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Generate freely on this rank's core."""
    import torch

    from trnready.plan import twin_generate

    # What an earlier twin left is no part of this one's memory.
    torch._dynamo.reset()
    gc.collect()
    before = _held()
    extra = _extra(folder)
    facts, logits = twin_generate.on_device(
        lambda: _load(folder, request), request["prompt"], extra, [int(os.environ["LOCAL_RANK"])]
    )
    if facts["held_bytes"] is not None:
        facts["held_bytes"] = [facts["held_bytes"][0] - before]
    return facts, logits


def _on_cpu(folder: Path, request: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Generate the tokens of the request on the CPU."""
    from trnready.plan import twin_generate

    with twin_generate.stage("load"):
        model = _load(folder, request)
    with twin_generate.stage("run"):
        return twin_generate.on_cpu(model, request["prompt"], _extra(folder), request["tokens"])


Run = Callable[[Path, dict[str, Any]], tuple[dict[str, Any], Any]]
PLACES: Mapping[str, tuple[str, Run]] = {"neuron": ("neuron", _on_core), "cpu": ("gloo", _on_cpu)}
"""Where ranks may run: the process group's backend, and what generates there."""


def _held() -> int:
    import torch

    return int(torch.get_device_module("neuron").memory_allocated(int(os.environ["LOCAL_RANK"])))


def _extra(folder: Path) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = torch.load(folder / "extra.pt", weights_only=True)
    return found


def _load(folder: Path, request: dict[str, Any]) -> Any:
    import torch
    import transformers

    from trnready.plan.twin_generate import prepared

    auto_class: Any = getattr(transformers, request["auto_class"])
    config = transformers.DistributedConfig(**request["distributed"])
    model = auto_class.from_pretrained(
        folder, dtype=getattr(torch, request["dtype"]), distributed_config=config, use_safetensors=True
    )
    return prepared(model)


if __name__ == "__main__":
    main()
