"""What lies on each core: the parameters and buffers of a model, how each is split, and what must divide.
Pure data and arithmetic; `trnready.plan.blueprint` fills it in, `trnready.plan.planner` decides with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["tp", "ep"]
"""Tensor parallelism, or expert parallelism, with tensor parallelism of the rest where there is a plan."""


@dataclass(frozen=True, slots=True)
class Split:
    """A tensor is cut along dimension `dim` into one slice per core; a `packed` tensor holds that many
    matrices side by side along it, each cut by itself."""

    dim: int
    packed: int = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """One parameter or buffer that exists once in memory. `element_bytes` is that of the executed type;
    None for `split` puts the whole on every core."""

    name: str
    shape: tuple[int, ...]
    element_bytes: int
    split: Split | None = None

    @property
    def elements(self) -> int:
        """Number of elements of the whole tensor."""
        return math.prod(self.shape)

    def bytes_on(self, cores: int) -> int:
        """Give its bytes on the fullest of so many cores."""
        if self.split is None or cores == 1 or not self.shape:
            return self.elements * self.element_bytes
        length = self.shape[self.split.dim]
        rest = self.elements // length if length else 0
        # The first core gets the longest slice; PyTorch rounds it up.
        slice_length = self.split.packed * -(-(length // self.split.packed) // cores)
        return slice_length * rest * self.element_bytes


@dataclass(frozen=True, slots=True)
class Divisor:
    """A number that the cores must divide: `count` of `what`, as in 8 KV heads; `where` names a module."""

    what: str
    count: int
    where: str

    def allows(self, cores: int) -> bool:
        """Say whether so many cores get a whole number each."""
        return self.count % cores == 0


@dataclass(frozen=True, slots=True)
class Layout:
    """A model under one kind of parallelism: `kind` is None where it cannot be split."""

    kind: Kind | None
    pieces: tuple[Piece, ...]
    divisors: tuple[Divisor, ...] = ()

    def bytes_on(self, cores: int) -> int:
        """Give the bytes of parameters and buffers on the fullest of so many cores."""
        return sum(piece.bytes_on(cores) for piece in self.pieces)

    @property
    def whole_bytes(self) -> int:
        """Bytes of the whole model."""
        return self.bytes_on(1)

    @property
    def replicated_bytes(self) -> int:
        """Bytes that every core holds, however many there are."""
        return sum(piece.bytes_on(1) for piece in self.pieces if piece.split is None)

    def obstacles(self, cores: int) -> tuple[Divisor, ...]:
        """Give what does not divide by so many cores."""
        return tuple(each for each in self.divisors if not each.allows(cores))


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """What one layer keeps between tokens: its tensors' bytes for the test's length, and whether each core
    holds only its own heads of it."""

    kind: str
    bytes: int
    split: bool

    def bytes_on(self, cores: int) -> int:
        """Give its bytes on one of so many cores."""
        return -(-self.bytes // cores) if self.split else self.bytes
