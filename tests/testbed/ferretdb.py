"""FerretDB 1.24 on SQLite: a server of MongoDB's protocol on loopback that Weft must refuse.

It finds first and writes afterwards, so that several compare-and-sets of one revision win.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.go import SERVERS, GoBuilt
from tests.testbed.server import Server, running


class FerretDB(Server):
    def __init__(self, program: Path, folder: Path) -> None:
        super().__init__(folder / "ferretdb.log")
        self._program, self._data = program, folder / "data"

    def start(self) -> None:
        self._data.mkdir(exist_ok=True)
        self._process = self._spawn([self._program, self.address, self._data])

    def serves(self) -> bool:
        socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        return True

    @property
    def uri(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/"


@pytest.fixture(scope="session")
def ferretdb(go_built: GoBuilt, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FerretDB]:
    """A running server."""
    program = go_built("ferretdb", SERVERS / "ferretdb")
    with running(FerretDB(program, tmp_path_factory.mktemp("ferretdb"))) as server:
        yield server
