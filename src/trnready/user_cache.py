"""The user's cache folder, which models, references, indexes and tables are kept below."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache(name: str) -> Path:
    """Give trnready's folder of this name in the user's cache, by the XDG rules; it may not be there yet."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The rules say that a relative path is to be ignored.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "trnready" / name
