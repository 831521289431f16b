"""The command `softneuron`: explain what a script does to the device, look after the NEFF cache."""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from softneuron.compiler.cache import Module, NeffCache

PIPE_WIDTH = 120
"""Columns of help that goes to a pipe or a file."""

# Without a standard output, as after `>&-`, Python has None for it.
_IN_TERMINAL = sys.stdout is not None and sys.stdout.isatty()

app = typer.Typer(
    name="softneuron",
    help="Software NeuronCores: what a script makes them do, and what they keep.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # In a pipe Typer's boxes are 80 columns wide and cut long names; Click's plain text keeps them whole.
    rich_markup_mode="rich" if _IN_TERMINAL else None,
    context_settings={} if _IN_TERMINAL else {"terminal_width": PIPE_WIDTH},
)
neff = typer.Typer(
    help="The cache of compiled graphs (NEFFs), in TORCH_NEURONX_NEFF_CACHE_DIR or /tmp/neff_cache.",
    no_args_is_help=True,
)
app.add_typer(neff, name="neff")

Folder = Annotated[Path | None, typer.Option("--cache", help="The cache's folder, if another one is meant.")]


@app.callback()
def _options() -> None:
    pass


@app.command("explain", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def explain_script(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script; what follows it are its own arguments.")],
    report: Annotated[
        Path | None, typer.Option("--json", help="Write the report to this file as JSON too.")
    ] = None,
) -> None:
    """Run a script and say what it made the device do: graphs, recompiles, fallbacks, traffic, memory, hints.

    Example: softneuron explain --json report.json train.py --epochs 1
    """
    if not script.is_file():
        typer.echo(f"softneuron: there is no script {script}.", err=True)
        raise typer.Exit(2)
    import torch

    if not hasattr(torch, "neuron") or not torch.neuron.is_available():
        typer.echo("softneuron: the device neuron is not there, so there is nothing to explain.", err=True)
        raise typer.Exit(2)
    from softneuron.diagnostics.explain import Watched, render

    sys.argv = [str(script), *context.args]
    sys.path.insert(0, str(script.resolve().parent))
    status = 0
    with Watched() as watching:
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException as error:
            _print_own_trace(error, str(script))
            status = 1
    found = watching.explanation()
    if report is not None:
        report.write_text(json.dumps(found.to_json(), indent=2) + "\n", encoding="utf-8")
    typer.echo(render(found))
    raise typer.Exit(status)


def _cache(folder: Path | None) -> NeffCache:
    return NeffCache.from_environment() if folder is None else NeffCache(folder)


@neff.command("list")
def list_modules(cache: Folder = None) -> None:
    """List the compiled graphs: name, graph, size, seconds it took to compile.

    Example: softneuron neff list
    """
    chosen = _cache(cache)
    modules = chosen.modules()
    if not modules:
        typer.echo(f"{chosen.root} holds no compiled graphs.")
        return
    table = Table("module", "graph", "nodes", "MiB", "compiled in", "compiler", box=None)
    for column in table.columns[2:5]:
        column.justify = "right"
    for module in modules:
        meta = module.meta
        name = str(meta.get("graph_name", "")) if module.fault is None else f"damaged: {module.fault}"
        table.add_row(
            module.name,
            name,
            str(meta.get("nodes", "")),
            f"{module.size / 2**20:.1f}",
            f"{meta['compile_seconds']} s" if "compile_seconds" in meta else "",
            str(meta.get("compiler", "")),
        )
    _print(table)
    typer.echo(f"{len(modules)} graphs, {sum(m.size for m in modules) / 2**20:.1f} MiB in {chosen.root}")


def _print(table: Table) -> None:
    """Print a table, fitted to a terminal; elsewhere no line is wrapped, so that names stay whole."""
    console = Console()
    if console.file.isatty():
        console.print(table)
        return
    whole = Console(width=1_000_000)
    with whole.capture() as captured:
        whole.print(table)
    typer.echo("\n".join(line.rstrip(" ") for line in captured.get().splitlines()))


def _named(cache: NeffCache, name: str) -> Module:
    found = [
        module
        for module in cache.modules()
        if module.name.removeprefix("MODULE_").startswith(name.removeprefix("MODULE_"))
    ]
    if len(found) == 1:
        return found[0]
    count = "no graph" if not found else f"{len(found)} graphs"
    typer.echo(f"softneuron: {cache.root} holds {count} whose name starts with {name!r}.", err=True)
    raise typer.Exit(2)


@neff.command("show")
def show_module(
    name: Annotated[str, typer.Argument(help="A module's name, or the start of it.")], cache: Folder = None
) -> None:
    """Print what is known of one compiled graph, as JSON.

    Example: softneuron neff show MODULE_1f2e
    """
    module = _named(_cache(cache), name)
    facts = {"module": module.name, "fault": module.fault, "package_bytes": module.size} | module.meta
    typer.echo(json.dumps(facts, indent=2))


@neff.command("verify")
def verify_modules(cache: Folder = None) -> None:
    """Check every compiled graph against its digest; exit status 1 when one is damaged.

    Damaged graphs are never loaded: the next process that needs one compiles it again.
    """
    chosen = _cache(cache)
    modules = chosen.modules()
    damaged = [module for module in modules if module.fault is not None]
    for module in damaged:
        typer.echo(f"{module.name}: {module.fault}")
    typer.echo(f"{len(modules) - len(damaged)} of {len(modules)} graphs in {chosen.root} are whole.")
    if damaged:
        raise typer.Exit(1)


@neff.command("clean")
def clean_modules(
    damaged_only: Annotated[bool, typer.Option("--damaged", help="Remove only what is damaged.")] = False,
    cache: Folder = None,
) -> None:
    """Remove compiled graphs; they are compiled again when they are needed."""
    chosen = _cache(cache)
    removed = [module for module in chosen.modules() if module.fault is not None or not damaged_only]
    for module in removed:
        chosen.remove(module)
    if not damaged_only:
        chosen.remove_traces()
    freed = sum(module.size for module in removed) / 2**20
    typer.echo(f"Removed {len(removed)} graphs, {freed:.1f} MiB, from {chosen.root}.")


def _print_own_trace(error: BaseException, script: str) -> None:
    """The script's trace as Python would print it, without the frames that started the script."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames or error.__traceback__)


def main() -> None:
    """Run the command line; an unreadable folder is one sentence on standard error."""
    try:
        app()
    except OSError as error:
        typer.echo(f"softneuron: {error.strerror}: {error.filename}", err=True)
        raise SystemExit(2) from None
