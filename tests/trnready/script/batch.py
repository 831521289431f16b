"""Runs several `run.py` in one process, one after another, as if each were alone: importing the libraries
takes longer than running a tiny model. `python batch.py JOBS`: a JSON list of argument lists, the script
first."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
import traceback
from pathlib import Path

import torch


def forget() -> None:
    """Set all counters back to where a fresh process has them."""
    torch._dynamo.reset()
    counters = sys.modules.get("torch._dynamo.utils")
    if counters is not None:
        counters.counters.clear()
    neuron = importlib.import_module("torch_neuronx")
    neuron.reset_dynamo_metrics()
    neuron.clear_op_tracking()
    for core in range(torch.neuron.device_count()):
        torch.neuron.reset_peak_memory_stats(core)


if __name__ == "__main__":
    for job in json.loads(Path(sys.argv[1]).read_text()):
        forget()
        sys.argv = job
        try:
            runpy.run_path(job[0], run_name="__main__")
        except Exception:
            Path(job[0]).with_name("error").write_text(traceback.format_exc())
