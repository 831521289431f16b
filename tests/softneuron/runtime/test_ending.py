"""The end of the interpreter."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import torch
from softneuron.runtime import ending
waits = []
ending.time.sleep = waits.append
x = torch.ones(4, device="neuron", requires_grad=True)
ending._settle()
assert waits == []
x.sum().backward()
ending._settle()
assert waits == [ending.SETTLE_S]
"""


def test_the_threads_of_a_backward_pass_are_waited_for():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
