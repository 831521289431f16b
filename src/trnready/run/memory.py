"""Amounts of memory: how much this machine has, and how a person writes them. `trnready.check` asks."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from trnready.errors import TrnreadyError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class NoAmount(TrnreadyError):
    """A text that was to be an amount of memory is none."""


def parse_size(text: str) -> int:
    """Give the bytes in `64MiB`, `1.5 GB` or `1000`. Raises `NoAmount`."""
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise NoAmount(f"{text[:40]!r} is no amount of memory; write it as 16GiB, 500MB or 1000000.")
    unit = (found[2] or "").lower()
    return int(float(found[1]) * (_UNITS | _BINARY)[unit])


def host_memory() -> int:
    """Give how many bytes of memory this process may use at most: the machine's, or its control group's."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        return min(machine, int(_CGROUP_LIMIT.read_text()))
    return machine
