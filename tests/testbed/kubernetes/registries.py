"""Registries of images on a node's own loopback: one that has none, and a private one.

containerd uses plain HTTP for registries on the loopback only. Distribution API:
github.com/opencontainers/distribution-spec.
"""

from __future__ import annotations

import base64
import json
import socket
import socketserver
import tarfile
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

from tests.testbed.kubernetes.doorway import listen_inside

_TLS: Final = b"\x16"
"""The first byte of a connection with TLS."""
_UNKNOWN: Final = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'


class _NoImages(BaseHTTPRequestHandler):
    """Every manifest is unknown."""

    def handle(self) -> None:
        """containerd tries TLS first, and plain HTTP once it gets the answer of a server of plain HTTP."""
        if self.connection.recv(1, socket.MSG_PEEK) == _TLS:
            self.connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            while self.connection.recv(65_536):  # closed with bytes unread, the connection would be reset
                pass
        else:
            super().handle()

    def do_GET(self) -> None:
        self.answer(404, _UNKNOWN)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Nothing is logged."""

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        """The body is left out of the answer to a HEAD."""
        self.send_response(status)
        for name, value in {"Content_Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _private(archive: Path, username: str, password: str) -> type[_NoImages]:
    """One image, under every name and tag, for callers with this name and password."""
    with tarfile.open(archive) as tar:
        files: dict[str, Any] = {entry.name: tar.extractfile(entry) for entry in tar.getmembers() if entry.isfile()}
        blobs = {name.rpartition("/")[2]: file.read() for name, file in files.items() if name.startswith("blobs/")}
        manifest = json.loads(files["index.json"].read())["manifests"][0]
    token = base64.b64encode(f"{username}:{password}".encode()).decode()

    class Private(_NoImages):
        def do_GET(self) -> None:
            if self.headers["Authorization"] != f"Basic {token}":
                self.answer(401, b"{}", WWW_Authenticate='Basic realm="test"')
                return
            reference = self.path.rpartition("/")[2]
            tagged = "/manifests/" in self.path and ":" not in reference
            digest = manifest["digest"] if tagged else reference
            blob = blobs.get(digest.removeprefix("sha256:"))
            if blob is None:
                super().do_GET()
                return
            kind = manifest["mediaType"] if digest == manifest["digest"] else "application/octet-stream"
            self.answer(200, blob, Content_Type=kind, Docker_Content_Digest=digest)

    return Private


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True


def empty_registry(node_pid: int) -> AbstractContextManager[str]:
    """Within it, the returned host and port are a registry without images: pulls end at once, with "not found".

    ``node_pid``: the node's machine. No other node reaches it.
    """
    return _serving(node_pid, _NoImages)


def private_registry(node_pid: int, archive: Path, *, username: str, password: str) -> AbstractContextManager[str]:
    """Within it, the returned host and port are a registry with one image, of any name, for this user alone.

    ``archive``: the image, an OCI archive, e.g. of ``write_private_image``. ``node_pid``: as above.
    """
    return _serving(node_pid, _private(archive, username, password))


@contextmanager
def _serving(node_pid: int, handler: type[_NoImages]) -> Generator[str]:
    with listen_inside(node_pid, "127.0.0.1", 0) as listener:
        address = listener.getsockname()
        server = _Server(address, handler, bind_and_activate=False)
        server.socket.close()
        server.socket = listener
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"127.0.0.1:{address[1]}"
        finally:
            server.shutdown()
            serving.join()
