"""What happens when the interpreter ends. `softneuron.registration` asks for it."""

from __future__ import annotations

import atexit
import time
from contextlib import suppress
from pathlib import Path

AUTOGRAD_THREAD = "pt_autograd_"
"""How PyTorch names the threads that run a device's backward passes."""
SETTLE_S = 0.05


def let_autograd_settle() -> None:
    """Give autograd's threads a moment before the interpreter ends.

    The thread wakes `backward()` before it has dropped its last Python objects. If the interpreter is gone by
    then, Python ends the thread in the midst of C++, which aborts the process. PyTorch runs a CPU's backward
    pass in the caller's thread, so that this is a device's alone.
    """
    atexit.register(_settle)


def _settle() -> None:
    names = []
    for each in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):
            names.append(each.read_text(encoding="utf-8"))
    if any(name.startswith(AUTOGRAD_THREAD) for name in names):
        time.sleep(SETTLE_S)
