"""The one rule for right or wrong (B3), as it is for generated tokens; `trnready.verdict.arrays` is the same
for embeddings and latents. `trnready.check` hands over what the device and the CPU reported; the answer is
PASS only after every check here was made and held: what is missing counts as failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from trnready.run.report import Evidence, Report, Rows
from trnready.run.stack import DeviceKind
from trnready.script.task import NEW_TOKENS
from trnready.verdict.compare import Comparison, PerStep, compare, difference, rms, spread, without

Run = TypeVar("Run", bound=Evidence)

LIMIT = 3.0
"""Greatest score that passes. Right devices scored at most 2.5, wrong ones at least 3.3."""

FAR = 3 * LIMIT
MOST_FAR_STEPS = 1 / 8
"""Greatest share of steps whose ratio may lie above `FAR`. A router that tips the other way takes single
steps with it, and the twins of all architectures had none; a device that is wrong from some position on has
all that follow."""

MOST_NOISE = 1 / FAR
"""Greatest noise, as a share of the spread of the CPU's logits, that they may be measured with: above it, a
device that gives the same logit for every token would not be far from the CPU. Trained models and twins have
0.01 to 0.05."""

FLOAT32_LIMIT = 1e-4
"""Greatest rms(device - CPU) / rms(CPU) of a float32 model on software cores, at any step."""

MOST_OF_SPREAD = 1 / 100
"""Greatest share of the spread of the CPU's logits that `FLOAT32_LIMIT` may come to. Logits that have almost
everything in common make it larger, until a device that leaves out a layer keeps within it."""

DISTINCT_TOKENS = 8
"""A text of fewer different tokens says little about a model."""

GRAPHS_OF_A_GENERATION = 2
"""Graphs that a generation of one shape may need: one for the prompt, one for each token after it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run was judged: the first four as in a row of the dataset, and the numbers behind them."""

    result: str
    reason: str
    error: str | None = None
    hint: str | None = None
    warnings: tuple[str, ...] = ()
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """The CPU's runs on the device's tokens: `same` in the device's dtype, `other` in the dtype that the
    noise is measured against; None where the rule needs none."""

    same: Report
    other: Report | None


def noise_dtype(dtype: str, kind: DeviceKind) -> str | None:
    """Give the dtype of the second CPU run, against which rounding noise is measured.

    Trainium multiplies float32 at about bfloat16's precision; software cores compute float32 as the CPU does,
    so that a fixed share of the logits is the measure and no second run is needed.
    """
    if dtype != "float32":
        return "float32"
    return "bfloat16" if kind == "hardware" else None


def is_degenerate(report: Report) -> bool:
    """Say whether the text is a mere repetition, of which any two devices may agree by chance."""
    return len(set(report.tokens)) < DISTINCT_TOKENS


def recompiles(report: Evidence, most: int = GRAPHS_OF_A_GENERATION) -> int | None:
    """Give how many graphs were compiled beyond the `most` that one shape needs; None where it is not
    counted."""
    if report.graphs is None or report.graphs_first_call is None:
        return None
    first, all_of_them = len(report.graphs_first_call), len(report.graphs)
    # Cores that did not compile alike: the one with the most counts.
    all_of_them = max(all_of_them, *(report.graphs_per_core or (0,)))
    return max(all_of_them - first, 0) + max(first - most, 0)


def warnings_of(report: Evidence) -> tuple[str, ...]:
    """Give what was not quite right, by the names of the dataset."""
    found = (
        ("not_compiled", _is_not_compiled(report)),
        ("fallback_ops", bool(report.fallback_ops)),
        ("graph_breaks", bool(report.graph_breaks)),
        ("degenerate_text", isinstance(report, Report) and is_degenerate(report)),
    )
    return tuple(name for name, holds in found if holds)


def _is_not_compiled(report: Evidence) -> bool:
    if report.graphs is None:
        return False
    return not report.compiled_graphs or 0 in (report.graphs_per_core or ())


def without_reference(device: Report, kind: DeviceKind, steps: int = NEW_TOKENS) -> Verdict | None:
    """Judge what needs no CPU run of a generation of so many steps: None when only the comparison with the
    CPU is left to be made."""
    flaw = _flaw(device, steps)
    if flaw is not None:
        return does_not_hold_together(flaw)
    return without_evidence(device, kind)


def does_not_hold_together(flaw: str) -> Verdict:
    """Give the verdict on a report that contradicts itself."""
    return Verdict("FAIL", "error", f"The report of the device's run does not hold together: {flaw}.")


def without_evidence(device: Evidence, kind: DeviceKind) -> Verdict | None:
    """Judge whether the device shows that it did the work; None when it does."""
    elsewhere = [name for name in device.parameter_devices if name.partition(":")[0] != "neuron"]
    if elsewhere or not device.parameter_devices:
        return Verdict(
            "FAIL",
            "runs_on_cpu",
            f"The model's parameters are on {', '.join(elsewhere) or 'no device'}, not on neuron.",
            'Pass device_map="neuron" to from_pretrained(); "auto" loads on the CPU with Accelerate 1.15.',
        )
    if device.peak_bytes is not None and sum(device.peak_bytes) < device.parameter_bytes:
        return Verdict(
            "FAIL",
            "runs_on_cpu",
            f"The cores held at most {sum(device.peak_bytes)} bytes, less than the parameters' "
            f"{device.parameter_bytes}: the weights never were on them.",
        )
    unshared = _not_shared(device)
    if unshared is not None:
        return Verdict("FAIL", "shard_error", unshared)
    missing = _missing_counters(device, kind)
    if missing:
        return Verdict(
            "FAIL",
            "error",
            f"The device does not say {' and '.join(missing)}, so nothing shows that it did the work.",
            "Switch the device's counters on.",
        )
    return None


def _not_shared(device: Evidence) -> str | None:
    """Say why the model was not shared out over the cores of the run, or None."""
    if device.cores == 1:
        return None
    shares = device.parameter_bytes_per_core
    if shares is None or len(shares) != device.cores:
        return f"The report does not say what each of the {device.cores} cores holds."
    if min(shares) == 0:
        return f"Core {shares.index(0)} holds no part of the model."
    if device.peak_bytes is None:
        return None
    if len(device.peak_bytes) != device.cores:
        return f"{len(device.peak_bytes)} cores held memory, where {device.cores} should."
    for core, (peak, share) in enumerate(zip(device.peak_bytes, shares, strict=True)):
        if peak < share:
            return f"Core {core} held at most {peak} bytes, less than its share of the model, {share}."
    return None


def decide(device: Report, reference: Reference | None, kind: DeviceKind, steps: int = NEW_TOKENS) -> Verdict:
    """Judge a device's run of so many steps. `reference` is None when the CPU could not run the model."""
    early = without_reference(device, kind, steps)
    if early is not None:
        return early
    bad = non_finite(device, None if reference is None else reference.same)
    if bad is not None:
        return bad
    if reference is None:
        return Verdict("SKIPPED", "reference_failed", "The CPU could not run the model, so nothing is known.")
    flaw = reference_flaw(device, reference.same, reference.other, kind, partial(_differs, device))
    if flaw is not None:
        return incomparable(flaw)
    noise = _noise(reference)
    drowned = drowned_by(noise, reference.same.logits, reference.other is None)
    if drowned is not None:
        return wrong_by_itself(device) or incomparable(drowned)
    comparison = compare(device.logits, reference.same.logits, noise, device.tokens, device.end_tokens)
    return _compared(device, comparison, kind, reference.other is None)


def wrong_by_itself(device: Report) -> Verdict | None:
    """Judge what shows without anything to measure the numbers by; None when it is right."""
    warnings = warnings_of(device)
    if device.first_call_tokens != device.tokens:
        return Verdict("FAIL", "mismatch", REPEATS_OTHERWISE, None, warnings)
    return compiled_again(device, GRAPHS_OF_A_GENERATION)


def compiled_again(device: Evidence, most: int, comparison: Comparison | None = None) -> Verdict | None:
    """Judge whether graphs were compiled beyond the `most` that one shape needs; None when they were not."""
    again = recompiles(device, most)
    if again == 0:
        return None
    return Verdict(
        "FAIL", "recompiles", recompiles_error(device, most), STATIC, warnings_of(device), comparison
    )


def incomparable(flaw: str) -> Verdict:
    """Give the verdict where the CPU's runs are no measure."""
    return Verdict("SKIPPED", "reference_failed", f"The CPU's run cannot be compared: {flaw}.")


def drowned_by(noise: PerStep, values: Rows, fixed_share: bool) -> str | None:
    """Say that the CPU's numbers hardly stand out from their own rounding noise, or from the `fixed_share` of
    their size that takes its place in float32; None when they do."""
    widths = spread(values)
    if not np.median(widths) > 0:
        return "its numbers are all the same, of which any device may have as many"
    share = float(np.median(np.divide(noise, widths, out=np.full_like(noise, np.inf), where=widths > 0)))
    if fixed_share:
        allowed = LIMIT * share
        if allowed <= MOST_OF_SPREAD:
            return None
        return (
            f"what float32 allows, {FLOAT32_LIMIT:.0e} of their size, is {allowed:.2g} of what tells its "
            f"numbers from each other, which hides too much (at most {MOST_OF_SPREAD:.2g})"
        )
    if share <= MOST_NOISE:
        return None
    return (
        f"its rounding noise is {share:.2g} of what tells its numbers from each other, so that a device that "
        f"computes nothing could come as near (at most {MOST_NOISE:.2g})"
    )


def _compared(device: Report, comparison: Comparison, kind: DeviceKind, fixed_share: bool) -> Verdict:
    warnings = warnings_of(device)
    wrong = _mismatch(device, comparison, kind, fixed_share)
    if wrong is not None:
        return Verdict("FAIL", "mismatch", wrong, None, warnings, comparison)
    again = compiled_again(device, GRAPHS_OF_A_GENERATION, comparison)
    if again is not None:
        return again
    reason = "match" if comparison.first_divergence is None else "match_within_noise"
    return Verdict("PASS", reason, None, None, warnings, comparison)


def _mismatch(device: Report, comparison: Comparison, kind: DeviceKind, fixed_share: bool) -> str | None:
    """Say what is wrong with the numbers, or None. Written so that a NaN anywhere is wrong."""
    if device.first_call_tokens != device.tokens:
        return REPEATS_OTHERWISE
    # Shares of a sum are rounded before they are added up.
    if kind == "software" and device.cores == 1 and device.ran_eagerly and not comparison.bit_equal:
        return (
            "Run operator by operator, software cores give the CPU's logits bit for bit; these differ "
            f"(score {comparison.score:.3g})."
        )
    if fixed_share:
        if not comparison.worst <= LIMIT:
            share = comparison.worst / LIMIT * FLOAT32_LIMIT
            return f"The logits are off by {share:.1e} of their size; float32 allows {FLOAT32_LIMIT:.0e}."
    elif not comparison.score <= LIMIT:
        return (
            f"The logits are {comparison.score:.3g} times the model's rounding noise away from the CPU's "
            f"(median of {len(comparison.ratios)} steps); at most {LIMIT:g} times is rounding."
        )
    far = sum(not each <= FAR for each in comparison.ratios)
    if far > MOST_FAR_STEPS * len(comparison.ratios):
        return (
            f"The logits of {far} of {len(comparison.ratios)} steps are more than {FAR:g} times the model's "
            f"rounding noise away from the CPU's (median {comparison.score:.3g}); so many are no accident."
        )
    return None


REPEATS_OTHERWISE = "Two generations from the same prompt gave different tokens."
STATIC = (
    "run.py keeps its shapes fixed, so something else makes more graphs: `softneuron explain run.py` names "
    "it (on Trainium, TORCH_LOGS=recompiles,graph_breaks does)."
)


def recompiles_error(device: Evidence, most: int) -> str:
    """Say how many graphs were compiled, and how many one shape needs."""
    first = len(device.graphs_first_call or ())
    later = len(device.graphs or ()) - first
    breaks = f"; graph breaks: {device.graph_breaks}" if device.graph_breaks else ""
    return (
        f"The first call compiled {first} graphs (a fixed shape needs at most "
        f"{most}), a second one of the same shape {later} more{breaks}."
    )


def non_finite(device: Report, same: Report | None) -> Verdict | None:
    """Judge logits that are NaN or infinite, by the CPU's in the same dtype if there are any; None where none
    are."""
    if np.isfinite(device.logits).all():
        return None
    step, token = (int(index) for index in np.argwhere(~np.isfinite(device.logits))[0])
    if same is not None and not np.isfinite(same.logits[: step + 1]).all():
        return not_finite_either("logits")
    bad = int((~np.isfinite(device.logits)).sum())
    return Verdict(
        "FAIL",
        "non_finite",
        f"{bad} logits are NaN or infinite, the first at step {step}, token {token}.",
        None,
        warnings_of(device),
    )


def not_finite_either(what: str) -> Verdict:
    """Give the verdict on numbers that the CPU cannot compute either, no later than the device."""
    return Verdict(
        "SKIPPED",
        "reference_failed",
        f"The CPU's {what} are NaN or infinite as well, and no later.",
        "Suspect the checkpoint or its dtype, not the device; try --dtype float32.",
    )


def _noise(reference: Reference) -> PerStep:
    if reference.other is None:
        return rms(reference.same.logits) * (FLOAT32_LIMIT / LIMIT)
    return difference(reference.same.logits, reference.other.logits)


def _missing_counters(device: Evidence, kind: DeviceKind) -> list[str]:
    graphs_known = device.graphs is not None and device.graphs_first_call is not None
    every_core_known = device.cores == 1 or device.graphs_per_core is not None
    needed = [("which graphs it compiled", graphs_known and every_core_known)]
    if kind == "software":
        needed += [
            ("which operators fell back to the host", device.fallback_ops is not None),
            ("how much memory its cores held", device.peak_bytes is not None),
        ]
    return [what for what, known in needed if not known]


def _flaw(report: Report, expected: int) -> str | None:
    """Say what is wrong with a run on its own terms, or None."""
    steps = len(report.tokens)
    if steps != expected:
        return f"{steps} tokens instead of {expected}"
    if report.logits.shape[0] != steps:
        return f"logits of {report.logits.shape[0]} steps for {steps} tokens"
    if len(report.step_s) != steps or report.later_call_s is None:
        return "the second generation was not timed"
    if not report.input_tokens:
        return "the prompt has no tokens"
    if max(report.tokens) >= report.logits.shape[1]:
        return "a token beyond the vocabulary of the logits"
    if set(report.tokens) & set(report.end_tokens):
        return "an end token that should have been held back"
    if graphs_vanished(report):
        return "fewer graphs after the second generation than after the first"
    finite = np.isfinite(report.logits).all(axis=-1)
    allowed = without(report.logits, report.end_tokens)
    chosen = allowed[np.arange(steps), list(report.tokens)]
    # Among equal logits the device may take any; steps with NaN are judged as non_finite.
    if not (chosen == allowed.max(axis=-1))[finite].all():
        return "a token that is not the one of the largest logit"
    return None


def graphs_vanished(report: Evidence) -> bool:
    """Say whether a report counts fewer graphs at its end than at its first call."""
    if report.graphs is None or report.graphs_first_call is None:
        return False
    return len(report.graphs) < len(report.graphs_first_call)


def reference_flaw(
    device: Run, same: Run, other: Run | None, kind: DeviceKind, differs: Callable[[Run], str | None]
) -> str | None:
    """Say why the CPU's runs, `same` in the device's dtype and `other` in the one that noise is measured
    against, are no measure for the device's, or None. `differs` says how one of them does not answer what
    the device was asked."""
    if same.dtypes != device.dtypes:
        return f"it loaded the model as {', '.join(same.dtypes)}, the device as {', '.join(device.dtypes)}"
    if other is None and (kind == "hardware" or "float32" not in same.dtypes or len(same.dtypes) > 1):
        return "the run that rounding noise is measured against is missing"
    for run in (same, other):
        if run is None:
            continue
        if run.parameter_devices != ("cpu",):
            return f"its parameters are on {', '.join(run.parameter_devices) or 'no device'}"
        flaw = differs(run)
        if flaw is not None:
            return flaw
    if other is not None and other.dtypes == same.dtypes:
        return "both of its runs were in the same dtype"
    return None


def _differs(device: Report, run: Report) -> str | None:
    """Say how a generation on the CPU is not the one that the device made, or None."""
    if run.input_tokens != device.input_tokens:
        return "it read the prompt as other tokens"
    if run.tokens != device.tokens:
        return "it was not fed the device's tokens"
    if run.end_tokens != device.end_tokens:
        return "it held back other end tokens"
    if run.logits.shape != device.logits.shape:
        return f"its logits have the shape {run.logits.shape}, the device's {device.logits.shape}"
    if not np.isfinite(run.logits).all():
        return "its logits are not finite"
    return None
