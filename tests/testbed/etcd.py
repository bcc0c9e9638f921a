"""A real etcd on sockets: one for the session (each test under a prefix of its own), or one to be ill-treated."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.core.adapters.etcd import launcher
from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.errors import Unavailable, WeftError
from services.core.runtime.address import Address
from services.core.runtime.sockets import make_private_folder
from tests.testbed.server import Server, running, socket_folder
from tests.waiting import until

# A member that restarts on its data waits for an election before it serves: a second or two by default.
_QUICK_RESTART = ("--heartbeat-interval=20", "--election-timeout=200")
_prefixes = itertools.count(1)
_folders = itertools.count(1)


async def wait_ready(address: Address | str, process: subprocess.Popen[bytes]) -> None:
    """Returns once etcd answers a linearizable read. AssertionError where it ends, or answers none."""
    store = EtcdStatusStore(address, timeout_s=1)

    async def answers() -> bool:
        assert process.poll() is None, "etcd ended while it started; see its log"
        try:
            await store.ping()
        except Unavailable:
            return False
        except WeftError:
            return True  # it refuses us, so it is there
        return True

    try:
        await until(answers)
    finally:
        await store.close()


class Etcd(Server):
    """Keeps its sockets and its folder over all its lives."""

    def __init__(self, folder: Path, *options: str) -> None:
        """``options``: more of etcd's own."""
        super().__init__(folder / "etcd.log")
        self._sockets, self._data, self._options = socket_folder() / f"etcd-{next(_folders)}", folder / "data", options
        make_private_folder(self._sockets)
        self._client, self._peer = (Address(f"unix:{self._sockets}/localhost:{number}") for number in (1, 2))

    @property
    def address(self) -> str:
        return str(self._client)

    def start(self, *, cluster: str = "first") -> None:
        """On the data that is there. ``cluster``: decides the cluster id, where there are none."""
        binary = launcher.find_etcd()
        command = launcher.etcd_command(
            binary,
            launcher.etcd_version(binary),
            self._data,
            client=self._client,
            peer=self._peer,
            token=cluster,
        )
        self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._process = launcher.spawn([*command, *_QUICK_RESTART, *self._options], self.log, folder=self._sockets)

    def start_empty(self) -> None:
        """As `weft up` does."""
        self._process = launcher.start_etcd(self._data, self._client, self._peer, self.log)

    async def ready(self) -> None:
        process = self._process
        assert process is not None
        await wait_ready(self.address, process)

    def empty(self) -> None:
        """Loses all data, while it is not running."""
        shutil.rmtree(self._data)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One for all tests: take a prefix of your own from ``etcd_prefix``."""
    with running(Etcd(tmp_path_factory.mktemp("etcd"))) as server:
        yield server


@pytest.fixture
def etcd_prefix() -> str:
    return f"/test-{next(_prefixes)}"


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Etcd]:
    """One that the test may kill; not started yet."""
    server = Etcd(tmp_path)
    yield server
    server.kill()
