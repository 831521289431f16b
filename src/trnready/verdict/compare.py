"""The arithmetic of the verdict, over arrays alone: how far a device's logits are from the CPU's, measured in
units of the model's own rounding noise. `trnready.verdict.rule` turns these numbers into a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trnready.run.report import Logits

PerStep = npt.NDArray[np.float64]
"""One number for each generated token."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A device's logits beside the CPU's.

    `ratios` holds r = rms(device - CPU) / noise for each step, infinite where the noise is 0 and the logits
    differ; `score` is their median and `worst` their greatest. `first_divergence` is the first step at which
    the CPU, decoding by itself, would have chosen another token, `margin` the gap between its two largest
    logits there.
    """

    score: float
    worst: float
    ratios: tuple[float, ...]
    noise: float
    bit_equal: bool
    tokens_reference: tuple[int, ...]
    first_divergence: int | None
    margin: float | None


def rms(values: npt.NDArray[np.floating]) -> PerStep:
    """Give the root mean square over the vocabulary, for each step."""
    wide = values.astype(np.float64)
    return np.asarray(np.sqrt(np.mean(np.square(wide), axis=-1)), dtype=np.float64)


def spread(values: npt.NDArray[np.floating]) -> PerStep:
    """Give the standard deviation over the vocabulary, for each step."""
    return np.asarray([np.std(row.astype(np.float64)) for row in values], dtype=np.float64)


def difference(one: Logits, other: Logits) -> PerStep:
    """Give the root mean square of the difference over the vocabulary, for each step."""
    # Row by row: a long generation over a large vocabulary in float64 would not fit into memory.
    return np.asarray(
        [rms(a.astype(np.float64) - b) for a, b in zip(one, other, strict=True)], dtype=np.float64
    )


def ratios(distance: PerStep, noise: PerStep) -> PerStep:
    """Give distance / noise for each step. Where a step has no noise at all, an equal result is perfect (0)
    and any difference is more than rounding can explain (infinite)."""
    without_noise = np.where(distance == 0, 0.0, np.inf)
    with np.errstate(over="ignore"):
        return np.divide(distance, noise, out=without_noise, where=noise > 0)


def greedy(logits: Logits, held_back: Sequence[int]) -> tuple[int, ...]:
    """Give the token of the largest logit at each step, the lowest among equals, none that is held back."""
    allowed = without(logits, held_back)
    return tuple(int(token) for token in np.argmax(allowed, axis=-1))


def without(logits: Logits, held_back: Sequence[int]) -> Logits:
    """Give the logits with the tokens held back at minus infinity."""
    allowed = logits.copy()
    allowed[:, [token for token in held_back if token < logits.shape[1]]] = -np.inf
    return allowed


def bit_equal(one: Logits, other: Logits) -> bool:
    """Say whether the two hold the same bits, signs of zeros included."""
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def compare(
    device: Logits, reference: Logits, noise: PerStep, tokens: Sequence[int], held_back: Sequence[int]
) -> Comparison:
    """Compare a device's logits with those of the CPU that was fed the same tokens.

    All arrays have one row for each token; every logit is finite; `tokens` are those the device generated.
    """
    per_step = ratios(difference(device, reference), noise)
    chosen = greedy(reference, held_back)
    step = next((i for i, (own, other) in enumerate(zip(tokens, chosen, strict=True)) if own != other), None)
    return Comparison(
        score=float(np.median(per_step)),
        worst=float(np.max(per_step)),
        ratios=tuple(float(each) for each in per_step),
        noise=float(np.median(noise)),
        bit_equal=bit_equal(device, reference),
        tokens_reference=chosen,
        first_divergence=step,
        margin=None if step is None else _margin(without(reference, held_back)[step]),
    )


def _margin(logits_V: npt.NDArray[np.float32]) -> float | None:
    if logits_V.size < 2:
        return None
    second, first = np.partition(logits_V.astype(np.float64), -2)[-2:]
    gap = float(first - second)
    return gap if np.isfinite(gap) else None
