"""Listening sockets that outlive the process that serves them.

The supervisor listens at the addresses for users and hands the sockets to each api that it starts, so the ports belong
to the platform from its start to its end: no other program can take one while the api restarts, and connections of that
time wait in the backlog. A supervisor that starts while the api already runs receives the sockets from the api.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.core.domain.errors import Unavailable, WeftError
from services.core.runtime.sockets import SocketPlace, connect_socket

VARIABLE: Final = "WEFT_HELD_SOCKETS"
"""In the environment of the api: JSON, name of an address -> number of the descriptor."""
PLACE: Final = "api-held"
"""The socket, in the folder of sockets, at which the api hands its listening sockets to a new supervisor."""
_MESSAGE: Final = 4096
_TIMEOUT_S: Final = 2.0


def for_child(held: Mapping[str, socket.socket]) -> tuple[dict[str, str], tuple[int, ...]]:
    """Variables and descriptors for a child process that serves these sockets."""
    descriptors = {name: listener.fileno() for name, listener in held.items()}
    return {VARIABLE: json.dumps(descriptors)}, tuple(descriptors.values())


def take_inherited(environ: MutableMapping[str, str] = os.environ) -> dict[str, socket.socket]:
    """The sockets that the supervisor has handed to this process; empty without one. Call it once."""
    descriptors: dict[str, int] = json.loads(environ.pop(VARIABLE, "{}"))
    for descriptor in descriptors.values():
        os.set_inheritable(descriptor, False)
    return {name: socket.socket(fileno=descriptor) for name, descriptor in descriptors.items()}


async def hand_over(held: Mapping[str, socket.socket], folder: Path) -> None:
    """Sends the sockets to each process that connects to ``PLACE`` in ``folder``, until cancelled.

    Raises WeftError if another process serves there.
    """
    place = SocketPlace.take(folder / PLACE)
    # Copies: the servers close theirs when they stop.
    copies = {name: listener.dup() for name, listener in held.items()}
    loop = asyncio.get_running_loop()
    try:
        with place.listen(4) as listener:
            listener.setblocking(False)
            while True:
                connection, _ = await loop.sock_accept(listener)
                with connection, suppress(OSError):
                    connection.setblocking(True)  # the message fits any buffer
                    _send(connection, copies)
    finally:
        for copy in copies.values():
            copy.close()
        place.release()


def _send(connection: socket.socket, held: Mapping[str, socket.socket]) -> None:
    socket.send_fds(connection, [json.dumps(list(held)).encode()], [listener.fileno() for listener in held.values()])


def receive(folder: Path) -> dict[str, socket.socket]:
    """The sockets of the api that runs; empty if it does not answer."""
    try:
        with connect_socket(folder / PLACE, _TIMEOUT_S) as connection:
            text, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE, 8)
    except (OSError, Unavailable):
        return {}
    listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for listener in listeners:
        listener.set_inheritable(False)
    try:
        return dict(zip(json.loads(text), listeners, strict=True))
    except ValueError as error:
        for listener in listeners:
            listener.close()
        raise WeftError(f"the api sent no list of its sockets: {error}") from None
