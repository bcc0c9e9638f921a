"""A package index and a data store on loopback that go away while jobs use them."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Final

from tests.testbed.scripted_http import Server

PACKAGE: Final = "weft_probe"
_VERSIONS: Final = 1_000


class OutsideWorld(Server):
    """Serves ``/simple/weft-probe/``, with wheels of the versions 1.0 to 1.999, and ``/data/<anything>``.

    After ``serves`` different wheels and data files it is away: it closes connections without an answer.
    """

    def __init__(self, serves: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.serves = serves
        self.served: set[str] = set()
        self.refused = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answers(self, path: str) -> bool:
        """Whether it is not away, for a request of this path."""
        with self.lock:
            is_file = not path.startswith("/simple/")
            away = len(self.served | ({path} if is_file else set())) > self.serves
            self.served |= {path} if is_file and not away else set()
            self.refused += away
            return not away

    def come_back(self) -> None:
        with self.lock:
            self.serves = _VERSIONS


@contextmanager
def outside_world(serves: int) -> Generator[OutsideWorld]:
    """``serves``: so many files, then it is away until ``come_back``."""
    with OutsideWorld(serves) as world:
        thread = threading.Thread(target=world.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield world
        finally:
            world.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    @property
    def _world(self) -> OutsideWorld:
        assert isinstance(self.server, OutsideWorld)
        return self.server

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if not self._world.answers(self.path):
            self.close_connection = True
            return
        body = _body(self.path)
        self.send_response(200 if body is not None else 404)
        self.send_header(
            "Content-Type", "text/html" if self.path.startswith("/simple/") else "application/octet-stream"
        )
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body or b"")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Tests are silent."""


def _body(path: str) -> bytes | None:
    if path == "/simple/weft-probe/":
        names = [f"{PACKAGE}-1.{number}-py3-none-any.whl" for number in range(_VERSIONS)]
        return "".join(f'<a href="/wheels/{name}">{name}</a>\n' for name in names).encode()
    if path.startswith("/wheels/"):
        return _wheel(path.rpartition("/")[2].split("-")[1])
    return hashlib.sha256(path.encode()).digest() if path.startswith("/data/") else None


def _wheel(version: str) -> bytes:
    folder = f"{PACKAGE}-{version}.dist-info"
    files = {
        f"{PACKAGE}.py": f"version = {version!r}\n",
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{folder}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{folder}/RECORD"])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()
