"""A stand-in for the Hub: answers on localhost as the Hub's API does, from folders on disk."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class StandIn:
    """`models` are served from their folders, `gated` ones listed and their files refused."""

    address: str = ""
    models: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    status: int | None = None
    downloads: list[str] = field(default_factory=list)


def _handler(hub: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            if hub.status is not None:
                self._send(hub.status, b"{}", {}, with_body)
                return
            path = self.path.partition("?")[0]
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
                self._model(found[1], found[2], with_body)
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", path):
                self._tree(found[1], with_body)
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                self._file(found[1], found[2], with_body)
            else:
                self._send(404, b"{}", {}, with_body)

        def _model(self, name: str, revision: str | None, with_body: bool) -> None:
            if name not in hub.models:
                headers = {"X-Error-Code": "RepoNotFound"}
                self._send(401, b'{"error": "Repository not found"}', headers, with_body)
            elif revision not in (None, "main", COMMIT):
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
            else:
                files = [{"rfilename": each.name} for each in sorted(hub.models[name].iterdir())]
                answer = {"id": name, "modelId": name, "sha": COMMIT, "siblings": files, "private": False}
                self._send(200, json.dumps(answer).encode(), {}, with_body)

        def _tree(self, name: str, with_body: bool) -> None:
            entries = [
                {"type": "file", "path": each.name, "size": each.stat().st_size, "oid": "0" * 40}
                for each in sorted(hub.models[name].iterdir())
            ]
            self._send(200, json.dumps(entries).encode(), {"Content-Type": "application/json"}, with_body)

        def _file(self, name: str, file: str, with_body: bool) -> None:
            path = hub.models[name] / file
            if name in hub.gated:
                self._send(401, b"{}", {"X-Error-Code": "GatedRepo"}, with_body)
            elif not path.is_file():
                self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"}, with_body)
            else:
                if with_body:
                    hub.downloads.append(file)
                content = path.read_bytes()
                etag = hashlib.sha256(content).hexdigest()
                self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, with_body)

        def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    return Handler


@pytest.fixture
def hub() -> Iterator[StandIn]:
    stand_in = StandIn()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(stand_in))
    stand_in.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield stand_in
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ask_hub() -> Callable[..., str]:
    """Run a program, given a model's name, in a process of its own against a Hub at `endpoint`."""

    def run(program: str, name: str, endpoint: str, home: Path, **settings: str) -> str:
        environment = os.environ | {
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_XET": "1",
        }
        ran = subprocess.run(
            [sys.executable, "-c", program, name],
            env=environment | settings,
            cwd=home,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return ran.stdout.strip()

    return run
