"""Redis on loopback, from Debian's package: a process of our own, beside whatever the machine runs as a service."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.testbed.built import need_debian
from tests.testbed.etcd import free_port
from tests.testbed.signals import pause
from tests.waiting import eventually


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
        """Returns when it serves."""
        self._folder.mkdir(parents=True, exist_ok=True)
        options = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "appendonly": "no"}
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["redis-server", *(word for name, value in options.items() for word in (f"--{name}", value))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder,
            )  # fmt: skip
        eventually(self._serves, timeout=30)

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "redis.log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) == b"+PONG\r\n"
        except OSError:
            return False

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
def redis_installed(aloud: Callable[[str], None], untimed: Callable[[], AbstractContextManager[None]]) -> None:
    with untimed():
        need_debian(("redis-server",), ("redis-server",), aloud)
