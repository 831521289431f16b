"""The commands `trnready plan` and `trnready predict`: how many cores, split how, and would it run at all."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trnready.console import output
from trnready.hub.checkpoint import NotTestable
from trnready.hub.description import describe
from trnready.plan import trainium
from trnready.plan.planner import TEST_TOKENS, Plan, Size
from trnready.plan.predict import Prediction, Settings, predict
from trnready.progress import stopped_by_signals, watching
from trnready.results.units import size as in_words

SKIPPED = 2
INTERRUPTED = 130
EXIT_STATUS = {"PASS": 0, "FAIL": 1, "SKIPPED": SKIPPED}
COLOURS = {"PASS": "bold green", "FAIL": "bold red", "SKIPPED": "bold yellow"}


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command("plan")
    def command(
        model: Annotated[str, typer.Argument(help="A checkpoint's folder, or a model's id on the Hub.")],
        instance: Annotated[
            str | None,
            typer.Option(help="EC2 instance to plan for; by default the smallest trn2 that will do."),
        ] = None,
        max_cores: Annotated[
            int, typer.Option(min=1, help="Most NeuronCores to use, 1 to 16.")
        ] = trainium.MOST_CORES,
        cores: Annotated[int | None, typer.Option(help="Ask about this number of NeuronCores alone.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
        hub: Annotated[
            bool, typer.Option("--hub", help="Ask the Hub even for a model that trnready carries.")
        ] = False,
    ) -> None:
        """Say how many NeuronCores a model needs and how it is split, from its configuration alone.

        No weights are downloaded. Models that trnready carries are planned offline.

        Exit status: 0 it has a plan, 2 it cannot be run or nothing is known of it.

        Example: trnready plan Qwen/Qwen3-30B-A3B
        """
        # PyTorch takes seconds to import, and the other commands do without it.
        from trnready.plan.read import plan as make_plan

        where = trainium.machine(instance, max_cores)
        if cores is not None:
            trainium.check_size(cores, where)
            where = trainium.Machine((cores,), where.bytes_per_core, where.instance)
        try:
            found = make_plan(describe(model, ask_hub=hub), where)
        except NotTestable as refusal:
            _show_refusal(refusal, as_json=as_json)
            raise typer.Exit(SKIPPED) from None
        if as_json:
            typer.echo(json.dumps(found.to_json(), indent=1, ensure_ascii=False))
        else:
            show(found, output())
        raise typer.Exit(0 if found.cores is not None else SKIPPED)

    @app.command("predict")
    def predict_command(
        model: Annotated[str, typer.Argument(help="A checkpoint's folder, or a model's id on the Hub.")],
        instance: Annotated[str | None, typer.Option(help="EC2 instance to plan for.")] = None,
        level: Annotated[
            int, typer.Option("-O", min=0, max=1, help="0 runs graphs as they are, 1 compiles them.")
        ] = 1,
        timeout: Annotated[float, typer.Option(min=1, help="Seconds that each twin may take.")] = 600.0,
        as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
        hub: Annotated[
            bool, typer.Option("--hub", help="Ask the Hub even for a model that trnready carries.")
        ] = False,
    ) -> None:
        """Predict how a test of a model would end, without its weights: its plan, and a twin that really
        runs.

        A twin has the model's architecture, shrunk, with random weights. It runs on one core of the neuron
        device, then on as many as the plan says, and is judged as a real model is. Takes up to a minute.

        Exit status: 0 PASS, 1 FAIL, 2 SKIPPED or nothing is known of it, 130 stopped.

        Example: trnready predict Qwen/Qwen3-0.6B -O0
        """
        from trnready.plan.read import auto_class_of
        from trnready.plan.read import plan as make_plan

        where = trainium.machine(instance, trainium.MOST_CORES)
        try:
            with stopped_by_signals(), watching(Console(stderr=True)) as watch:
                watch.stage("plan")
                described = describe(model, ask_hub=hub)
                plan = make_plan(described, where)
                settings = Settings(f"-O{level}", timeout)
                found = predict(described, plan, auto_class_of(described), settings, watch)
        except NotTestable as refusal:
            _show_refusal(refusal, as_json=as_json)
            raise typer.Exit(SKIPPED) from None
        except KeyboardInterrupt:
            typer.echo("trnready: stopped; nothing of the twin is left.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        if as_json:
            typer.echo(json.dumps(found.to_json(), indent=1, ensure_ascii=False))
        else:
            show_prediction(found, output())
        raise typer.Exit(EXIT_STATUS[found.result])


def show_prediction(found: Prediction, console: Console) -> None:
    """Print a prediction for people."""
    console.print(
        Text.assemble(
            (found.model_id, "bold"),
            ": predicted ",
            (found.result, COLOURS[found.result]),
            f" {found.reason}, from its configuration and a twin, not from its weights.",
        )
    )
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("plan", found.from_plan)
    table.add_row("twin", found.from_twin)
    twin = found.twin
    if twin is not None:
        if twin.kept:
            table.add_row("kept", "; ".join(twin.kept))
        if twin.cut:
            cut = ", ".join(f"{name} {old} to {new}" for name, (old, new) in sorted(twin.cut.items()))
            table.add_row("cut", cut)
        if twin.parts:
            least = "unknown" if twin.least_part is None else f"{float(twin.least_part):.3g}"
            table.add_row("sensitivity", f"{twin.parts} parts set to zero in turn; least score {least}")
        table.add_row("warnings", ", ".join(twin.warnings) or "none")
    split = found.split_twin
    if split is not None and split.held_bytes:
        most, planned = max(split.held_bytes), in_words(split.planned_bytes or 0)
        table.add_row("split", f"{split.cores} cores held {in_words(most)} each, at most; planned {planned}")
    console.print(table)


def _show_refusal(refusal: NotTestable, *, as_json: bool) -> None:
    if as_json:
        facts: dict[str, Any] = {
            "model_id": refusal.model_id,
            "revision": refusal.revision,
            "cores": None,
            "reason": refusal.reason,
            "because": str(refusal),
        }
        typer.echo(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        typer.echo(f"SKIPPED {refusal.reason}: {refusal}")


def show(plan: Plan, console: Console) -> None:
    """Print a plan for people: the answer first, then every number of cores with its bytes."""
    console.print(_answer(plan))
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("model", f"{plan.model_class} ({plan.model_type}), {plan.parameters:,} parameters")
    kept = f", stored as {plan.stored_as}" if plan.stored_as else ""
    facts.add_row("type", f"{plan.dtype}{kept}")
    facts.add_row("facts from", plan.source if plan.revision is None else f"{plan.source}, {plan.revision}")
    if plan.tied:
        facts.add_row("tied", ", ".join(plan.tied))
    if plan.distributed:
        arguments = ", ".join(f"{name}={value!r}" for name, value in plan.distributed.items())
        facts.add_row("load with", f"DistributedConfig({arguments})")
    if plan.next_cores:
        facts.add_row("if memory runs out", ", then ".join(f"{each} cores" for each in plan.next_cores))
    for note in plan.notes:
        facts.add_row("note", note)
    console.print(facts)
    console.print(_sizes(plan))
    console.print(
        Text(
            f"Cache for {TEST_TOKENS} tokens, one sequence. Activations are an allowance; weights decide.",
            "dim",
        )
    )


def _answer(plan: Plan) -> Text:
    if plan.cores is None:
        return Text.assemble(
            (plan.model_id, "bold"), " is not run: ", (str(plan.reason), "bold yellow"), f". {plan.because}"
        )
    cores = "1 core" if plan.cores == 1 else f"{plan.cores} cores"
    how = {"tp": ", tensor parallel", "ep": ", expert parallel"}.get(
        (plan.parallelism or "").partition("=")[0], ""
    )
    return Text.assemble(
        (plan.model_id, "bold"), " needs ", (cores, "bold green"), f" of {plan.instance}{how}."
    )


def _sizes(plan: Plan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("cores", "weights", "cache", "activations"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("of each core's " + in_words(plan.bytes_per_core), overflow="fold")
    for each in plan.sizes:
        table.add_row(
            str(each.cores),
            in_words(each.weight_bytes),
            in_words(each.cache_bytes),
            in_words(each.activation_bytes),
            _remark(each, plan),
            style="bold" if each.cores == plan.cores else "",
        )
    return table


def _remark(size: Size, plan: Plan) -> str:
    if size.why_not:
        return "; ".join(size.why_not)
    if not size.holds_all:
        return "holds the weights, but cache and activations may not fit beside them"
    return "this one" if size.cores == plan.cores else "fits"
