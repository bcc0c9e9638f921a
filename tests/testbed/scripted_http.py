"""An HTTP server on loopback whose answers come from a function of the test; it can cut connections."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Request:
    """A received request."""

    method: str
    path: str
    """With the query."""
    headers: Mapping[str, str]
    body: bytes
    connection: tuple[str, int] = ("", 0)
    """Address of the client's end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. ``cut_after``: the connection is cut after this many bytes of the body."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None


def json_answer(document: Any, status: int = 200, **headers: str) -> Answer:
    """An answer with this JSON; ``_`` in a header's name becomes ``-``."""
    shown = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, json.dumps(document).encode(), {"Content-Type": "application/json", **shown})


def event_answer(*events: tuple[str, str, Any], end: bool = False) -> Answer:
    """A stream of events (kind, id, document); without ``end`` it is cut before its end event."""
    text = "".join(f"event: {kind}\nid: {id_}\ndata: {json.dumps(data)}\n\n" for kind, id_, data in events)
    if end:
        text += f"event: end\ndata: {json.dumps({'id': 'j1', 'status': 'COMPLETED', 'exit_code': 0})}\n\n"
    return Answer(200, text.encode(), {"Content-Type": "text/event-stream"})


class Server(ThreadingHTTPServer):
    """Takes a burst of connections. With the default of five that wait, others try again after one, three and seven
    seconds."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.closed: list[tuple[str, int]] = []
        """Connections that the server has closed, and the client had not: addresses of the client's end."""

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        client: list[tuple[str, int]] = []
        with suppress(OSError):  # the client has closed it
            client.append(request.getpeername())
        super().shutdown_request(request)
        self.closed += client


@dataclass(slots=True)
class Scripted:
    url: str
    requests: list[Request]
    """All that were received, in order."""
    closed: list[tuple[str, int]]
    """Connections that the server has closed, and the client had not: addresses of the client's end."""


@contextmanager
def scripted(answer: Callable[[Request, int], Answer]) -> Generator[Scripted, None, None]:
    """A running server. ``answer`` gets each request and the number of requests before it."""
    requests: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: apart, each answer waits 40 ms for an acknowledgement

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, self.rfile.read(length), self.client_address)
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

        do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            """Logs nothing."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Scripted(f"http://127.0.0.1:{server.server_address[1]}", requests, server.closed)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def signed_in(answer: Callable[[Request, int], Answer]) -> Generator[Scripted, None, None]:
    """As ``scripted``; commands that this process runs meanwhile use the server, with a key."""
    with scripted(answer) as server, pytest.MonkeyPatch.context() as environment:
        environment.setenv("WEFT_URL", server.url)
        environment.setenv("WEFT_KEY", "weft_k_s")
        yield server
