"""What went wrong when a graph could not be compiled, for a reader of one sentence. Called by `graph`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from softneuron.compiler.lower import users_line
from softneuron.compiler.strides import UnsupportedNode

HOW_TO_RUN_ANYWAY = (
    "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION=0, or the option fallback_execution, runs such a graph "
    "operator by operator."
)


class NeuronCompileError(RuntimeError):
    """A graph that could not be compiled; names the graph, what failed, the operator and the user's line."""


class GraphRefused(NeuronCompileError):
    """AOTAutograd would restate the captured graph as one with other numbers. The captured one can be run."""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _operator(gm: torch.fx.GraphModule, error: BaseException) -> torch.fx.Node | None:
    """The node that `error` carries, or that its text, the code generator's, names by target or by name."""
    if isinstance(error, UnsupportedNode):
        return error.node
    text = str(error)
    target = re.search(r"^\s*target: (\S+)", text, re.MULTILINE)
    name = re.search(r"While executing %(\w+) :", text)
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        if (target and str(node.target) == target[1]) or (name and node.name == name[1]):
            found: torch.fx.Node = node
            return found
    return None


def _reason(text: str) -> str:
    """The line of `text` that says most: the C++ compiler's first error, or else the message's first line."""
    from_compiler = re.search(r"^.*?\b(?:fatal )?error: .*$", text, re.MULTILINE)
    if from_compiler:
        return from_compiler[0].strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return first.removeprefix("LoweringException: ")


def compile_error(gm: torch.fx.GraphModule, name: str, error: Exception) -> NeuronCompileError:
    """The error to raise when `gm`, called `name`, could not be compiled because of `error`."""
    node = next((node for one in _chain(error) if (node := _operator(gm, one))), None)
    reason = _reason(str(error) or type(error).__name__)
    if node is not None:
        reason = f"{node.target} ({users_line(node)}): {reason}"
    return NeuronCompileError(f"graph {name} could not be compiled: {reason}\n{HOW_TO_RUN_ANYWAY}")
