"""RabbitMQ on loopback, from Debian's package: a separate node beside the machine's own service.

It has its own folder, cookie, ports and port mapper (epmd), so that it meets no other Erlang; both are ended by pid.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final

import pytest

from tests.testbed.built import need_debian
from tests.testbed.server import Server, free_port
from tests.waiting import in_thread

_PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Not the program on PATH: that one changes to the package's user and reads the service's settings."""
_GREETING: Final = b"AMQP\x00\x00\x09\x01"


class RabbitMQ(Server):
    """Keeps its ports and its folder over restarts. Durable messages survive a restart."""

    starts_within_s = 180.0
    """Four seconds of processor time; much longer on a busy machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "rabbitmq.out")
        self._folder = folder
        self._mapper_port, self._node_port = free_port(), free_port()
        self._mapper: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.url_at(self.address)

    def url_at(self, address: str) -> str:
        """Returns its URL at another address, e.g. through a proxy."""
        return f"amqp://guest:guest@{address}//"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("rabbitmq.conf", "disk_free_limit.absolute = 1MB\n"), ("plugins", "[].\n"), ("none", "")):
            (self._folder / name).write_text(text)
        if self._mapper is None:
            self._mapper = self._spawn(["epmd"], env=self._environment())
        self._process = self._spawn([_PROGRAM], env=self._environment(), cwd="/")

    def _environment(self) -> dict[str, str]:
        folder = self._folder
        settings = {
            "NODENAME": "weft@localhost",
            "NODE_IP_ADDRESS": "127.0.0.1",
            "NODE_PORT": str(self.port),
            "DIST_PORT": str(self._node_port),
            "CONF_ENV_FILE": f"{folder}/none",
            "CONFIG_FILE": f"{folder}/rabbitmq",
            "ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "GENERATED_CONFIG_DIR": f"{folder}/generated",
            "MNESIA_BASE": f"{folder}/data",
            "LOG_BASE": f"{folder}/log",
            "PID_FILE": f"{folder}/pid",
            # Threads that do not spin while they wait: the machine may have two processors.
            "SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none "
            "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(folder),  # of the cookie
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_SECONDS": "0",
            # The process is the server itself, and no shell that watches it.
            "detached": "1",
            **{f"RABBITMQ_{name}": value for name, value in settings.items()},
        }

    def serves(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(_GREETING)
            return connection.recv(1) == b"\x01"  # its first frame; a refusal begins with "AMQP"

    def close(self) -> None:
        self.kill()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None


@contextmanager
def serving(
    folder: Path, announce: Callable[[str], None], untimed: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Generator[RabbitMQ]:
    """Runs a new server and ends it afterwards."""
    server = RabbitMQ(folder)
    try:
        with untimed():
            need_debian((str(_PROGRAM), "epmd"), ("rabbitmq-server",), announce)
            server.start()
            in_thread(server.ready)
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def rabbitmq(
    tmp_path_factory: pytest.TempPathFactory,
    announce: Callable[[str], None],
    untimed: Callable[[], AbstractContextManager[None]],
) -> Iterator[RabbitMQ]:
    """One running server for the tests of hints. A test that kills it starts it again; a test that uses it empties it
    first. No platform uses it: its worker would take the tests' hints.
    """
    with serving(tmp_path_factory.mktemp("rabbitmq"), announce, untimed) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_of_platforms(
    tmp_path_factory: pytest.TempPathFactory,
    announce: Callable[[str], None],
    untimed: Callable[[], AbstractContextManager[None]],
) -> Iterator[RabbitMQ]:
    """One running server for all platforms of the session, which take each other's hints."""
    with serving(tmp_path_factory.mktemp("rabbitmq"), announce, untimed) as server:
        yield server


@pytest.fixture
def own_rabbitmq(
    tmp_path: Path, announce: Callable[[str], None], untimed: Callable[[], AbstractContextManager[None]]
) -> Iterator[RabbitMQ]:
    """A server for one test that counts hints or kills it."""
    with serving(tmp_path / "rabbitmq", announce, untimed) as server:
        yield server
