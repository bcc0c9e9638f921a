"""Attacks by use: processes, memory, disk, files, sockets and connections. Every one has a bound of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.hostile.attacks.ground import detached, folder, in_child, intel, say

_STAY_S: Final = 5.0
_FORKS: Final = 1_500
_MIB: Final = 2**20


def processes_are_forked() -> None:
    """Forks fifteen hundred processes that ignore SIGTERM and stay."""

    def wait() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)

    made = 0
    with suppress(OSError):
        for _ in range(_FORKS):
            if os.fork() == 0:
                wait()
                os._exit(0)
            made += 1
    say(f"{made} processes")


def memory_is_taken() -> None:
    """Takes half a gibibyte in a child, four times its job's memory."""

    def take() -> None:
        held = [bytearray(os.urandom(1)) * _MIB for _ in range(512)]
        time.sleep(0.5)
        say(f"holds {len(held)} MiB")

    say(f"the child ended with {in_child(take)}")


def disk_is_filled() -> None:
    """Writes three hundred megabytes in its home and its temporary folder, and leaves them."""
    for name in ("HOME", "TMPDIR"):
        with suppress(OSError), (folder(name) / "fill").open("wb") as file:
            for _ in range(150):
                file.write(os.urandom(_MIB))


def shared_memory_is_filled() -> None:
    """Leaves files in /dev/shm, /tmp, /var/tmp, /run/lock and /run/user: a hundred megabytes in all."""
    for place in ("/dev/shm", "/tmp", "/var/tmp", "/run/lock", "/run/user", "/run"):
        for number in range(4):
            with suppress(OSError):
                Path(place, f"hostile-{number}").write_bytes(b"x" * (4 * _MIB))
                say(f"wrote {place}")
            with suppress(OSError):
                Path(place, f".hostile-{number}").mkdir()
                Path(place, f".hostile-{number}", "inner").write_text("x")


def files_are_opened() -> None:
    """Opens files and pipes until it may not, and keeps them in a daemon."""

    def hold() -> None:
        held = []
        with suppress(OSError):
            for _ in range(40_000):
                held.append(os.pipe())
        time.sleep(_STAY_S)

    detached(hold)
    held = []
    with suppress(OSError):
        for _ in range(40_000):
            held.append(os.open("/dev/null", os.O_RDONLY))
    say(f"{len(held)} files")


def sockets_are_opened() -> None:
    """Listens at two thousand ports of the learners' and of the platform's range."""
    with contextlib.ExitStack() as held:
        count = 0
        for port in (*range(20_000, 21_000), *range(10_240, 11_240)):
            with suppress(OSError):
                listener = held.enter_context(socket.socket())
                listener.bind(("127.0.0.1", port))
                listener.listen(1)
                count += 1
        say(f"{count} ports")
        time.sleep(1)


def connections_are_held() -> None:
    """Opens five hundred connections to the api, or to what answers a pod, and leaves half a request on each."""
    host, _, port = intel()["front"].rpartition(":")
    with contextlib.ExitStack() as held:
        for _ in range(500):
            with suppress(OSError):
                connection = held.enter_context(socket.create_connection((host, int(port)), timeout=1))
                connection.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nX-A: ")
        (folder("JOB_STATE_DIR") / "ready").touch()
        deadline = time.monotonic() + 30
        while not (folder("JOB_STATE_DIR") / "go-on").exists() and time.monotonic() < deadline:
            time.sleep(0.05)


def processors_are_taken() -> None:
    """Runs twelve busy processes with the highest priority that it gets."""
    for _ in range(12):
        if os.fork() == 0:
            deadline = time.monotonic() + _STAY_S
            while time.monotonic() < deadline:
                pass
            os._exit(0)
    with suppress(ChildProcessError):
        while True:
            os.wait()
