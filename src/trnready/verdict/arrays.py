"""The rule of `trnready.verdict.rule` for tasks that choose no tokens: embeddings of sentences, and the
latents of a diffusion pipeline with its image. `trnready.check` hands over what the device and the CPU
reported."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from trnready.run.report import ARRAYS, ArrayReport, Rows
from trnready.run.stack import DeviceKind
from trnready.script.task import Output
from trnready.verdict.compare import Comparison, PerStep, bit_equal, difference, ratios, rms
from trnready.verdict.rule import (
    FLOAT32_LIMIT,
    LIMIT,
    Verdict,
    compiled_again,
    does_not_hold_together,
    drowned_by,
    graphs_vanished,
    incomparable,
    not_finite_either,
    reference_flaw,
    warnings_of,
    without_evidence,
)

ROWS: dict[str, str] = {"embeddings": "sentence", "latents": "step", "image": "image"}
"""What a row of each array is."""

COLOURS = 255
"""Steps of a colour in an image file."""


REPEATS_OTHERWISE = "Two calls with the same input gave different numbers."


@dataclass(frozen=True, slots=True)
class ArrayReference:
    """The CPU's runs: `same` in the device's dtype, `other` in the dtype that the noise is measured against;
    None where the rule needs none."""

    same: ArrayReport
    other: ArrayReport | None


def without_reference(device: ArrayReport, output: Output, kind: DeviceKind) -> Verdict | None:
    """Judge what needs no CPU run: None when only the comparison with the CPU is left to be made."""
    flaw = _flaw(device, output)
    if flaw is not None:
        return does_not_hold_together(flaw)
    return without_evidence(device, kind)


def decide(
    device: ArrayReport, reference: ArrayReference | None, output: Output, kind: DeviceKind, graphs: int
) -> Verdict:
    """Judge a device's run, of which one shape may need so many `graphs`. `reference` is None when the CPU
    could not run the model."""
    early = without_reference(device, output, kind)
    if early is not None:
        return early
    not_finite = non_finite(device, None if reference is None else reference.same)
    if not_finite is not None:
        return not_finite
    if reference is None:
        return Verdict("SKIPPED", "reference_failed", "The CPU could not run the model, so nothing is known.")
    flaw = reference_flaw(device, reference.same, reference.other, kind, partial(_differs, device))
    if flaw is not None:
        return incomparable(flaw)
    noise = {name: _noise(name, reference) for name in ARRAYS[output]}
    for name, each in noise.items():
        drowned = drowned_by(each, reference.same.arrays[name], reference.other is None)
        if drowned is not None:
            return _wrong_by_itself(device, graphs) or incomparable(f"of the {name}, {drowned}")
    main, *others = (_compare(name, device, reference, each) for name, each in noise.items())
    wrong = _mismatch(device, reference, (main, *others), kind)
    warnings = warnings_of(device)
    if wrong is not None:
        return Verdict("FAIL", "mismatch", wrong, None, warnings, main.comparison)
    again = compiled_again(device, graphs, main.comparison)
    if again is not None:
        return again
    reason = "match" if _alike(device, reference, output) else "match_within_noise"
    return Verdict("PASS", reason, None, None, warnings, main.comparison)


def _wrong_by_itself(device: ArrayReport, graphs: int) -> Verdict | None:
    if not device.repeats:
        return Verdict("FAIL", "mismatch", REPEATS_OTHERWISE, None, warnings_of(device))
    return compiled_again(device, graphs)


@dataclass(frozen=True, slots=True)
class _Compared:
    name: str
    comparison: Comparison


def _compare(name: str, device: ArrayReport, reference: ArrayReference, noise: PerStep) -> _Compared:
    ours, same = device.arrays[name], reference.same.arrays[name]
    per_row = ratios(difference(ours, same), noise)
    comparison = Comparison(
        score=float(np.median(per_row)),
        worst=float(np.max(per_row)),
        ratios=tuple(float(each) for each in per_row),
        noise=float(np.median(noise)),
        bit_equal=bit_equal(ours, same),
        tokens_reference=(),
        first_divergence=None,
        margin=None,
    )
    return _Compared(name, comparison)


def _noise(name: str, reference: ArrayReference) -> PerStep:
    same = reference.same.arrays[name]
    if reference.other is None:
        return rms(same) * (FLOAT32_LIMIT / LIMIT)
    return difference(same, reference.other.arrays[name])


def _mismatch(
    device: ArrayReport, reference: ArrayReference, compared: tuple[_Compared, ...], kind: DeviceKind
) -> str | None:
    """Say what is wrong with the numbers, or None. Written so that a NaN anywhere is wrong."""
    if not device.repeats:
        return REPEATS_OTHERWISE
    eager = kind == "software" and device.ran_eagerly
    for name, numbers in ((each.name, each.comparison) for each in compared):
        if eager and not numbers.bit_equal:
            return (
                f"Run operator by operator, software cores give the CPU's {name} bit for bit; these differ "
                f"(score {numbers.score:.3g})."
            )
        if not numbers.worst <= LIMIT:
            row = int(np.argmax(numbers.ratios))
            if reference.other is None:
                share = numbers.worst / LIMIT * FLOAT32_LIMIT
                return f"The {name} are off by {share:.1e} of their size; float32 allows {FLOAT32_LIMIT:.0e}."
            return (
                f"The {name} are up to {numbers.worst:.3g} times the model's rounding noise away from the "
                f"CPU's ({ROWS[name]} {row}); at most {LIMIT:g} times is rounding."
            )
    return None


def _alike(device: ArrayReport, reference: ArrayReference, output: Output) -> bool:
    """Say whether a person would see the same: sentences in the same order of likeness to the first, or the
    same image in 8 bits a colour."""
    if output == "embeddings":
        ours, theirs = (each.arrays["embeddings"] for each in (device, reference.same))
        return bool((np.argsort(likeness(ours)) == np.argsort(likeness(theirs))).all())
    ours, theirs = (np.rint(each.arrays["image"] * COLOURS) for each in (device, reference.same))
    return bool((ours == theirs).all())


def likeness(embeddings: Rows) -> npt.NDArray[np.float64]:
    """Give the cosine between the first embedding and each of the others."""
    wide = embeddings.astype(np.float64)
    norms = np.linalg.norm(wide, axis=-1)
    return np.asarray((wide[1:] @ wide[0]) / (norms[1:] * norms[0]))


def non_finite(device: ArrayReport, same: ArrayReport | None) -> Verdict | None:
    """Judge numbers that are NaN or infinite, by the CPU's in the same dtype if there are any; None where
    none are."""
    for name, rows in device.arrays.items():
        bad = ~np.isfinite(rows)
        if not bad.any():
            continue
        row = int(np.argwhere(bad)[0][0])
        if same is not None and not np.isfinite(same.arrays[name][: row + 1]).all():
            return not_finite_either(name)
        return Verdict(
            "FAIL",
            "non_finite",
            f"{int(bad.sum())} numbers of the {name} are NaN or infinite, the first in {ROWS[name]} {row}.",
            None,
            warnings_of(device),
        )
    return None


def _flaw(report: ArrayReport, output: Output) -> str | None:
    """Say what is wrong with a run on its own terms, or None."""
    for name in ARRAYS[output]:
        rows = report.arrays[name]
        if rows.size == 0:
            return f"it holds no {name}"
    if not report.arrays[ARRAYS[output][0]].any():
        return f"all {ARRAYS[output][0]} are zero"
    if output == "embeddings" and len(report.arrays["embeddings"]) < 2:
        return "one sentence alone has nothing to be like"
    if report.later_call_s is None:
        return "the second call was not timed"
    if graphs_vanished(report):
        return "fewer graphs after the second call than after the first"
    return None


def _differs(device: ArrayReport, run: ArrayReport) -> str | None:
    """Say how the arrays of a run on the CPU cannot be laid beside the device's, or None."""
    for name, rows in run.arrays.items():
        if rows.shape != device.arrays[name].shape:
            return f"its {name} have the shape {rows.shape}, the device's {device.arrays[name].shape}"
        if not np.isfinite(rows).all():
            return f"its {name} are not finite"
    return None
