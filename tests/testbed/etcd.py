"""A real etcd on loopback: one for the session (each test under a prefix of its own), or one to be ill-treated."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from services.core.adapters.etcd import launcher
from services.local.layout import listen_lasting
from tests.testbed.signals import pause

# A member that restarts on its data waits for an election before it serves: a second or two by default.
_QUICK_RESTART = ("--heartbeat-interval=20", "--election-timeout=200")
_prefixes = itertools.count(1)


_given: Final[set[int]] = set()


def free_port() -> int:
    """One that no connection of anybody's takes until it is used, and that was not given before."""
    while True:
        with listen_lasting("127.0.0.1") as holder:
            port = int(holder.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


class Etcd:
    """Keeps its ports and its folder over all its lives."""

    def __init__(self, folder: Path, *options: str) -> None:
        """``options``: more of etcd's own."""
        self.client_port, self.peer_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.client_port}"
        self._data, self._log = folder / "data", folder / "etcd.log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, cluster: str = "first") -> None:
        """On the data that is there. ``cluster``: decides the cluster id, where there are none."""
        binary = launcher.find_etcd()
        command = launcher.etcd_command(
            binary,
            launcher.etcd_version(binary),
            self._data,
            client_port=self.client_port,
            peer_port=self.peer_port,
            token=cluster,
        )
        self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._process = launcher.spawn([*command, *_QUICK_RESTART, *self._options], self._log)

    def start_empty(self) -> None:
        """As `weft up` does."""
        self._process = launcher.start_etcd(self._data, self.client_port, self.peer_port, self._log)

    async def ready(self) -> None:
        process = self._process
        assert process is not None
        await launcher.wait_ready(self.address, timeout_s=20, running=lambda: process.poll() is None)

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def empty(self) -> None:
        """Loses all data, while it is not running."""
        shutil.rmtree(self._data)

    def pause(self) -> None:
        """Stands still when this returns: a signal is on its way for a while, and etcd answers until it is there."""
        assert self._process is not None
        pause(self._process.pid)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One for all tests: take a prefix of your own from ``etcd_prefix``."""
    server = Etcd(tmp_path_factory.mktemp("etcd"))
    server.start()
    try:
        # On a thread: an asynchronous fixture may be what asks for this one, and its loop runs already.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, server.ready()).result()
        yield server
    finally:
        server.kill()


@pytest.fixture
def etcd_prefix() -> str:
    return f"/test-{next(_prefixes)}"


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Etcd]:
    """One that the test may kill; not started yet."""
    server = Etcd(tmp_path)
    yield server
    server.kill()
