"""Where the catalogs and the twins' tables lie that trnready carries: the Space and `trnready catalog` fall
back on them."""

from __future__ import annotations

from pathlib import Path

NAME = "shipped"
"""An installed package has its own copy in it, which setup.py makes; a checkout has the folders itself."""

_PACKAGE = Path(__file__).resolve().parent


def root() -> Path:
    """Give the folder that holds `catalog` and `datasets`."""
    installed = _PACKAGE / NAME
    return installed if installed.is_dir() else _PACKAGE.parents[1]
