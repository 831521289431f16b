"""How ranks find their cores and each other when a run starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from softneuron_distributed_tests_ranks import rank_environment

SCRIPT = """
import sys, torch, torch.distributed as dist
backend, store, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group(
    backend or None, init_method=f"file://{store}", rank=rank, world_size=size
)
tensor = torch.ones(2, device="neuron")
dist.all_reduce(tensor)
print("core", tensor.device.index, "sum", tensor[0].item(), "backend", dist.get_backend_config())
dist.destroy_process_group()
"""


def run(folder: Path, size: int, backend: str, *, without: tuple[str, ...] = (), **extra: str) -> list[str]:
    processes = []
    for rank in range(size):
        environment = rank_environment(rank, size, folder / "store", **extra)
        for name in without:
            environment.pop(name, None)
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT, backend, str(folder / "store"), str(rank), str(size)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            )
        )
    return [process.communicate(timeout=120)[0] for process in processes]


@pytest.mark.parametrize(
    ("backend", "shown"), [("", "neuron:neuron"), ("cpu:gloo,neuron:neuron", "cpu:gloo,neuron:neuron")]
)
def test_backends(tmp_path: Path, backend: str, shown: str) -> None:
    for rank, output in enumerate(run(tmp_path, 2, backend)):
        assert f"core {rank} sum 2.0 backend {shown}" in output


def test_ranks_without_a_launcher_take_a_core_each(tmp_path: Path) -> None:
    for rank, output in enumerate(run(tmp_path, 2, "neuron", without=("LOCAL_RANK", "LOCAL_WORLD_SIZE"))):
        assert f"core {rank} sum 2.0" in output


def test_three_ranks_are_refused_on_trainium(tmp_path: Path) -> None:
    for output in run(tmp_path, 3, "neuron", SOFTNEURON_INSTANCE="trn2.3xlarge"):
        assert "WorldRefused: Trainium does not connect 3 cores" in output
        assert "has 1, 2, 4 ranks" in output


def test_a_rank_without_a_core(tmp_path: Path) -> None:
    outputs = run(tmp_path, 3, "neuron", SOFTNEURON_INSTANCE="custom", SOFTNEURON_CORES="2")
    for output in outputs:
        assert "WorldRefused: 3 ranks were started on custom with 2 visible NeuronCores" in output


def test_local_rank_without_a_core() -> None:
    environment = {**rank_environment(5, 8, Path("unused")), "SOFTNEURON_INSTANCE": "trn2.3xlarge"}
    script = "import torch; print(torch.neuron.device_count(), torch.ones(1, device='neuron'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "LOCAL_RANK=5 has no NeuronCore of its own: there are 4. Start at most 4 ranks" in done.stderr


def test_two_ranks_on_one_visible_core(tmp_path: Path) -> None:
    for output in run(tmp_path, 2, "neuron", NEURON_RT_NUM_CORES="1", LOCAL_WORLD_SIZE="1"):
        assert "ranks 0 and 1 are both on NeuronCore 0" in output
