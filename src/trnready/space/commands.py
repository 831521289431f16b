"""The commands `trnready serve` and `trnready space`; the command line registers them."""

from __future__ import annotations

import errno
import gc
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from trnready.errors import TrnreadyError
from trnready.results import units
from trnready.space import can_i_run, deploy, howto, mirror, sources
from trnready.space.can_i_run import RESULTS
from trnready.space.index import Index

Catalogs = Annotated[
    Path | None,
    typer.Option(
        "--catalog",
        metavar="DIR",
        help="Folder with the Hub's lists and selected.yaml.",
        show_default="catalog beside the results or in the working folder, or the one that trnready carries",
    ),
]


class CannotListen(TrnreadyError):
    """The Space cannot be served on the address that was asked for."""


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(serve)
    can_i_run.register(app)
    group = typer.Typer(
        help="Prepare the Space, the web page of results.\n\n"
        "Example: trnready space deploy my-space --dataset owner/results",
        no_args_is_help=True,
    )
    group.command("deploy")(deploy_space)
    group.command("index")(index_names)
    app.add_typer(group, name="space")


def serve(
    results: Annotated[
        str | None,
        typer.Option(
            "--results",
            metavar="DIR",
            help="Folder that holds the results, or hf://datasets/owner/name.",
            show_default=RESULTS,
        ),
    ] = None,
    catalogs: Catalogs = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")] = 7860,
    neff_bucket: Annotated[
        str | None,
        typer.Option(
            envvar="TRNREADY_NEFF_BUCKET",
            metavar="OWNER/NAME:VERSION[,VERSION…]",
            help="Public bucket of compiled graphs to tell of, and the compiler versions that it holds.",
        ),
    ] = None,
) -> None:
    """Show the results as a web page. New results appear without a restart; Ctrl+C stops.

    A dataset on the Hub is brought to the cache, and looked at every minute for what is new.

    Example: trnready serve --results results --port 7860
    """
    # Of all commands only this one needs a web server, whose import takes as long as that of all the rest.
    import uvicorn

    from trnready.space.app import create_app

    public = None if neff_bucket is None else howto.bucket(neff_bucket)
    name = RESULTS if results is None else results
    remote = mirror.parse(name)
    sources.check_named(None if results is None or remote else Path(results), catalogs)
    with listen(host, port) as listening:
        if remote is None:
            folder = Path(name)
            if not folder.is_dir():
                typer.echo(
                    f"There is no results folder at {folder} yet: models are listed, none is tested.",
                    err=True,
                )
        else:
            follower = mirror.Mirror(remote)
            folder = follower.open()
            follower.follow()
        index = Index(folder, catalogs, name=name)
        if not index.is_built():
            typer.echo("Indexing the names, which is done once (some 20 s for 400,000) …", err=True)
        index.snapshot()
        # What the index holds stays; without this, every full collection would look through all of it.
        gc.collect()
        gc.freeze()
        app = create_app(folder, public, index)
        typer.echo(f"Serving {name} on {address(listening, host)} (Ctrl+C stops)")
        config = uvicorn.Config(app, log_level="warning", server_header=False)
        uvicorn.Server(config).run(sockets=[listening])


def index_names(
    results: Annotated[
        Path | None,
        typer.Option("--results", metavar="DIR", help="Folder that holds the results.", show_default=RESULTS),
    ] = None,
    catalogs: Catalogs = None,
) -> None:
    """Build the Space's index beforehand, so that it starts at once.

    The index is kept in the cache (XDG_CACHE_HOME names another) and built anew when its files change.

    Example: trnready space index --results results
    """
    # Without a name: a Space is indexed before its results are brought.
    sources.check_named(results, catalogs)
    index = Index(results or Path(RESULTS), catalogs)
    snapshot = index.snapshot()
    for notice in index.notices():
        typer.echo(f"warning: {notice}", err=True)
    names, runs = units.count(len(snapshot.names), "name"), units.count(len(snapshot.runs.all), "run")
    typer.echo(f"{names} and {runs} indexed in {snapshot.names.path.parent}.")


def deploy_space(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write the Space into.")],
    dataset: Annotated[
        str, typer.Option("--dataset", metavar="NAME", help="The dataset on the Hub, such as owner/results.")
    ],
    catalogs: Catalogs = None,
) -> None:
    """Write a Docker Space that shows a dataset of results: Dockerfile, README and all it needs.

    It starts there by the same command as here: trnready serve --results hf://datasets/owner/name.

    Example: trnready space deploy my-space --dataset owner/results
    """
    where = mirror.parse(f"{mirror.SCHEME}datasets/{dataset.removeprefix(f'{mirror.SCHEME}datasets/')}")
    if where is None:
        raise AssertionError("an address of this form is always a dataset's")
    sources.check_named(None, catalogs)
    deploy.write(folder, where, sources.find(Path(RESULTS), catalogs))
    typer.echo(f"{folder} holds the Space. It starts with: {' '.join(deploy.command(where))}")
    typer.echo(f"To publish it: hf upload OWNER/SPACE {folder} --repo-type space")


def listen(host: str, port: int) -> socket.socket:
    """Open the socket to serve on. Raises `CannotListen`."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise CannotListen(f"there is no host called {host!r}; 127.0.0.1 is this machine.") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(128)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(f"port {port} on {host} is in use; choose another with --port.") from None
        raise CannotListen(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}.") from None
    return listening


def address(listening: socket.socket, host: str) -> str:
    """Give the address to type into a browser."""
    port = listening.getsockname()[1]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"
