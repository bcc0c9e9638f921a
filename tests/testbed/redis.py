"""Redis on loopback, from Debian's package: a separate process beside the machine's own service."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tests.testbed.built import need_debian
from tests.testbed.server import Server, running
from tests.waiting import HANG_S


class Redis(Server):
    """Keeps its port over restarts, but no data."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "redis.log")

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def start(self) -> None:
        options = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "appendonly": "no"}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = self._spawn(["redis-server", *words], cwd=self.log.parent)

    def serves(self) -> bool:
        return self._ask(b"PING") == b"+PONG"

    def empty(self) -> None:
        """Deletes all data."""
        self._ask(b"FLUSHALL")

    def push(self, name: str, entry: bytes) -> None:
        """Appends an entry to a list."""
        self._ask(b"*3\r\n$5\r\nLPUSH\r\n$%d\r\n%s\r\n$%d\r\n%s" % (len(name), name.encode(), len(entry), entry))

    def _ask(self, command: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S) as connection:
            connection.sendall(command + b"\r\n")
            with connection.makefile("rb") as answers:
                answer = answers.readline().strip()
        assert answer[:1] in {b"+", b":"}, answer
        return answer


@pytest.fixture(scope="session")
def redis(
    tmp_path_factory: pytest.TempPathFactory,
    announce: Callable[[str], None],
    untimed: Callable[[], AbstractContextManager[None]],
) -> Iterator[Redis]:
    """One running server for all tests. A test that kills it starts it again; a test that uses it empties it first."""
    with ExitStack() as stack:
        with untimed():
            need_debian(("redis-server",), ("redis-server",), announce)
            server = stack.enter_context(running(Redis(tmp_path_factory.mktemp("redis"))))
        yield server
