"""Text from elsewhere, made fit to show: every page and answer passes rows' texts through here."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """Give text without colour codes and control characters."""
    return _CONTROL.sub("\ufffd", _ANSI.sub("", text.replace("\r\n", "\n")))


def shown(text: str, most: int = 100) -> str:
    """Give what a reader typed, fit to be repeated in a sentence."""
    return plain(text if len(text) <= most else text[:most] + "…")
