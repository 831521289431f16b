"""The command `trnready serve`; the command line registers it."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from trnready.errors import TrnreadyError
from trnready.space.app import create_app


class CannotListen(TrnreadyError):
    """The Space cannot be served on the address that was asked for."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(serve)


def serve(
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="Folder that holds the results.")
    ] = Path("results"),
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")] = 7860,
) -> None:
    """Show the results as a web page. New results appear without a restart; Ctrl+C stops.

    Example: trnready serve --results results --port 7860
    """
    with listen(host, port) as listening:
        typer.echo(f"Serving {results} on {address(listening, host)} (Ctrl+C stops)")
        config = uvicorn.Config(create_app(results), log_level="warning", server_header=False)
        uvicorn.Server(config).run(sockets=[listening])


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
