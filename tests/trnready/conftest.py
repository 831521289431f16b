"""What the tests of trnready share: a factory of rows, and a stand-in for the Hub, which answers on
localhost as the Hub's API does."""

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
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import pytest

from trnready.results.row import Row

TESTED_AT = datetime(2026, 10, 5, 12, 30, tzinfo=UTC)


class MakeRow(Protocol):
    def __call__(self, **changes: Any) -> Row: ...


def _make_row(**changes: Any) -> Row:
    """A passing run of a small model on software cores, with the given columns changed."""
    columns: dict[str, Any] = {
        "model_id": "acme/tiny-1b",
        "task": "text-generation",
        "library": "transformers",
        "library_version": "5.24.0",
        "neuronx_cc": "soft-0.1.0",
        "neuron_cores": 1,
        "result": "PASS",
        "reason": "match",
        "stage": "verify",
        "dtype": "bfloat16",
        "device_kind": "software",
        "instance": "trn2.3xlarge",
        "wall_time_s": 41.5,
        "peak_memory_bytes": 300 * 2**20,
        "tested_at": TESTED_AT,
        "run_id": "run-1",
    }
    return Row(**columns | changes)


@pytest.fixture(scope="session")
def make_row() -> MakeRow:
    return _make_row


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class StandIn:
    """`models` and `datasets` are served from their folders, `gated` ones listed and their files refused.
    A dataset's commit changes with its files.

    `listed` holds what the Hub says of each model, and is served in the order asked for; `renamed` leads from
    old names to new ones. `troubles` are answered first, one a request: a status and its headers, or None to
    close the connection. `asked` notes every question about models.
    """

    address: str = ""
    models: dict[str, Path] = field(default_factory=dict)
    datasets: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    status: int | None = None
    downloads: list[str] = field(default_factory=list)
    listed: list[dict[str, Any]] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    troubles: list[tuple[int, dict[str, str]] | None] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    page_size: int = 1000


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
            if self.path.startswith("/api/models"):
                hub.asked.append(self.path)
            if hub.troubles and self.path.startswith("/api/models"):
                trouble = hub.troubles.pop(0)
                if trouble is None:
                    self.close_connection = True
                else:
                    self._send(trouble[0], b"{}", trouble[1], with_body)
                return
            path = self.path.partition("?")[0]
            if path == "/api/models":
                self._list(with_body)
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
                self._model(found[1], found[2], with_body)
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", path):
                self._tree(found[1], with_body)
            elif found := re.fullmatch(
                r"/api/datasets/([^/]+/[^/]+)(/tree/[^/]+)?(?:/revision/[^/]+)?", path
            ):
                self._dataset(found[1], found[2] is not None, with_body)
            elif found := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                self._send_file(hub.datasets[found[1]] / unquote(found[2]), with_body)
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                self._file(found[1], found[2], with_body)
            else:
                self._send(404, b"{}", {}, with_body)

        def _list(self, with_body: bool) -> None:
            """Answer as the Hub does: the models of a tag, and a link to the next page of them."""
            query = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
            found = [
                each for each in hub.listed if each.get("pipeline_tag", "") in ("", query["pipeline_tag"])
            ]
            found.sort(key=lambda each: -each.get(query["sort"], 0))
            start, size = int(query.get("cursor", 0)), min(int(query["limit"]), hub.page_size)
            headers = {"Content-Type": "application/json"}
            if start + size < len(found):
                following = urlencode(query | {"cursor": start + size})
                headers["Link"] = f'<{hub.address}/api/models?{following}>; rel="next"'
            self._send(200, json.dumps(found[start : start + size]).encode(), headers, with_body)

        def _model(self, name: str, revision: str | None, with_body: bool) -> None:
            said = next((each for each in hub.listed if each["id"] == name), None)
            if name in hub.renamed:
                self._send(307, b"", {"Location": f"/api/models/{hub.renamed[name]}"}, with_body)
            elif said is not None:
                self._send(200, json.dumps(said).encode(), {}, with_body)
            elif name not in hub.models:
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
                self._send_file(path, with_body)

        def _dataset(self, name: str, as_tree: bool, with_body: bool) -> None:
            if name not in hub.datasets:
                self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
                return
            folder = hub.datasets[name]
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            names = [path.relative_to(folder).as_posix() for path in files]
            commit = hashlib.sha1(
                repr([(n, p.read_bytes()) for n, p in zip(names, files, strict=True)]).encode()
            )
            answer: Any = {
                "id": name,
                "sha": commit.hexdigest(),
                "private": False,
                "siblings": [{"rfilename": each} for each in names],
            }
            if as_tree:
                answer = [
                    {"type": "file", "path": n, "size": p.stat().st_size, "oid": "0" * 40}
                    for n, p in zip(names, files, strict=True)
                ]
            self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"}, with_body)

        def _send_file(self, path: Path, with_body: bool) -> None:
            if with_body:
                hub.downloads.append(path.name)
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
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
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
