"""One rank that does what `ranks.py` asks: a JSON line in, one out. Started as a script."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from datetime import timedelta


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, os.path.dirname(__file__))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    cases = importlib.import_module("cases")
    dist.init_process_group(
        os.environ.get("TEST_BACKEND", "neuron") or None,
        init_method=f"file://{os.environ['TEST_STORE']}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=60),
    )
    cases.GROUPS["gloo"] = dist.new_group(backend="gloo")
    for line in sys.stdin:
        order = json.loads(line)
        try:
            getattr(importlib.import_module(order["module"]), order["case"])(**order["arguments"])
            answer = ""
        except BaseException:
            answer = traceback.format_exc()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
