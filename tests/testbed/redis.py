"""Redis on loopback, from Debian's package: a process of our own, beside whatever the machine runs as a service."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.testbed.built import need_debian
from tests.testbed.etcd import free_port
from tests.testbed.signals import pause
from tests.waiting import in_thread, until


class Redis:
    """Keeps its port over all its lives, and nothing else: what it held is lost with each."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        options = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "appendonly": "no"}
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["redis-server", *(word for name, value in options.items() for word in (f"--{name}", value))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder,
            )  # fmt: skip

    async def ready(self) -> None:
        """Returns when it serves."""
        await until(self._serves, timeout=30)

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "redis.log").read_text()
        try:
            return self._ask(b"PING") == b"+PONG"
        except OSError:
            return False

    def empty(self) -> None:
        """Forgets everything."""
        self._ask(b"FLUSHALL")

    def push(self, name: str, entry: bytes) -> None:
        """To the end of a list that is written to."""
        self._ask(b"*3\r\n$5\r\nLPUSH\r\n$%d\r\n%s\r\n$%d\r\n%s" % (len(name), name.encode(), len(entry), entry))

    def _ask(self, command: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(command + b"\r\n")
            with connection.makefile("rb") as answers:
                answer = answers.readline().strip()
        assert answer[:1] in {b"+", b":"}, answer
        return answer

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        pause(self._process.pid)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="session")
def redis(
    tmp_path_factory: pytest.TempPathFactory,
    aloud: Callable[[str], None],
    untimed: Callable[[], AbstractContextManager[None]],
) -> Iterator[Redis]:
    """One for all tests; it serves. Who kills it starts it again, and who uses it empties it first."""
    with untimed():
        need_debian(("redis-server",), ("redis-server",), aloud)
        server = Redis(tmp_path_factory.mktemp("redis"))
        server.start()
        try:
            in_thread(server.ready)
        except BaseException:
            server.kill()
            raise
    yield server
    server.kill()
