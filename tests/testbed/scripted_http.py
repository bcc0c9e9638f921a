"""A real HTTP server on loopback that answers as a test's script says, cut connections included."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    """With the query."""
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Say:
    """An answer. ``cut_after``: hang up after so many bytes of the body, which is announced whole."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None


def say_json(document: Any, status: int = 200, **headers: str) -> Say:
    shown = {name.replace("_", "-"): value for name, value in headers.items()}
    return Say(status, json.dumps(document).encode(), {"Content-Type": "application/json", **shown})


def say_events(*events: tuple[str, str, Any], end: bool = False) -> Say:
    """A stream of (kind, id, document), cut without a word unless ``end``."""
    text = "".join(f"event: {kind}\nid: {id_}\ndata: {json.dumps(data)}\n\n" for kind, id_, data in events)
    if end:
        text += f"event: end\ndata: {json.dumps({'id': 'j1', 'status': 'COMPLETED', 'exit_code': 0})}\n\n"
    return Say(200, text.encode(), {"Content-Type": "text/event-stream"})


@dataclass(slots=True)
class Scripted:
    url: str
    requests: list[Request]


@contextmanager
def scripted(answer: Callable[[Request, int], Say]) -> Generator[Scripted, None, None]:
    """``answer`` is given each request and how many there were before it."""
    requests: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: apart, each answer waits 40 ms for an acknowledgement

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, self.rfile.read(length))
            requests.append(request)
            reply = answer(request, len(requests) - 1)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body if reply.cut_after is None else reply.body[: reply.cut_after])
            if reply.cut_after is not None:
                self.close_connection = True

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Scripted(f"http://127.0.0.1:{server.server_address[1]}", requests)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
