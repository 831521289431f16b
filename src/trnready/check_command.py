"""The command `trnready check`: its options, what it shows while it runs and at the end, its exit status."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trnready.check import Done, Request, check
from trnready.console import output
from trnready.progress import stopped_by_signals, watching
from trnready.results import dataset, journal
from trnready.results.row import Row
from trnready.run.memory import NoAmount, parse_size
from trnready.script.task import NEW_TOKENS, names
from trnready.verdict import judged

EXIT_STATUS = {"PASS": 0, "FAIL": 1, "SKIPPED": 2}
INTERRUPTED = 130
DEFAULT_TIMEOUT_S = 1800.0
COLOURS = {"PASS": "bold green", "FAIL": "bold red", "SKIPPED": "bold yellow"}


class Dtype(StrEnum):
    """Types that a model can be run in."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


class Device(StrEnum):
    """Where the script under test runs."""

    neuron = "neuron"
    cpu = "cpu"


class Parallelism(StrEnum):
    """How a model can be split over several cores."""

    tp = "tp"
    ep = "ep"


Timeout = Annotated[float, typer.Option(min=1, help="Seconds that each process running the model may take.")]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory of the host, such as 16GiB, that each process running the model may hold.",
    ),
]
Interpreter = Annotated[
    Path | None,
    typer.Option(
        help="Interpreter that runs the model; by default, this one. The result is filed under the "
        "versions of its environment."
    ),
]
ReferenceMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="How large a model may be in float32, such as 16GiB, to be run on the CPU as well; "
        "by default, three quarters of the memory. A judge model reads the text of a larger one.",
    ),
]


def size(given: str | None) -> int | None:
    """Give a size in bytes, None where none was given. Raises `NoAmount`."""
    if given is None:
        return None
    found = parse_size(given)
    if found == 0:
        raise NoAmount(f"{given[:40]!r} is no memory at all, and nothing runs in that.")
    return found


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command("check")
    def command(
        model: Annotated[str, typer.Argument(help="A checkpoint's folder, or a model's id on the Hub.")],
        task: Annotated[
            str, typer.Option(help=f"What the model is to do: {', '.join(names())}.")
        ] = "text-generation",
        results: Annotated[Path, typer.Option(help="Folder of the dataset to add the result to.")] = Path(
            "results"
        ),
        prompt: Annotated[
            str | None, typer.Option(help="What to ask; by default, one of the task's own prompts.")
        ] = None,
        timeout: Timeout = DEFAULT_TIMEOUT_S,
        memory: Memory = None,
        dtype: Annotated[
            Dtype | None, typer.Option(help="Type to run in; by default, the checkpoint's own.")
        ] = None,
        long: Annotated[
            int | None,
            typer.Option(
                min=NEW_TOKENS + 1,
                metavar="N",
                help="Generate N tokens as well, such as 512, and judge them by the same rule.",
            ),
        ] = None,
        python: Interpreter = None,
        reference_memory: ReferenceMemory = None,
        cores: Annotated[
            int | None,
            typer.Option(
                min=1,
                max=64,
                help="NeuronCores to split the model over, one process each; by default, the fewest that "
                "hold its weights, and the next larger number when memory runs out.",
            ),
        ] = None,
        parallelism: Annotated[
            Parallelism | None,
            typer.Option(
                help="How to split it over cores: tp is tensor parallelism, ep expert parallelism with the "
                "other layers tensor-parallel where Transformers can; by default, tp where it can, else ep."
            ),
        ] = None,
        device: Annotated[
            Device, typer.Option(help="cpu is for finding mistakes in a script: it never passes.")
        ] = Device.neuron,
    ) -> None:
        """Test one model on the neuron device and record the result.

        Writes run.py, runs it in a process of its own, runs the same file on the CPU, compares the two,
        and adds a row to the dataset. A new failure is run a second time; so is a model whose graphs were
        compiled, which a second process must find in the NEFF cache.

        Exit status: 0 PASS, 1 FAIL, 2 SKIPPED or nothing tested, 130 stopped.

        Example: trnready check ./my-checkpoint --results results --timeout 600
        """
        request = Request(
            name=model,
            task=task,
            results=results,
            timeout_s=timeout,
            memory_bytes=size(memory),
            prompt=prompt,
            dtype=None if dtype is None else dtype.value,
            device=device.value,
            long=long,
            python=python,
            cores=cores,
            parallelism=None if parallelism is None else parallelism.value,
            reference_bytes=size(reference_memory),
            judge=judged.decide,
        )
        try:
            with stopped_by_signals(), watching(Console(stderr=True)) as watch:
                done = check(request, watch)
        except KeyboardInterrupt:
            typer.echo("trnready: stopped; this run was not recorded, and nothing of it is left.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        show(done, request.results, output())
        if done.not_folded is not None:
            raise done.not_folded
        raise typer.Exit(EXIT_STATUS[done.row.result])


def show(done: Done, results: Path, console: Console) -> None:
    """Print the result as a table."""
    row = done.row
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _lines(row):
        table.add_row(name, _printable(value))
    if done.folder is not None:
        table.add_row("run.py", str(done.folder / "run.py"))
        table.add_row("log", str(done.folder / "run.log"))
    newer = superseded(done)
    if newer is not None:
        table.add_row("superseded", Text(newer, "yellow"))
    table.add_row("recorded", str(results / _folder(done)))
    console.print(table)


def superseded(done: Done) -> str | None:
    """Say which row of the same is dated later, so that it counts and not this one; None where none is."""
    if done.newer is None:
        return None
    return f"by {done.newer.run_id}, of {done.newer.tested_at:%Y-%m-%d %H:%M} UTC: is a clock wrong?"


def _folder(done: Done) -> str:
    if done.not_folded is not None:
        return journal.FOLDER
    return dataset.DATA if done.newer is None else dataset.HISTORY


def _lines(row: Row) -> Iterator[tuple[str, Text]]:
    """Give the lines of the table; what is not known is left out or said to be unknown, never 0."""
    yield "model", Text(row.model_id)
    yield "verdict", Text.assemble((row.result, COLOURS[row.result]), f" {row.reason} (stage {row.stage})")
    for name, value in (("error", row.error), ("hint", row.hint)):
        if value is not None:
            yield name, Text(value)
    if row.flaky:
        yield "flaky", Text("two runs in fresh processes disagree", "yellow")
    yield "warnings", Text(", ".join(row.warnings) or "none", "yellow" if row.warnings else "")
    yield "device", Text(_device(row))
    split = f" ({row.parallelism})" if row.parallelism else ""
    yield "cores", Text(_number(row.neuron_cores) + split)
    if row.reason in ("match", "match_within_noise", "mismatch"):
        yield "score", Text(f"{_number(row.score, '.3g')} times the rounding noise; up to 3 passes")
    yield "wall time", Text(_number(row.wall_time_s, ".1f", " s"))
    yield (
        "peak memory",
        Text("unknown" if row.peak_memory_bytes is None else f"{row.peak_memory_bytes / 2**20:.1f} MiB"),
    )
    if row.bytes_per_core is not None and len(row.bytes_per_core) > 1:
        yield "on each core", Text(", ".join(f"{each / 2**20:.1f} MiB" for each in row.bytes_per_core))
    yield "graphs", Text(_number(row.graphs))
    yield "recompiles", Text(_number(row.recompiles))
    yield "fallbacks", Text("unknown" if row.fallback_ops is None else ", ".join(row.fallback_ops) or "none")
    if row.compile_s is not None or row.compile_warm_s is not None:
        yield "compiling", Text(_compiling(row))
    if row.tokens_per_s is not None:
        yield "tokens per second", Text(_number(row.tokens_per_s, ".1f"))
    if row.long_tokens is not None:
        yield "long generation", Text(f"{row.long_tokens} tokens: {row.long_reason}")
    # A language model goes on from its prompt; what other tasks give stands for itself.
    prompt = row.prompt or "" if row.task == "text-generation" else ""
    if row.text is not None:
        yield "text", Text(f"{prompt}{row.text}")
    if row.text_reference is not None and row.text_reference != row.text:
        yield "CPU's text", Text(f"{prompt}{row.text_reference}")


def _printable(text: Text) -> Text:
    """A model's text may hold anything, terminal commands among it: what cannot be printed becomes a dot."""
    shown = text.copy()
    shown.plain = "".join(each if each.isprintable() or each == "\n" else "·" for each in text.plain)
    return shown


def _device(row: Row) -> str:
    if row.device_kind == "hardware":
        return f"Trainium, neuronx-cc {row.neuronx_cc}"
    return f"software NeuronCores, not Trainium ({row.neuronx_cc})"


def _compiling(row: Row) -> str:
    """Say what the compiler took of the first call, and what loading the same graphs took."""
    loaded = _number(row.compile_warm_s, ".1f", " s")
    if row.compile_s is None:
        return f"none: all graphs were in the NEFF cache; getting them took {loaded}"
    compiled = f"{row.compile_s:.1f} s"
    return compiled if row.compile_warm_s is None else f"{compiled}; getting it from the NEFF cache {loaded}"


def _number(value: float | None, form: str = "d", unit: str = "") -> str:
    return "unknown" if value is None else f"{value:{form}}{unit}"
