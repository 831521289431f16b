"""What a model's page says, worked out from a row: the verdict as a sentence, the two texts and where they
part, the numbers with their units. The template only lays it out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from trnready.plan import known_plans, trainium
from trnready.results import meanings, units
from trnready.results.row import Row
from trnready.space import addresses, charts, history, howto, plan_view, query
from trnready.space.plain import plain

LONGEST_MARK = 24
"""Letters of a word that are marked at most; some texts have no spaces at all."""
_FIRST_WORD = re.compile(rf"\s*\S{{0,{LONGEST_MARK}}}")

STACK = ("torch", "torch-neuronx", "torch_neuronx", "transformers", "accelerate", "python")
"""Packages that a reader looks for first; the others follow by name."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A number or word with its name; `known` is false when it was not reported."""

    name: str
    value: str
    known: bool = True


@dataclass(frozen=True, slots=True)
class Text:
    """A text cut where it parts from another: what they share, the first word that differs, the rest."""

    shared: str
    different: str
    rest: str


@dataclass(frozen=True, slots=True)
class CoreBar:
    """Peak memory of one core, and its share of the scale, from 0 to 100."""

    core: int
    size: str
    percent: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak memory of every core. The scale is the memory that a core has (`limit`), or where that is not
    known the fullest core."""

    bars: list[CoreBar]
    limit: str | None


@dataclass(frozen=True, slots=True)
class Explained:
    """A word from a fixed list and what it means."""

    word: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why the verdict is what it is."""

    score: str | None
    score_percent: float
    passes: bool
    facts: list[Fact]
    chart: charts.StepChart | None
    steps: list[str]
    device_text: Text | None
    reference_text: Text | None
    same_text: bool
    prompt: str | None
    judge: list[Fact]


@dataclass(frozen=True, slots=True)
class Failure:
    """Where it ended, why, and what to do."""

    stage: str
    stage_words: str
    reason: Explained
    error: str | None
    hint: str | None
    fingerprint: str | None
    log_tail: str | None
    same_url: str | None
    same_count: int


@dataclass(frozen=True, slots=True)
class ModelPage:
    """Everything on a model's page."""

    row: Row
    sentence: str
    warnings: list[Explained]
    numbers: list[Fact]
    work: list[Fact]
    fallback_ops: list[str]
    memory: Memory | None
    plan: plan_view.PlanView | None
    history: history.HistoryChart | None
    evidence: Evidence | None
    failure: Failure | None
    stack: list[Fact]
    how_to: howto.HowTo
    script: howto.Script | None
    run_py_url: str
    badge_url: str
    api_url: str
    others: list[Row]


def model_page(
    rows: Sequence[Row],
    run_id: str | None,
    *,
    public: howto.Bucket | None = None,
    same_failures: Callable[[str], int] = lambda _: 1,
) -> ModelPage | None:
    """Give the page of a model from its rows, best first: of the run asked for, or else of the first.

    `public` is the public cache of compiled graphs, if there is one; `same_failures` says how many rows of
    the dataset have a fingerprint. Gives None when there is no such run.
    """
    chosen = next((row for row in rows if run_id in (None, row.run_id)), None)
    if chosen is None:
        return None
    return ModelPage(
        row=chosen,
        sentence=sentence(chosen),
        warnings=[Explained(word, meanings.WARNINGS[word]) for word in chosen.warnings],
        numbers=_numbers(chosen),
        work=_work(chosen),
        fallback_ops=[plain(name) for name in chosen.fallback_ops or []],
        memory=_memory(chosen),
        plan=_plan(chosen),
        history=history.history(rows, chosen),
        evidence=_evidence(chosen),
        failure=_failure(chosen, same_failures),
        stack=_stack(chosen),
        how_to=howto.how_to(chosen, public),
        script=howto.script(chosen),
        run_py_url=script_url(chosen),
        badge_url=f"/badge/{query.quoted(chosen.model_id)}.svg",
        api_url=f"/api/v1/models/{query.quoted(chosen.model_id)}",
        others=[row for row in rows if row is not chosen],
    )


def script_url(row: Row) -> str:
    """Give the address of the script of one run."""
    page = query.model_url(row.model_id)
    if "?" in page:
        return page.replace("/models/?", "/models/run.py?") + f"&run={row.run_id}"
    return f"{page}/run.py?run={row.run_id}"


def sentence(row: Row) -> str:
    """Give the verdict in a sentence or two, naming the device it is about."""
    meaning = meanings.REASONS[row.reason]
    twin = " (a shrunk twin with random weights)" if row.checkpoint_kind == "twin" else ""
    match row.result:
        case "PASS":
            start = f"It runs{twin} on {device(row)}."
        case "FAIL":
            start = f"It does not run{twin} on {device(row)}: it ended while {meanings.STAGES[row.stage]}."
            if row.stage == "verify":
                start = f"It runs{twin} on {device(row)}, but it does not run right."
        case _:
            start = f"It was not judged{twin}: it ended while {meanings.STAGES[row.stage]}."
    return f"{start} {meaning}"


def device(row: Row) -> str:
    """Name the device of a row in words that cannot be mistaken for the other kind."""
    cores = row.neuron_cores
    if row.device_kind == "software":
        name = units.count(cores, "software core") if cores is not None else "software cores"
        model = f" modelled on {plain(row.instance)}" if row.instance else ""
        return f"{name}{model}, not on Trainium itself"
    name = units.count(cores, "Trainium core") if cores is not None else "Trainium"
    return f"{name} of {plain(row.instance)}" if row.instance else name


def when(time: datetime) -> str:
    """Give a day and time, UTC."""
    return f"{time:%Y-%m-%d %H:%M} UTC"


def texts(device_text: str, reference_text: str) -> tuple[Text, Text]:
    """Cut two texts where they part: before the word that holds the first difference."""
    same = 0
    for ours, theirs in zip(device_text, reference_text, strict=False):
        if ours != theirs:
            break
        same += 1
    if same < max(len(device_text), len(reference_text)):
        # Back to the start of the word, unless the text has no spaces and that is far away.
        start = same
        while start > 0 and not device_text[start - 1].isspace():
            start -= 1
        same = start if same - start <= LONGEST_MARK else same
    return _cut(device_text, same), _cut(reference_text, same)


def _cut(text: str, at: int) -> Text:
    word = _FIRST_WORD.match(text, at)
    end = word.end() if word else at
    return Text(text[:at], text[at:end], text[end:])


def _fact(name: str, value: str) -> Fact:
    return Fact(name, value, value != units.UNKNOWN)


def _numbers(row: Row) -> list[Fact]:
    return [
        _fact("Cores", units.count(row.neuron_cores, "core")),
        _fact("Wall time", units.seconds(row.wall_time_s)),
        _fact("Peak memory", units.size(row.peak_memory_bytes)),
        _fact("Speed", units.rate(row.tokens_per_s)),
        _fact("First token", units.seconds(row.first_token_s)),
        _fact("Loading", units.seconds(row.load_s)),
        _fact("Compiling", units.seconds(row.compile_s)),
        _fact("Loading graphs from the cache", units.seconds(row.compile_warm_s)),
    ]


def _work(row: Row) -> list[Fact]:
    fallbacks = None if row.fallback_ops is None else len(row.fallback_ops)
    return [
        _fact("Graphs compiled", units.count(row.graphs)),
        _fact("Recompiles", units.count(row.recompiles)),
        _fact("Graph breaks", units.count(row.graph_breaks)),
        _fact("Operators on the CPU", units.count(fallbacks)),
        _fact("Graphs from the NEFF cache", units.count(row.neff_hits)),
    ]


def _plan(row: Row) -> plan_view.PlanView | None:
    """Give the plan that the run recorded, or else the one of the model's known configuration, which is its
    own only on as many cores, or else the one word that a run on one core needs."""
    recorded = plan_view.from_text(row.plan)
    if recorded is not None:
        return recorded
    known = known_plans.find(row.model_id)
    if known is not None and row.checkpoint_kind == "real" and known["cores"] == row.neuron_cores:
        return plan_view.from_json(known)
    if row.result == "PASS" and row.neuron_cores == 1:
        return plan_view.ONE_CORE
    return None


def _memory(row: Row) -> Memory | None:
    if not row.bytes_per_core:
        return None
    limit = _core_bytes(row)
    fullest = max(1, *row.bytes_per_core)
    # A core may show more than the plan knew of; the bars then keep to the scale of the fullest.
    scale = fullest if limit is None or limit < fullest else limit
    bars = [
        CoreBar(core, units.size(value), round(100 * max(value, 0) / scale, 2))
        for core, value in enumerate(row.bytes_per_core)
    ]
    return Memory(bars, None if limit is None else units.size(limit))


def _core_bytes(row: Row) -> int | None:
    """Give the memory of one core of the instance that a row was run on, None where it is not known."""
    instance = trainium.INSTANCES.get(row.instance or "")
    return None if instance is None else instance.bytes_per_core


def _evidence(row: Row) -> Evidence | None:
    known = (row.score, row.score_steps, row.text, row.text_reference, row.judge)
    if all(value is None for value in known):
        return None
    ours = None if row.text is None else Text(plain(row.text), "", "")
    theirs = None if row.text_reference is None else Text(plain(row.text_reference), "", "")
    if ours and theirs:
        ours, theirs = texts(ours.shared, theirs.shared)
    return Evidence(
        score=None if row.score is None else charts.number(row.score),
        score_percent=_score_percent(row.score),
        passes=row.score is not None and row.score <= meanings.THRESHOLD,
        facts=_evidence_facts(row),
        chart=charts.step_chart(row.score_steps, meanings.THRESHOLD) if row.score_steps else None,
        steps=[charts.number(value) for value in row.score_steps or []],
        device_text=ours,
        reference_text=theirs,
        same_text=row.text is not None and row.text == row.text_reference,
        prompt=None if row.prompt is None else plain(row.prompt),
        judge=_judge(row),
    )


def _score_percent(score: float | None) -> float:
    """Give where a score lies on a scale on which the threshold is the middle."""
    if score is None or not score >= 0:
        return 0.0 if score is None else 100.0
    return round(min(100.0, 50.0 * score / meanings.THRESHOLD), 2)


def _evidence_facts(row: Row) -> list[Fact]:
    if row.first_divergence is not None:
        parts = f"at step {row.first_divergence}"
    elif row.tokens_device is not None and row.tokens_device == row.tokens_reference:
        parts = f"nowhere in {units.count(len(row.tokens_device), 'token')}"
    else:
        parts = units.UNKNOWN
    facts = [_fact("Tokens part", parts), _fact("Rounding noise", _logits(row.noise))]
    if row.first_divergence is not None:
        facts.insert(1, _fact("The CPU's margin there", _margin(row)))
    return facts


def _margin(row: Row) -> str:
    """Give the margin in logits and in units of the noise: whether rounding could turn it over."""
    words = _logits(row.margin_at_divergence)
    if row.margin_at_divergence is None or not row.noise:
        return words
    return f"{words}, {charts.number(row.margin_at_divergence / row.noise)} times the noise"


def _logits(value: float | None) -> str:
    return units.UNKNOWN if value is None else f"{charts.number(value)} logits"


def _judge(row: Row) -> list[Fact]:
    if row.judge is None:
        return []
    judge = row.judge
    return [
        Fact("Judge", plain(judge.model)),
        _fact("Perplexity", units.UNKNOWN if judge.perplexity is None else charts.number(judge.perplexity)),
        _fact("Repetition", units.UNKNOWN if judge.repetition is None else charts.number(judge.repetition)),
        _fact("Language", units.UNKNOWN if judge.language is None else plain(judge.language)),
    ]


def _failure(row: Row, same_failures: Callable[[str], int]) -> Failure | None:
    if row.result == "PASS":
        return None
    same = 0 if row.fingerprint is None else same_failures(row.fingerprint)
    return Failure(
        stage=row.stage,
        stage_words=meanings.STAGES[row.stage],
        reason=Explained(row.reason, meanings.REASONS[row.reason]),
        error=None if row.error is None else plain(row.error),
        hint=None if row.hint is None else plain(row.hint),
        fingerprint=None if row.fingerprint is None else plain(row.fingerprint),
        log_tail=None if row.log_tail is None else plain(row.log_tail),
        same_url=addresses.address("/failures", fingerprint=row.fingerprint) if row.fingerprint else None,
        same_count=same,
    )


def _stack(row: Row) -> list[Fact]:
    first = [name for name in STACK if name in row.versions]
    names = first + [name for name in row.versions if name not in first]
    return [
        Fact("neuronx-cc", plain(row.neuronx_cc)),
        *(Fact(plain(name), plain(row.versions[name])) for name in names if name != "neuronx-cc"),
    ]
