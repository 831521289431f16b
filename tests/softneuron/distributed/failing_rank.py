"""A rank of three, of which rank 1 goes wrong in the way named by the first argument. Started as a script.

The others print the error that they end with and how long they waited for it.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = 6.0


def main() -> None:
    trouble = sys.argv[1]
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "neuron",
        init_method=f"file://{os.environ['TEST_STORE']}",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=TIMEOUT),
    )
    tensor = torch.ones(1000, device="neuron")
    dist.all_reduce(tensor)
    if rank == 1:
        if trouble == "dies":
            os._exit(7)
        elif trouble == "raises":
            raise ValueError("rank 1 has a bug")
        time.sleep(4 * TIMEOUT)
        os._exit(0)
    started = time.monotonic()
    try:
        for _ in range(3):
            dist.all_reduce(tensor)
    except dist.DistBackendError as error:
        print(f"waited {time.monotonic() - started:.1f}")
        print(error)
        sys.exit(3)


if __name__ == "__main__":
    main()
