"""One operator, one dtype, run on the CPU and on a core and compared bit for bit.

Called by `op_coverage`, which sweeps PyTorch's operator database, and by the tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
SEED = 20
PHASES = ("forward", "backward", "inplace", "out")

# What these give is whatever the memory held: only shapes, strides and dtypes can be compared.
UNINITIALISED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")

# Tensors of sizes that every PyTorch device wants on the host.
HOST_ARGUMENTS = ("tensor_split",)

_DEVICES = re.compile(r"\b(privateuse1|privateuseone|neuron|cpu)\b(:\d+)?", re.IGNORECASE)
_POINTERS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Case:
    """An entry of PyTorch's operator database (its full name) at a dtype (`float32`)."""

    operator: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.operator} {self.dtype}"


@dataclass(slots=True)
class Tally:
    """Samples of one phase: how many the CPU runs, and how many of those were equal on a core."""

    ran: int = 0
    equal: int = 0


@dataclass(slots=True)
class Outcome:
    """What one case gave.

    `failures` holds one line per sample that differs, `words` one per error
    that the CPU raises in other words or as another type than the core.
    """

    case: Case
    tallies: dict[str, Tally] = field(default_factory=lambda: {phase: Tally() for phase in PHASES})
    failures: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


def database() -> dict[str, OpInfo]:
    """PyTorch's operator database by full name (`linalg.svd`, `nn.functional.gelu`)."""
    return {op.full_name: op for op in op_db}


def all_cases() -> list[Case]:
    """Every operator at every dtype of `DTYPES` that the database says the CPU has."""
    return [
        Case(name, str(dtype).removeprefix("torch."))
        for name, op in database().items()
        for dtype in DTYPES
        if dtype in op.dtypes
    ]


class Mover:
    """Copies arguments to a device, keeping strides, offsets, shared memory and identity."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._tensors: dict[int, torch.Tensor] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._kept: list[torch.Tensor] = []

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
            return type(value)(self.device)
        if isinstance(value, torch.Generator):
            generator = torch.Generator(self.device)
            return generator.manual_seed(value.initial_seed())
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._tensors:
            self._kept.append(tensor)
            self._tensors[id(tensor)] = self._copy(tensor)
        return self._tensors[id(tensor)]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            moved = tensor.detach().to(self.device)
            if self.device == "cpu":
                moved = moved.clone()
        else:
            plain = (
                tensor.detach().resolve_conj().resolve_neg()
                if tensor.is_conj() or tensor.is_neg()
                else tensor
            )
            storage = plain.detach().untyped_storage()
            key = storage.data_ptr() or id(storage)
            if key not in self._storages:
                self._kept.append(plain)
                whole = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cpu")
                whole.untyped_storage().copy_(storage)
                self._storages[key] = whole.to(self.device).untyped_storage()
            moved = torch.empty(0, dtype=plain.dtype, device=self.device)
            moved.set_(self._storages[key], plain.storage_offset(), plain.size(), plain.stride())
            if tensor.is_conj():
                moved = torch.conj(torch.conj_physical(moved))
            if tensor.is_neg():
                moved = torch._neg_view(-moved)
        return moved.requires_grad_(tensor.requires_grad)


@dataclass(slots=True)
class Attempt:
    """What a call gave: a value or an error."""

    value: Any = None
    error: Exception | None = None


def attempt(call: Callable[[], Any]) -> Attempt:
    """Run `call` with a fixed seed on every device."""
    torch.manual_seed(SEED)
    try:
        return Attempt(value=call())
    except Exception as error:
        return Attempt(error=error)


def difference(name: str, host: Any, device: Any) -> str | None:
    """Why two results of operator `name` are not the same, or None: type, shape, strides or bits."""
    hosts, devices = tree_leaves(host), tree_leaves(device)
    if len(hosts) != len(devices):
        return f"{len(devices)} results instead of {len(hosts)}"
    for a, b in zip(hosts, devices, strict=True):
        why = _leaf_difference(name, a, b)
        if why is not None:
            return why
    return None


def _leaf_difference(name: str, a: Any, b: Any) -> str | None:
    if not isinstance(a, torch.Tensor):
        if isinstance(a, torch.device):
            return None if isinstance(b, torch.device) and b.type == "neuron" else f"{b} instead of a core"
        same = a == b or (a != a and b != b)
        return None if same else f"{b!r} instead of {a!r}"
    if not isinstance(b, torch.Tensor):
        return f"{type(b).__name__} instead of a tensor"
    for what in ("dtype", "layout", "shape", "requires_grad", "is_quantized", "is_nested"):
        if what == "shape" and a.is_nested:
            continue
        if getattr(a, what) != getattr(b, what):
            return f"{what} {getattr(b, what)} instead of {getattr(a, what)}"
    if a.layout == torch.strided and not a.is_nested:
        if a.stride() != b.stride() or a.storage_offset() != b.storage_offset():
            return f"strides {b.stride()}+{b.storage_offset()} instead of {a.stride()}+{a.storage_offset()}"
        if a.is_conj() != b.is_conj() or a.is_neg() != b.is_neg():
            return "conjugate or negative bit differs"
    if name in UNINITIALISED:
        return None
    return _bits_difference(a, b)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    tensor = tensor.detach()
    if tensor.is_nested:
        return [tensor.values()] if tensor.layout == torch.jagged else list(tensor.unbind())
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_quantized:
        return [tensor.int_repr()]
    return [tensor]


def _bits_difference(a: torch.Tensor, b: torch.Tensor) -> str | None:
    for x, y in zip(_parts(a), _parts(b), strict=True):
        # A copy: complex values of a compressed tensor cannot be viewed as real where they are.
        x, y = x.clone(), y.clone()
        x, y = x.resolve_conj().resolve_neg(), y.resolve_conj().resolve_neg().cpu()
        if x.dtype.is_complex:
            x, y = torch.view_as_real(x), torch.view_as_real(y)
        x, y = x.contiguous(), y.contiguous()
        if x.shape != y.shape:
            return f"shape {tuple(y.shape)} instead of {tuple(x.shape)}"
        if x.dtype.is_floating_point:
            unequal = (x.view(_INTEGER[x.element_size()]) != y.view(_INTEGER[y.element_size()])) & ~(
                x.isnan() & y.isnan()
            )
        else:
            unequal = x != y
        if bool(unequal.any()):
            count = int(unequal.sum())
            gap = (x.double() - y.double()).abs().nan_to_num(float("inf")).max().item()
            return f"{count} of {x.numel()} elements differ, by at most {gap:.3g}"
    return None


_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def run_case(case: Case, most_samples: int | None = None) -> Outcome:
    """Run every sample of `case`, or the first `most_samples`, in every phase."""
    op = database()[case.operator]
    dtype = getattr(torch, case.dtype)
    outcome = Outcome(case)
    for index, sample in enumerate(_samples(op, dtype)):
        if most_samples is not None and index >= most_samples:
            break
        _Sample(op, sample, index, outcome).run()
    for error_input in _error_inputs(op, case):
        sample = error_input.sample_input
        _compare_errors(op, sample, outcome)
    return outcome


def _samples(op: OpInfo, dtype: torch.dtype) -> Iterator[SampleInput]:
    torch.manual_seed(SEED)
    differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    yield from op.sample_inputs("cpu", dtype, requires_grad=differentiable and dtype in op.backward_dtypes)


def _error_inputs(op: OpInfo, case: Case) -> Iterator[Any]:
    if case.dtype == "float32" and op.error_inputs_func is not None:
        yield from op.error_inputs("cpu")


def _call(target: Callable[..., Any], inputs: tuple[Any, tuple[Any, ...], Mapping[str, Any]]) -> Any:
    first, args, kwargs = inputs
    return target(first, *args, **kwargs)


def _compare_errors(op: OpInfo, sample: SampleInput, outcome: Outcome) -> None:
    inputs = (sample.input, sample.args, sample.kwargs)
    moved = attempt(lambda: tree_map(Mover("neuron"), inputs))
    if moved.error is not None:
        return
    host = attempt(lambda: _call(op, tree_map(Mover("cpu"), inputs)))
    device = attempt(lambda: _call(op, moved.value))
    _note_words("error input", host, device, outcome)


def _note_words(where: str, host: Attempt, device: Attempt, outcome: Outcome) -> None:
    if host.error is None:
        return
    if device.error is None:
        outcome.words.append(f"{where}: the CPU raises {_short(host.error)}, the core does not")
        return
    said = [_DEVICES.sub("DEVICE", _POINTERS.sub("0x", _short(e))) for e in (host.error, device.error)]
    if said[0] != said[1]:
        outcome.words.append(f"{where}: {_short(device.error)} instead of {_short(host.error)}")


def _short(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300] if text else ''}"


class _Sample:
    """The phases of one sample of one case."""

    def __init__(self, op: OpInfo, sample: SampleInput, index: int, outcome: Outcome) -> None:
        self.op = op
        self.sample = sample
        self.index = index
        self.outcome = outcome
        self.inputs = (sample.input, sample.args, sample.kwargs)

    def run(self) -> None:
        host_inputs = self.moved(Mover("cpu"))
        moved = attempt(lambda: self.moved(Mover("neuron")))
        host = attempt(lambda: _call(self.op, host_inputs))
        if moved.error is not None:
            if host.error is None:
                self.outcome.tallies["forward"].ran += 1
                self.fail("forward", f"arguments cannot be moved: {_short(moved.error)}")
            return
        device = attempt(lambda: _call(self.op, moved.value))
        if not self.judge("forward", host, device, (host_inputs, moved.value)):
            return
        self.backward(host_inputs, moved.value, host.value, device.value)
        inplace = self.op.get_inplace()
        if inplace is not None:
            self.inplace(inplace)
        if self.op.supports_out:
            self.out(host.value)

    def moved(self, mover: Mover) -> Any:
        if self.op.full_name in HOST_ARGUMENTS:
            return (mover(self.inputs[0]), *self.inputs[1:])
        return tree_map(mover, self.inputs)

    def fail(self, phase: str, why: str) -> None:
        self.outcome.failures.append(f"{phase} {self.index}: {why}")

    def judge(
        self, phase: str, host: Attempt, device: Attempt, inputs: tuple[Any, Any] | None = None
    ) -> bool:
        """Count the sample under `phase`; whether it ran and was equal."""
        if host.error is not None:
            _note_words(f"{phase} {self.index}", host, device, self.outcome)
            return False
        tally = self.outcome.tallies[phase]
        tally.ran += 1
        if device.error is not None:
            self.fail(phase, _short(device.error))
            return False
        name = self.op.full_name
        compared = attempt(lambda: self.misplaced(device.value) or difference(name, host.value, device.value))
        why = _short(compared.error) if compared.error is not None else compared.value
        if why is None and inputs is not None:
            changed = attempt(lambda: difference(name, *[_tensors(side) for side in inputs]))
            if changed.error is not None or changed.value is not None:
                why = f"arguments afterwards: {changed.error or changed.value}"
        if why is not None:
            self.fail(phase, why)
            return False
        tally.equal += 1
        return True

    def misplaced(self, result: Any) -> str | None:
        """Which device a result is on, when its arguments say a core and it is not."""
        places = (torch.Tensor, torch.device)
        if not any(isinstance(leaf, places) or leaf == "cpu" for leaf in tree_leaves(self.inputs)):
            return None
        strays = [t.device for t in _tensors(result) if t.device.type != "neuron"]
        return f"result on {strays[0]}" if strays else None

    def backward(self, host_inputs: Any, device_inputs: Any, host: Any, device: Any) -> None:
        def gradients(inputs: Any, outputs: Any, mover: Mover) -> Any:
            leaves = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
            roots = [t for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad]
            if not leaves or not roots:
                return None
            grads = [mover(g) for g in seeds]
            return torch.autograd.grad(roots, leaves, grads, allow_unused=True)

        torch.manual_seed(SEED)
        made = attempt(lambda: [_gradient_like(t) for t in tree_leaves(host) if _needs_gradient(t)])
        if made.error is not None:
            return
        seeds = made.value
        if not seeds:
            return
        host_grads = attempt(lambda: gradients(host_inputs, host, Mover("cpu")))
        device_grads = attempt(lambda: gradients(device_inputs, device, Mover("neuron")))
        if host_grads.error is None and host_grads.value is None:
            return
        self.judge("backward", host_grads, device_grads)

    def inplace(self, inplace: Callable[..., Any]) -> None:
        def call(mover: Mover) -> Any:
            first, args, kwargs = self.moved(mover)
            with torch.no_grad():
                result = inplace(first, *args, **kwargs)
            return result, first

        host = attempt(lambda: call(Mover("cpu")))
        device = attempt(lambda: call(Mover("neuron")))
        self.judge("inplace", host, device)

    def out(self, forward: Any) -> None:
        tensors = tree_leaves(forward)
        if not tensors or not all(isinstance(t, torch.Tensor) for t in tensors):
            return

        def call(mover: Mover) -> Any:
            first, args, kwargs = self.moved(mover)
            # One element too few, so that the kernel has to resize.
            outs = tree_map(lambda t: torch.empty(0, dtype=t.dtype, device=mover.device), forward)
            with torch.no_grad():
                result = self.op(first, *args, **{**kwargs, "out": outs})
            return result, outs

        host = attempt(lambda: call(Mover("cpu")))
        device = attempt(lambda: call(Mover("neuron")))
        self.judge("out", host, device)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _gradient_like(output: torch.Tensor) -> torch.Tensor:
    if output.layout != torch.strided or output.is_nested:
        return torch.ones_like(output.detach())
    return torch.randn(output.shape, dtype=output.dtype)
