"""Sockets in a private folder: only the platform's user reaches them, and one process serves each.

* A folder is opened without following a link, and must belong to this user with mode 0700. Nothing else is used.
* A path longer than the kernel's 107 bytes is reached through the folder's descriptor (``/proc/self/fd/N/name``), so an
  installation may lie anywhere.
* A server holds a lock beside its socket as long as it lives. It listens under a temporary name and then renames it:
  the socket of a killed process is replaced at once, a running process's never, and no late clean-up of a former server
  can remove the socket of its successor.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import Final, Self

from services.core.domain.errors import Unavailable, WeftError
from services.core.runtime.address import SOCKET_PATH_BYTES
from services.core.runtime.undo import undo_on_failure

_LOCK: Final = ".lock"
_TEMPORARY: Final = ".new-"
_PROBE_AFTER_S: Final = 60
_PROBE_EVERY_S: Final = 15
_PROBES: Final = 4
"""A silent client that answers none of so many probes has vanished: its connection ends after two minutes."""


def make_private_folder(folder: Path) -> None:
    """Makes the folder with mode 0700, or corrects the mode of one that is this user's. Raises WeftError, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)
    os.close(open_private_folder(folder))


def open_private_folder(folder: Path) -> int:
    """A descriptor of the folder. Raises WeftError unless it is this user's with mode 0700; Unavailable if missing."""
    try:
        descriptor = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Unavailable(f"{folder} does not exist yet", retry_after_s=1) from None
    except OSError as error:
        raise WeftError(f"{folder} is no folder for sockets: {error.strerror}") from None
    state = os.fstat(descriptor)
    if state.st_uid == os.geteuid() and stat.S_IMODE(state.st_mode) == 0o700:
        return descriptor
    os.close(descriptor)
    raise WeftError(
        f"{folder} must belong to user {os.geteuid()} with mode 0700, but has user {state.st_uid} and mode "
        f"{stat.S_IMODE(state.st_mode):04o}: others could listen in the place of a service"
    )


def short_path(path: Path, descriptor: int) -> str:
    """``path`` if the kernel takes it as the path of a socket, else the same through its folder's descriptor."""
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return str(path)
    return f"/proc/self/fd/{descriptor}/{path.name}"


def connect_socket(path: Path, timeout_s: float) -> socket.socket:
    """A connection to the server at ``path``. Raises OSError, and as ``open_private_folder``."""
    descriptor = open_private_folder(path.parent)
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with undo_on_failure(connection.close):
            connection.settimeout(timeout_s)
            connection.connect(short_path(path, descriptor))
    finally:
        os.close(descriptor)
    return connection


def set_connection_options(listener: socket.socket) -> None:
    """Sets what the connections of a TCP listener inherit: they send at once, and end if their client vanishes.

    asyncio sets TCP_NODELAY only on sockets that it creates. Without it each response waits 40 ms for an
    acknowledgement between its head and its body. Without keep-alive a connection on which the server does not write
    outlives a client that lost its network or its power.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


class SocketPlace:
    """The sole right to serve at a path, from ``take`` until ``release`` or the end of the process."""

    def __init__(self, path: Path, descriptor: int, lock: int) -> None:
        self._path, self._descriptor, self._lock = path, descriptor, lock
        self._temporary = f"{_TEMPORARY}{os.urandom(3).hex()}"

    @classmethod
    def take(cls, path: Path) -> Self:
        """Raises WeftError if another process serves there, or the folder is not private."""
        descriptor = open_private_folder(path.parent)
        try:
            lock = os.open(
                path.name + _LOCK,
                os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=descriptor,
            )
        except OSError as error:
            os.close(descriptor)
            raise WeftError(f"cannot listen on {path}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            os.close(descriptor)
            raise WeftError(f"cannot listen on {path}: another process serves there") from None
        return cls(path, descriptor, lock)

    @property
    def temporary(self) -> str:
        """The path at which to listen before ``publish``."""
        return short_path(self._path.with_name(self._temporary), self._descriptor)

    def publish(self) -> None:
        """Gives the listening socket its name, in the place of an older one."""
        os.rename(self._temporary, self._path.name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def release(self) -> None:
        """Lets another server take the place. May be called again."""
        if self._lock >= 0:
            os.close(self._lock)
            os.close(self._descriptor)
            self._lock = self._descriptor = -1

    def listen(self, backlog: int) -> socket.socket:
        """A published listening socket of this place. Raises WeftError if it cannot be made."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self.temporary)
            listener.listen(backlog)
            self.publish()
        except OSError as error:
            listener.close()
            self.release()
            raise WeftError(f"cannot listen on {self._path}: {error.strerror}") from None
        return listener


def remove_unfinished(folder: Path) -> None:
    """Removes the temporary names of processes that were killed while they began to listen. Only while none runs."""
    for entry in folder.glob(f"{_TEMPORARY}*"):
        entry.unlink(missing_ok=True)
