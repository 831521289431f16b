"""AOTAutograd on inputs that share memory: what it gets wrong is put right. Called by `backend`.

Of inputs that overlap, when the graph changes one of them, it makes a single one and gives the graph views of
that. What it notes of outputs still speaks of the inputs that the program had.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta

from softneuron.compiler.errors import HOW_TO_RUN_ANYWAY
from softneuron.compiler.placement import PlacementRefused

_describe_merged = runtime_wrappers.create_synthetic_base_metadata
_OF_INPUTS = (OutputType.alias_of_input, OutputType.is_input)


def _describe(meta: ViewAndMutationMeta, merged: list[Any], *rest: Any) -> Any:
    """What AOTAutograd notes once inputs are merged: `merged` has a tuple for each input that was.

    An output that is a view of such an input cannot be made by doing the program's views again, which start
    from that input: it is made by its place in memory. One that is a view of a result has nothing to do with
    inputs, though its base is a number too.
    """
    known = copy.copy(meta)
    known.output_info = [
        output if output.output_type in _OF_INPUTS else replace(output, base_idx=None)
        for output in meta.output_info
    ]
    described, changed = _describe_merged(known, merged, *rest)
    for position, output in enumerate(meta.output_info):
        if output.output_type not in _OF_INPUTS:
            described.output_info[position] = output
        elif output.base_idx is not None and isinstance(merged[output.base_idx], tuple):
            described.output_info[position] = replace(
                described.output_info[position], view_meta_sequence=None
            )
    return described, changed


@contextlib.contextmanager
def inputs_that_share_memory() -> Iterator[None]:
    """Within, AOTAutograd does right by them, and what it says it cannot do is a `PlacementRefused`."""
    try:
        with mock.patch.object(runtime_wrappers, "create_synthetic_base_metadata", _describe):
            yield
    except AssertionError as error:
        if "aot_autograd() does not yet handle" not in str(error):
            raise
        raise PlacementRefused(f"{str(error).splitlines()[0]}\n{HOW_TO_RUN_ANYWAY}") from error
    except RuntimeError as error:
        if str(error).startswith("as_strided_scatter: "):
            reason = "inputs that overlap, being views of a tensor that covers only a part of its memory"
        elif "more than one element of the written-to tensor" in str(error):
            reason = "an input that is expanded"
        else:
            raise
        raise PlacementRefused(
            f"a compiled graph cannot change {reason}. Give it a clone() of the tensor.\n{HOW_TO_RUN_ANYWAY}"
        ) from error
