"""A registry of images that has none, on a node's own loopback: the node's pulls end at once, with "not found"."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Final

from tests.testbed.kubernetes.doorway import listen_inside

_TLS: Final = b"\x16"
"""The first byte of a connection with TLS."""
_UNKNOWN: Final = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'


class _NoImages(BaseHTTPRequestHandler):
    """Distribution API (github.com/opencontainers/distribution-spec): every manifest is unknown."""

    def handle(self) -> None:
        """containerd tries TLS first, and plain HTTP once it gets the answer of a server of plain HTTP."""
        if self.connection.recv(1, socket.MSG_PEEK) == _TLS:
            self.connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            while self.connection.recv(65_536):  # closed with bytes unread, the connection would be reset
                pass
        else:
            super().handle()

    def do_GET(self) -> None:
        self._answer(_UNKNOWN)

    def do_HEAD(self) -> None:
        self._answer(b"")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Nothing is logged."""

    def _answer(self, body: bytes) -> None:
        self.send_response(404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(_UNKNOWN)))
        self.end_headers()
        self.wfile.write(body)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True


@contextmanager
def empty_registry(node_pid: int) -> Generator[str]:
    """Within it, the returned host and port are a registry for this node. ``node_pid``: the node's machine."""
    with listen_inside(node_pid, "127.0.0.1", 0) as listener:
        address = listener.getsockname()
        server = _Server(address, _NoImages, bind_and_activate=False)
        server.socket.close()
        server.socket = listener
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"127.0.0.1:{address[1]}"
        finally:
            server.shutdown()
            serving.join()
