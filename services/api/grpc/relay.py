"""Carries connections from the socket that the supervisor holds to the gRPC server of this process.

gRPC for Python cannot serve a socket that exists already. So the server listens at a socket in the private folder, and
every connection to the held port is joined to a connection there, byte by byte, with the back-pressure of both sides.
The inner connection has a name, by which the server tells connections apart and can have one cut: gRPC itself cannot
close a connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Final, cast

from services.core.runtime.connections import Connections
from services.core.runtime.sockets import open_private_folder, set_connection_options, short_path
from services.core.runtime.undo import undo_on_failure

_ABSTRACT: Final = "unix-abstract:"
"""With it gRPC begins the name of a peer whose socket has a name without a file."""


class _End(asyncio.Protocol):
    """One end of a joined pair."""

    def __init__(self, peer: _End | None = None) -> None:
        self.peer: _End | None = peer
        self.transport: asyncio.Transport | None = None
        self.has_ended = False
        """The other side sends nothing more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    @property
    def _opposite(self) -> asyncio.Transport | None:
        """The peer's transport; None until it is connected."""
        return self.peer.transport if self.peer is not None else None

    def data_received(self, data: bytes) -> None:
        if (opposite := self._opposite) is not None:
            opposite.write(data)

    def eof_received(self) -> bool:
        """False closes this end, and ``connection_lost`` the opposite one: both directions have ended."""
        self.has_ended = True
        if (opposite := self._opposite) is not None and opposite.can_write_eof():
            opposite.write_eof()
        return self.peer is None or not self.peer.has_ended

    def connection_lost(self, exc: Exception | None) -> None:
        if (opposite := self._opposite) is not None:
            opposite.close()

    def pause_writing(self) -> None:
        if (opposite := self._opposite) is not None:
            opposite.pause_reading()

    def resume_writing(self) -> None:
        if (opposite := self._opposite) is not None and not opposite.is_closing():
            opposite.resume_reading()


class _Outer(_End):
    """The user's end. Sends nothing on until its inner end is connected."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay
        self._early: list[bytes] = []
        self.name = ""
        """Of its inner end, as ``context.peer()`` of gRPC; empty until it is connected."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None  # noqa: S101 - set by the line before
        self.transport.pause_reading()
        self._relay.join(self)

    def data_received(self, data: bytes) -> None:
        # uvloop may still deliver what it has read when reading was paused.
        if self.peer is None:
            self._early.append(data)
        super().data_received(data)

    def joined(self, inner: _End) -> None:
        """Sends on what came before the inner end was connected, and reads on."""
        assert self.transport is not None  # noqa: S101 - it is connected
        self.peer = inner
        for data in self._early:
            super().data_received(data)
        self._early.clear()
        if self.has_ended and (opposite := self._opposite) is not None:
            opposite.write_eof()
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._relay.left(self)


class Relay:
    """``path``: the socket of the gRPC server. Use ``start`` once the server listens there."""

    def __init__(self, held: socket.socket, path: Path, connections: Connections) -> None:
        self._held, self.path, self._connections = held, path, connections
        set_connection_options(held)
        self._outer: set[_Outer] = set()
        self._named: dict[str, _Outer] = {}
        self._joining: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._folder = -1

    async def start(self) -> None:
        self._folder = open_private_folder(self.path.parent)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Outer(self), sock=self._held, backlog=2048
        )

    def refuse_new(self) -> None:
        """Accepts no more connections: they wait in the backlog of the held socket for the next process."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Ends what is left."""
        self.refuse_new()
        for outer in list(self._outer):
            if outer.transport is not None:
                outer.transport.abort()
        await asyncio.gather(*self._joining, return_exceptions=True)
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def join(self, outer: _Outer) -> None:
        """Connects the inner end of a new connection."""
        assert outer.transport is not None  # noqa: S101 - it has just been made
        if not self._connections.admit(outer.transport):
            outer.transport.abort()
            return
        self._outer.add(outer)
        task = asyncio.create_task(self._join(outer, outer.transport))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, outer: _Outer, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            with undo_on_failure(connection.close):
                connection.bind("")  # the kernel chooses a name that no other socket has
                outer.name = f"{_ABSTRACT}{connection.getsockname()[1:].decode()}"
                await loop.sock_connect(connection, short_path(self.path, self._folder))
                _, inner = await loop.create_unix_connection(lambda: _End(outer), sock=connection)
        except OSError:  # the server stops
            transport.abort()
            return
        if transport.is_closing():
            assert inner.transport is not None  # noqa: S101 - it is connected
            inner.transport.close()
            return
        self._named[outer.name] = outer
        outer.joined(inner)

    def cut(self, name: str) -> None:
        """Closes the connection whose inner end has this name. Without effect if there is none."""
        outer = self._named.get(name)
        if outer is not None and outer.transport is not None:
            outer.transport.abort()

    def left(self, outer: _Outer) -> None:
        """The connection has ended."""
        self._outer.discard(outer)
        if self._named.get(outer.name) is outer:  # else the kernel has given the name to a newer one
            del self._named[outer.name]
        if outer.transport is not None:
            self._connections.left(outer.transport)
