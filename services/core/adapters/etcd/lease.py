"""A lease that never believes itself alive for longer than etcd does.

etcd counts a lease's TTL from when a keep-alive *arrives*; we count it from before that keep-alive was *sent*, on a
clock that goes on while the machine sleeps. So ``alive`` turns false before any other can see the keys gone, whatever
happens to the connection, to etcd, or to this process. (An etcd that restarts renews its leases in full: later still,
never earlier.) The work of whoever holds the lease is still fenced by its term: this only makes it stop in time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import grpc.aio

from services.core.adapters.etcd.connection import Connection
from services.core.domain.errors import WeftError
from services.core.gen.weft.etcd import rpc_pb2, rpc_pb2_grpc

_RETRY_S: Final = 0.1
_BROKEN: Final = (
    grpc.aio.AioRpcError,
    grpc.aio.UsageError,
    asyncio.InvalidStateError,  # a write to a call that has ended
    TimeoutError,
    WeftError,
)
_SHARES: Final = 3
"""A keep-alive every third of the TTL, so that one may be lost."""


class EtcdLease:
    """Made by ``EtcdStatusStore.lease``."""

    def __init__(
        self, connection: Connection, lease_id: int, *, ttl_s: float, asked_at: float, boottime: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._id = lease_id
        self._ttl_s = ttl_s
        self._boottime = boottime
        self._deadline = asked_at + ttl_s
        self._gone = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(), name=f"lease-{lease_id:x}")

    @property
    def id(self) -> int:
        return self._id

    @property
    def alive(self) -> bool:
        return not self._gone.is_set() and self._remaining > 0

    async def lost(self) -> None:
        await self._gone.wait()

    async def revoke(self) -> None:
        await self.stop()
        with suppress(WeftError):
            await self._connection.call(self._connection.lease.LeaseRevoke, rpc_pb2.LeaseRevokeRequest(ID=self._id))

    async def stop(self) -> None:
        """Keeps it alive no longer, without revoking it: in etcd it ends by itself, here it has."""
        self._gone.set()
        self._keeper.cancel()
        await asyncio.wait({self._keeper})

    @property
    def _remaining(self) -> float:
        return self._deadline - self._boottime()

    @property
    def _patience(self) -> float:
        """For one keep-alive: so that another can be tried, and never past the deadline."""
        return min(self._remaining, self._ttl_s / _SHARES)

    async def _keep(self) -> None:
        try:
            while self.alive:
                with suppress(*_BROKEN):
                    await self._keep_by_one_stream()
                # Jitter: all processes of an installation lose etcd at the same moment.
                await asyncio.sleep(max(0.0, min(self._remaining, _RETRY_S * random.uniform(0.5, 1.5))))
        finally:
            self._gone.set()

    async def _keep_by_one_stream(self) -> None:
        async with asyncio.timeout(self._patience):
            metadata = await self._connection.metadata()
        channel = self._connection.channel()
        call: Any = None
        try:
            while self.alive:
                # The first keep-alive follows the grant at once: it opens the stream while there is time.
                async with asyncio.timeout(self._patience):
                    if call is None:
                        call = rpc_pb2_grpc.LeaseStub(channel).LeaseKeepAlive(metadata=metadata)
                    sent = self._boottime()
                    await call.write(rpc_pb2.LeaseKeepAliveRequest(ID=self._id))
                    reply = await call.read()
                if reply is grpc.aio.EOF:
                    return
                if reply.TTL <= 0:  # etcd does not know it: it ran out, or etcd forgot everything
                    self._gone.set()
                    return
                self._deadline = sent + reply.TTL
                await asyncio.sleep(self._ttl_s / _SHARES)
        except grpc.aio.AioRpcError:
            self._connection.forget_token(metadata)
            raise
        finally:
            if call is not None:
                call.cancel()
            await self._connection.drop(channel)
