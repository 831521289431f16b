"""What AOTAutograd made of a captured graph, kept beside the NEFFs so that a later process need not trace it
again: PyTorch's own cache of that, moved into the NEFF cache's folder. Called by `backend`.

PyTorch names an entry by the captured graph, its inputs and PyTorch's settings. What it leaves out, and what
is ours, is in the name of the folder. A graph that those names do not tell apart from another is traced anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import torch
from torch._functorch import config
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import softneuron
from softneuron import _C
from softneuron.compiler.cache import TRACES
from softneuron.compiler.key import toolchain
from softneuron.compiler.options import Options
from softneuron.diagnostics.naming import model_name

_KNOWN_NAMESPACES = {"aten", "prim", "prims"}
_DEVICE_KEY = "PrivateUse1"


@functools.cache
def _own_code() -> str:
    """A digest of the code that decides what a trace holds: the compiler and the C++ core."""
    package = Path(softneuron.__file__).parent
    digest = hashlib.sha256()
    for file in (*sorted((package / "compiler").glob("*.py")), Path(_C.__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _sharing(inputs: Sequence[object]) -> list[tuple[object, ...]]:
    """Where the tensors lie that share memory, and in whose: what writing to one does to others is traced."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    return [
        (storages.index(storage), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        for storage, tensor in zip(storages, tensors, strict=True)
        if storages.count(storage) > 1
    ]


def _overrides() -> list[str]:
    """ATen's operators that have kernels in Python, PyTorch's own ones and the program's."""
    return sorted(name for name in torch.library._impls if name.startswith("aten/"))


def _setting(options: Options, inputs: Sequence[object]) -> str:
    """A digest of what a trace depends on besides the graph and what PyTorch's own name holds."""
    parts = (
        toolchain(),
        _own_code(),
        options,
        options.model_name or model_name(),
        _overrides(),
        _C.current_core(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_inference_mode_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        _sharing(inputs),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def can_be_kept(gm: torch.fx.GraphModule, inputs: Sequence[object]) -> bool:
    """Whether the trace of `gm` is of use to another process.

    One for training is not: PyTorch makes its backward graph later, at the
    first call, and keeps the two together. Nor is one whose name would not tell
    it apart from every other graph: the name holds neither the values of
    tensors in the graph, nor the process groups of this process, nor the code
    of a tensor subclass, nor what a program registered for an operator of its
    own or, on neuron, for one of ATen's.
    """
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    if any(is_traceable_wrapper_subclass(tensor) or not torch._C._has_storage(tensor) for tensor in tensors):
        return False
    if any(_DEVICE_KEY in name for name in _overrides()):
        return False
    return all(isinstance(module, torch.fx.GraphModule) and _is_named(module) for module in gm.modules())


def _is_named(module: torch.fx.GraphModule) -> bool:
    for node in module.graph.nodes:
        if node.op == "get_attr" and not isinstance(_attribute(module, node.target), torch.fx.GraphModule):
            return False
        operator = node.target if node.op == "call_function" else None
        if isinstance(operator, torch._ops.OpOverload):
            operator = operator.overloadpacket
        if (
            isinstance(operator, torch._ops.OpOverloadPacket)
            and operator._qualified_op_name.partition("::")[0] not in _KNOWN_NAMESPACES
        ):
            return False
    return True


def _attribute(module: torch.nn.Module, target: str) -> object:
    return functools.reduce(getattr, target.split("."), module)


class _Folder:
    """The entries of one setting: `<root>/traces/<setting>/<key>/<SHA-256 of the entry>`."""

    def __init__(self, root: Path, setting: str) -> None:
        self._root = root / TRACES / setting

    def of_key(self, key: str) -> str:
        """The folder where PyTorch looks for entries of `key`. One that was damaged is removed first."""
        folder = self._root / key
        try:
            # What starts with a dot is being written; PyTorch passes it over.
            for entry in folder.glob("[!.]*"):
                if hashlib.sha256(entry.read_bytes()).hexdigest() != entry.name:
                    entry.unlink()
        except OSError:
            return str(folder / "unreadable")
        return str(folder)

    def write(self, key: str, content: bytes) -> None:
        """Keep `content`, whole or not at all. A folder that takes nothing costs the next process a trace."""
        folder = self._root / key
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as file:
                try:
                    file.write(content)
                    file.flush()
                    os.replace(file.name, folder / hashlib.sha256(content).hexdigest())
                except OSError:
                    os.unlink(file.name)


@contextlib.contextmanager
def kept_in(root: Path, options: Options, inputs: Sequence[object]) -> Iterator[None]:
    """Within, AOTAutograd looks for traces in the NEFF cache `root`, and leaves new ones there."""
    folder = _Folder(root, _setting(options, inputs))
    with (
        config.patch(enable_autograd_cache=True, bundled_autograd_cache=True),
        mock.patch.object(AOTAutogradCache, "_get_tmp_dir_for_key", folder.of_key),
        mock.patch.object(AOTAutogradCache, "_write_to_local_cache", folder.write),
    ):
        yield
