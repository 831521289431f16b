"""The verdict on a sharded run that the CPU cannot repeat: all that needs no reference must hold, and the
judge must find the text sound. `trnready.check` calls it when the reference would exceed its memory limit."""

from __future__ import annotations

from pathlib import Path

from trnready.run.report import Report
from trnready.run.stack import DeviceKind
from trnready.script.task import NEW_TOKENS
from trnready.verdict import rule
from trnready.verdict.judge import Judgement, NoJudge, judge_text
from trnready.verdict.rule import Verdict


def decide(
    device: Report, kind: DeviceKind, steps: int = NEW_TOKENS, folder: Path | None = None
) -> tuple[Verdict, Judgement | None]:
    """Judge a device's run of so many steps by its text alone; the judgement is None when it never came to
    that. `folder` holds the judge's model; without it the run is SKIPPED as `reference_failed`."""
    early = rule.without_reference(device, kind, steps)
    if early is not None:
        return early, None
    wrong = rule.non_finite(device, None) or rule.wrong_by_itself(device)
    if wrong is not None:
        return wrong, None
    warnings = rule.warnings_of(device)
    try:
        judgement = judge_text(device.text, folder)
    except NoJudge as missing:
        hint = "Fetch the judge's model and run `trnready repeat`."
        why = f"The CPU cannot hold the model, and {missing}."
        return Verdict("SKIPPED", "reference_failed", why, hint), None
    if judgement.sound:
        return Verdict("PASS", "judged", None, None, warnings), judgement
    error = f"The text is no sound English: {judgement.because}."
    return Verdict("FAIL", "garbled_text", error, None, warnings), judgement
