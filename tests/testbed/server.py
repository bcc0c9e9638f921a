"""A server of the test bed: a process on loopback that keeps its port over restarts and is ended by its own pid."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from services.local.layout import listen_lasting
from tests.testbed.signals import pause
from tests.waiting import HANG_S, in_thread, until

SLOTS: Final = max(16, 2 * ((os.cpu_count() or 1) + 1))
"""The same for all processes of this machine, and enough for the workers of two runs."""
_given: Final[deque[int]] = deque(maxlen=min(200, 4_000 // SLOTS))
"""Fewer than a slot has ports."""
_names: Final = itertools.count(1)
_UIDS: Final = (70_100, 9_900)
"""First, and how many."""
_LEARNER_PORTS: Final = (20_000, 10_000)


@functools.cache
def slot() -> int:
    """Number of this process among all on this machine that run tests, from 0 to SLOTS - 1.

    The kernel keeps it for this process by the name of a socket, which is free again however the process ends. The
    numbers of pytest-xdist are not enough: two runs have the same ones, and the replacement of a crashed worker too.
    """
    holder = socket.socket(socket.AF_UNIX)
    for number in range(SLOTS):
        with suppress(OSError):
            holder.bind(f"\0weft-testbed-slot-{number}")
            holder.detach()  # open until the process ends
            return number
    holder.close()
    return os.getpid() % SLOTS  # more processes than slots: two share one


def own_numbers() -> dict[str, str]:
    """Settings of a node agent: user ids and learners' ports that no other test process gives its agents.

    Two agents that know nothing of each other may give one user id to two jobs, and the end of a job ends all that run
    under its id.
    """
    settings: dict[str, str] = {}
    for name, (first, count) in (("UID", _UIDS), ("PORT", _LEARNER_PORTS)):
        share = count // SLOTS
        settings |= {f"WEFT_NODE_{name}_FIRST": str(first + slot() * share), f"WEFT_NODE_{name}_COUNT": str(share)}
    return settings


def own_uid() -> int:
    """The user id of learners without an agent, which no other test process gives. Agents have none of these."""
    return _UIDS[0] - 100 + slot() % 100


def free_port() -> int:
    """Returns a port that no outgoing connection can take and that was not returned recently.

    Test processes give ports of different remainders, so that no two of them give the same.
    """
    while True:
        with listen_lasting("127.0.0.1") as holder:
            drawn = int(holder.getsockname()[1])
        own = drawn - (drawn - slot()) % SLOTS
        with listen_lasting("127.0.0.1", first=own) as holder:
            is_free = own == int(holder.getsockname()[1])
        if is_free and own not in _given:
            _given.append(own)
            return own


@functools.cache
def socket_folder() -> Path:
    """A private folder with a short path, for sockets; removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="weft-s-", dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def free_address() -> str:
    """An address for an inner server that no other one of this run has."""
    return f"unix:{socket_folder()}/{next(_names)}"


class Server:
    """Subclasses define ``start`` and ``serves``."""

    starts_within_s = HANG_S

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the process on its existing data; it serves a moment later (``ready``)."""
        raise NotImplementedError

    def serves(self) -> bool:
        """True if it answers. OSError counts as not yet."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Waits until it serves. Raises AssertionError with its log if it ended."""
        await until(self._serves, timeout=self.starts_within_s)

    def kill(self) -> None:
        """Kill -9; does nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stops the process; returns once every thread has stopped, as it answers until then."""
        assert self._process is not None
        pause(self._process.pid)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _spawn(
        self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: str | Path | None = None
    ) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=cwd)

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-5000:]
        try:
            return self.serves()
        except OSError:
            return False


One = TypeVar("One", bound=Server)


@contextmanager
def running(server: One) -> Generator[One]:
    """Runs the server and ends it afterwards."""
    try:
        server.start()
        in_thread(server.ready)  # in a thread: an asynchronous fixture may call this while its loop runs
        yield server
    finally:
        server.kill()
