"""FerretDB 1.24 on SQLite: MongoDB's protocol on loopback, by a server that Weft has to refuse.

It finds first and writes afterwards, so that several compare-and-sets of one revision win.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.etcd import free_port
from tests.testbed.go import SERVERS, GoBuilt
from tests.waiting import in_thread, until


class FerretDB:
    def __init__(self, program: Path, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        (folder / "data").mkdir()
        with (folder / "ferretdb.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, f"127.0.0.1:{self.port}", folder / "data"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def uri(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/"

    async def ready(self) -> None:
        """Returns when it serves."""
        await until(self._serves, timeout=30)

    def _serves(self) -> bool:
        assert self._process.poll() is None, (self._folder / "ferretdb.log").read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def ferretdb(go_built: GoBuilt, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FerretDB]:
    """It serves."""
    server = FerretDB(go_built("ferretdb", SERVERS / "ferretdb"), tmp_path_factory.mktemp("ferretdb"))
    try:
        in_thread(server.ready)
        yield server
    finally:
        server.kill()
