"""What a twin is fed besides token ids: pixel tensors for those that cannot do without. A configuration class
brings no processor, so the tensors are made here. `trnready.plan.twin_run` asks."""

from __future__ import annotations

from typing import Any

from torch import nn


def extra_inputs(model: nn.Module) -> dict[str, Any]:
    """Give the further inputs of a twin's `generate`; empty for those that take token ids alone."""
    return {}
