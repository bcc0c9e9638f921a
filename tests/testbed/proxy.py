"""A TCP proxy on loopback whose network fails on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Final

_TURNS: Final = 3
"""Iterations of the event loop: a connection accepted last is made in the next one and closed two later."""


class Proxy:
    """``cut``: connections break, and new ones are refused. ``freeze``: those of now go silent without breaking.

    ``lose_answer_to``: the next request that holds these bytes is passed on; at its answer the connection breaks.
    ``loses_answer_to``: is called with each piece of a request; if it returns True, the answer is lost in the same way.
    ``instead``: bytes of requests, and as many others that arrive in their place.
    """

    def __init__(self, upstream: str, *, instead: tuple[bytes, bytes] = (b"", b"")) -> None:
        self._instead = instead
        self.connections = 0
        """Connections since the start."""
        self._upstream = upstream
        self._cut = False
        self._frozen: set[asyncio.StreamWriter] = set()
        self._losing = b""
        self.loses_answer_to: Callable[[bytes], bool] = lambda _request: False
        self._unanswered: set[asyncio.StreamWriter] = set()
        """Connections whose next bytes are dropped."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        assert self._server is not None
        return "{}:{}".format(*self._server.sockets[0].getsockname())

    def cut(self) -> None:
        self._cut = True
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self) -> None:
        self._frozen |= self._writers

    def mend(self) -> None:
        """Lets new connections work again; frozen connections stay frozen."""
        self._cut = False

    def lose_answer_to(self, marker: bytes) -> None:
        self._losing = marker

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: a task cancelled before its first step would leave the connection open."""
        self.connections += 1
        if self._cut:
            writer.transport.abort()
            return
        self._writers.add(writer)
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._forget(writer))
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await _connect(self._upstream)
        except OSError:
            return
        self._writers.add(back)
        try:
            if not writer.is_closing():  # cut meanwhile
                await asyncio.gather(self._pump(reader, back, asker=writer), self._pump(there, writer))
        finally:
            self._forget(back)

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        for kept in (self._writers, self._frozen, self._unanswered):
            kept.discard(writer)
        writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asker: asyncio.StreamWriter | None = None
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                if asker is not None and self._losing and self._losing in chunk:
                    self._losing = b""
                    self._unanswered.add(asker)
                if asker is not None and self.loses_answer_to(chunk):
                    self._unanswered.add(asker)
                if asker is not None and self._instead[0]:
                    chunk = chunk.replace(*self._instead)
                if writer in self._unanswered:
                    break
                if writer not in self._frozen:
                    writer.write(chunk)
                    await writer.drain()
        writer.transport.abort()


async def _connect(upstream: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to ``host:port`` or ``unix:/path``."""
    if upstream.startswith("unix:"):
        return await asyncio.open_unix_connection(upstream.removeprefix("unix:"))
    host, _, port = upstream.rpartition(":")
    return await asyncio.open_connection(host, int(port))


@contextlib.asynccontextmanager
async def proxied(upstream: str, *, instead: tuple[bytes, bytes] = (b"", b"")) -> AsyncGenerator[Proxy, None]:
    proxy = Proxy(upstream, instead=instead)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
