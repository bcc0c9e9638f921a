"""A port of the test cluster's network that leads to this machine's loopback: pods reach services here by it."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.testbed.kubernetes.control_plane import ADDRESS

_NEW_NET: Final = 0x40000000


def listen_inside(pid: int, host: str, port: int) -> socket.socket:
    """A listening socket in the network of the process ``pid``. It stays there; the calling process does not enter."""
    made: list[socket.socket] = []
    errors: list[OSError] = []

    def listen() -> None:  # in a thread of its own: setns changes the network of the calling thread only
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(namespace, _NEW_NET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.create_server((host, port)))
        except OSError as error:
            errors.append(error)
        finally:
            os.close(namespace)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return made[0]


@contextmanager
def doorway(control_plane_pid: int, port: int) -> Generator[str]:
    """Within it, connections of pods to the returned host at ``port`` reach 127.0.0.1 at this port."""
    with listen_inside(control_plane_pid, ADDRESS, port) as listener:
        script = Path(__file__).with_name("forwarder.py")
        forwarder = subprocess.Popen(
            [sys.executable, "-S", "-E", str(script), str(listener.fileno()), "127.0.0.1", str(port)],
            pass_fds=[listener.fileno()],
        )
    try:
        yield ADDRESS
    finally:
        forwarder.kill()
        forwarder.wait()
