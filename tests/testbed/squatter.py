"""A hostile program, run as another user where the caller is root: tries to listen where the platform listens.

    python squatter.py FOLDER PORT...

It tries, a thousand times a second, to bind each port, and to put a socket in the place of each name in FOLDER. It
prints ``ready`` once, and a line for each address that it got and for everything that anybody sent to it. A port that
it had it tries again once its service has listened there: otherwise that service would not start as long as this
program runs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from pathlib import Path

NAMES = (
    "lcm",
    "guardian",
    "metrics",
    "node",
    "lcm-ops",
    "api-ops",
    "localhost:1",
    "localhost:2",
    "api-behind-grpc",
    "api-inner",
)
PAUSE_S = 0.001
"""An address of a service that restarts is free for far longer. Without a pause this program takes a whole processor,
and the services restart half as often.
"""
_LISTEN = "0A"
"""A state of a connection in /proc/net/tcp."""


def say(text: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def listen_on_port(port: int) -> socket.socket | None:
    """Tries the port with both ways to share it."""
    listener = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        listener.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError:
        listener.close()
        return None
    return listener


def listen_at_path(path: Path) -> socket.socket | None:
    """Tries to put a socket there, also in the place of another."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        listener.bind(str(path))
        listener.listen()
    except OSError:
        listener.close()
        return None
    return listener


def listening_ports() -> set[int]:
    """Ports of IPv4 and IPv6 at which any program listens."""
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):  # without IPv6
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == _LISTEN:
                    ports.add(int(local.rpartition(":")[2], 16))
    return ports


def report_one(listener: socket.socket, place: str) -> None:
    """Prints what the next caller sends; nothing if there is none within a second."""
    listener.settimeout(1)
    with contextlib.suppress(OSError):
        connection, _ = listener.accept()
        connection.settimeout(1)
        say(f"{place} received {connection.recv(65536)!r}")


def main() -> None:
    folder, ports = Path(sys.argv[1]), [int(port) for port in sys.argv[2:]]
    had: set[int] = set()
    say("ready")
    while os.getppid() != 1:  # the test has ended
        had -= listening_ports() if had else set()
        for port in ports:
            if port in had:
                continue
            listener = listen_on_port(port)
            if listener is not None:
                say(f"port {port} was free")
                report_one(listener, f"port {port}")
                listener.close()
                had.add(port)
        for name in NAMES:
            listener = listen_at_path(folder / name)
            if listener is not None:
                say(f"{name} could be replaced")
                report_one(listener, name)
                listener.close()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
