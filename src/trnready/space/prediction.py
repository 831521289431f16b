"""What is said of a model that was never tested: what its architecture's twin did, how many cores its size
asks for, and its plan where its configuration is known. Lists and pages mark it as a prediction."""

from __future__ import annotations

from dataclasses import dataclass

from trnready.plan import known_plans
from trnready.plan.twin_row import TwinRow
from trnready.results import meanings, units
from trnready.space import plan_view
from trnready.space.ask import Entry, Prediction
from trnready.space.plain import plain

LIKELY = "likely"
UNLIKELY = "unlikely"
OPEN = "open"


@dataclass(frozen=True, slots=True)
class Foretold:
    """A prediction in a few words for a list. `kind` is `likely` to run, `unlikely`, or `open`."""

    kind: str
    words: str
    cores: str | None


@dataclass(frozen=True, slots=True)
class Fact:
    """One ground of a prediction: what it rests on, and what it says."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class UntestedPage:
    """Everything on the page of a model without a result."""

    entry: Entry
    kind: str
    sentence: str
    grounds: list[Fact]
    facts: list[Fact]
    plan: plan_view.PlanView | None
    command: str
    predict: str


def foretell(prediction: Prediction | None) -> Foretold | None:
    """Give the prediction in a few words; None when nothing is known."""
    if prediction is None:
        return None
    cores = None if prediction.cores is None else units.count(prediction.cores, "core")
    if prediction.too_large:
        return Foretold(UNLIKELY, "too large", None)
    twin = prediction.twin
    if twin is None:
        return Foretold(OPEN, "size alone" if cores else "architecture not known", cores)
    if prediction.quantized is not None:
        return Foretold(OPEN, "quantized, its twin is not", cores)
    if twin.result == "PASS":
        return Foretold(
            LIKELY if twin.counts else OPEN, "twin passed" if twin.counts else "twin says little", cores
        )
    if twin.result == "FAIL":
        return Foretold(UNLIKELY, f"twin: {twin.reason.replace('_', ' ')}", cores)
    return Foretold(OPEN, "twin not judged", cores)


def untested_page(entry: Entry) -> UntestedPage:
    """Give the page of a model that was never tested."""
    known = known_plans.find(entry.model_id)
    plan = None if known is None else plan_view.from_json(known)
    kind, sentence = _verdict(entry.prediction, plan)
    task = "" if entry.task == "text-generation" else f" --task {entry.task}"
    return UntestedPage(
        entry=entry,
        kind=kind,
        sentence=sentence,
        grounds=_grounds(entry.prediction, plan),
        facts=_facts(entry),
        plan=plan,
        command=f"trnready check {plain(entry.model_id)}{plain(task)}",
        predict=f"trnready predict {plain(entry.model_id)}",
    )


def _verdict(prediction: Prediction | None, plan: plan_view.PlanView | None) -> tuple[str, str]:
    if plan is not None and plan.refused:
        return UNLIKELY, f"It would be left out of a test. {plain(plan.sentence)}"
    if plan is None and prediction is not None and prediction.too_large:
        return UNLIKELY, "It would be left out of a test: its parameters do not fit on 16 cores."
    twin = None if prediction is None else prediction.twin
    where = _where(prediction, plan)
    if twin is None:
        return OPEN, f"Whether it runs cannot be said: no twin of its architecture was run.{where}"
    quantized = None if prediction is None else prediction.quantized
    if quantized is not None and plan is None:
        return OPEN, (
            f"Whether it runs cannot be said: by its name it is quantized ({quantized}), and a twin is "
            f"not.{where}"
        )
    match twin.result:
        case "PASS" if twin.counts:
            return LIKELY, f"It would probably run: a twin of its architecture ran right.{where}"
        case "PASS":
            return OPEN, f"It may run: a twin of its architecture passed, but that proves little.{where}"
        case "FAIL":
            meaning = meanings.REASONS.get(twin.reason, "")
            return UNLIKELY, f"It would probably fail, as a twin of its architecture does. {meaning}"
    return OPEN, f"Whether it runs cannot be said: a twin of its architecture could not be judged.{where}"


def _where(prediction: Prediction | None, plan: plan_view.PlanView | None) -> str:
    if plan is not None:
        return f" Its plan: {plain(plan.sentence)}"
    if prediction is None or prediction.cores is None:
        return ""
    on = f" of {prediction.instance}" if prediction.instance else ""
    return f" By its size it needs {units.count(prediction.cores, 'core')}{on}."


def _grounds(prediction: Prediction | None, plan: plan_view.PlanView | None) -> list[Fact]:
    grounds = []
    if prediction is not None:
        grounds.append(Fact("Its architecture's twin", _twin(prediction)))
        if prediction.split_twin is not None:
            grounds.append(Fact("Its twin split over cores", _said(prediction.split_twin)))
        if prediction.quantized is not None:
            grounds.append(Fact("Its quantization", _quantized(prediction.quantized)))
        grounds.append(Fact("Its size", _size(prediction)))
    if plan is None:
        grounds.append(
            Fact(
                "Its plan",
                "Not known: its configuration is not among those that trnready carries. The prediction "
                "command asks the Hub.",
            )
        )
    return grounds


def _twin(prediction: Prediction) -> str:
    twin = prediction.twin
    if twin is None:
        name = prediction.model_type
        return f"None was run of {plain(name)}." if name else "Its architecture is not known here."
    return _said(twin)


def _said(twin: TwinRow) -> str:
    named = f"A twin of {plain(twin.model_type)}"
    if twin.parameters is not None:
        named += f" with {twin.parameters:,} random weights"
    where = f"on {units.count(twin.cores, 'software core')}{_level(twin)}"
    if twin.result == "PASS":
        score = (
            ""
            if twin.score is None
            else f" with a score of {twin.score:.2g}; up to {meanings.THRESHOLD:g} passes"
        )
        said = f"{named} passed {where}{score}."
        if twin.counts:
            parts = "" if twin.parts is None else f" any of its {twin.parts} parts,"
            return f"{said} Had it lost{parts or ' any part,'} it would have failed."
        lost = ", ".join(twin.blind[:3]) or "some part, which could not be tried"
        return f"{said} It proves little, since it would not have noticed the loss of {plain(lost)}."
    ended = "failed" if twin.result == "FAIL" else "was not judged"
    error = f" {plain(twin.error)}" if twin.error else ""
    control = f" {plain(twin.control)}" if twin.control else ""
    if control and not error.endswith("."):
        error = error.rstrip(": ") + "."
    return f"{named} {ended} {where}: {twin.reason.replace('_', ' ')}.{error}{control}"


def _quantized(kind: str) -> str:
    return (
        f"Its name tells of {kind}; whether that loads was not tried. FP8 and MXFP4 checkpoints are "
        "dequantized while loading, other kinds are left out of tests."
    )


def _level(twin: TwinRow) -> str:
    return ", graphs run as they are (-O0)" if twin.level == "-O0" else ", graphs compiled (-O1)"


def _size(prediction: Prediction) -> str:
    if prediction.parameters is None:
        return "Its number of parameters is not known here."
    needs = f"{units.short(prediction.parameters)} parameters"
    if prediction.weight_bytes is not None:
        needs += f" take {units.size(prediction.weight_bytes)} in bfloat16"
    if prediction.too_large:
        return f"{needs}, more than the 16 cores of a test hold."
    if prediction.cores is None:
        return f"{needs}."
    on = f" of {prediction.instance}" if prediction.instance else ""
    hold = "holds" if prediction.cores == 1 else "hold"
    return f"{needs}; {units.count(prediction.cores, 'core')}{on} {hold} them, if it can be split."


def _facts(entry: Entry) -> list[Fact]:
    known = [
        ("Task", entry.task),
        ("Architecture", entry.model_type),
        ("Parameters", None if entry.parameters is None else units.short(entry.parameters)),
        ("Downloads in 30 days", None if entry.downloads is None else f"{entry.downloads:,}"),
        ("Place by downloads", None if entry.downloads_position is None else f"{entry.downloads_position:,}"),
        ("Place by trend", None if entry.trending_position is None else f"{entry.trending_position:,}"),
        ("Likes", None if entry.likes is None else f"{entry.likes:,}"),
        ("Licence", entry.license),
        ("Gated", entry.gated),
        ("Created", entry.created),
    ]
    return [Fact(name, plain(value)) for name, value in known if value]
