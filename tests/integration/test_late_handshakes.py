"""A server that accepts a connection and sends its first bytes late, on a busy machine, does not count as down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager, suppress

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.runtime.address import Address
from tests.testbed.etcd import Etcd
from tests.testbed.hints import Service, nudge
from tests.testbed.identities import credential
from tests.testbed.server import free_address
from tests.waiting import HANG_S, until

LATE_S = 0.6
"""Longer than all pauses between two tries to connect."""


class DelayingProxy:
    """A proxy on a Unix socket. It connects to its server when it is released; until then callers get no byte."""

    def __init__(self, upstream: str) -> None:
        self.address = free_address()
        self._upstream = upstream.removeprefix("unix:")
        self._released = asyncio.Event()
        self._connections = 0

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        server = await asyncio.start_unix_server(self._carry, self.address.removeprefix("unix:"))
        async with server:
            yield
            await until(lambda: self._connections == 0)

    async def release_during(self, call: Awaitable[object]) -> None:
        """Starts the call, delays its connection by ``LATE_S``, and returns when the call has succeeded."""
        calling, since = asyncio.ensure_future(call), time.monotonic()
        await until(lambda: calling.done() or time.monotonic() - since > LATE_S)
        self._released.set()
        await calling

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        await self._released.wait()
        there, back = await asyncio.open_unix_connection(self._upstream)
        await asyncio.gather(_pump(reader, back), _pump(there, writer))
        self._connections -= 1


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(65_536):
            writer.write(chunk)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_call_of_a_service_waits_for_its_late_handshake() -> None:
    """On a busy machine the first call of a service failed after a tenth of a second: "it does not answer"."""
    address = free_address()
    service, proxy = Service("lcm", Address(address)), DelayingProxy(address)
    await service.start()
    try:
        async with proxy.serving():
            await proxy.release_during(nudge(proxy.address, credential("worker", "lcm")))
    finally:
        await service.stop()
    assert len(service.nudged.heard) == 1


async def test_call_of_etcd_waits_for_its_late_handshake(etcd: Etcd, etcd_prefix: str) -> None:
    proxy = DelayingProxy(etcd.address)
    async with proxy.serving():
        store = EtcdStatusStore(proxy.address, timeout_s=HANG_S, prefix=etcd_prefix)
        try:
            await proxy.release_during(store.put("/jobs/j1/attempt", "1"))
        finally:
            await store.close()
