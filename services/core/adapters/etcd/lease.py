"""A lease that is never alive here for longer than in etcd.

etcd counts a lease's TTL from the *arrival* of a keep-alive. This module counts it from before the keep-alive was
*sent*, on a clock that runs while the machine sleeps. So ``alive`` turns false before another process can see the keys
gone, whatever happens to the connection, to etcd or to this process. (An etcd that restarts renews its leases in full,
which is later, never earlier.) The holder's writes are fenced by its term anyway; the lease makes it stop in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import grpc.aio

from services.core.adapters.etcd.connection import Connection
from services.core.domain.errors import WeftError
from services.core.gen.weft.etcd import rpc_pb2, rpc_pb2_grpc
from services.core.runtime.retry import Backoff
from services.core.runtime.timers import aligned_pause

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 0.2
"""Short: a lease lives for seconds, and each retry may save it."""
_BROKEN: Final = (
    grpc.aio.AioRpcError,
    grpc.aio.UsageError,
    asyncio.InvalidStateError,  # a write to a call that has ended
    TimeoutError,
    WeftError,
)
_SHARES: Final = 3
"""A keep-alive is sent every third of the TTL, so that one may be lost."""


class EtcdLease:
    """Create it by ``EtcdStatusStore.lease``. Times are seconds on the ``boottime`` clock."""

    def __init__(
        self, connection: Connection, lease_id: int, *, ttl_s: float, requested_at: float, boottime: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._id = lease_id
        self._ttl_s = ttl_s
        self._boottime = boottime
        self._deadline = requested_at + ttl_s
        self._gone = asyncio.Event()
        self._backoff = Backoff(first_s=_FIRST_PAUSE_S, most_s=_LONGEST_PAUSE_S)
        self._renewal = asyncio.create_task(self._renew(), name=f"lease-{lease_id:x}")

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
        """Ends the keep-alives without revoking: here the lease is lost at once, in etcd it runs out."""
        self._gone.set()
        self._renewal.cancel()
        await asyncio.wait({self._renewal})

    @property
    def _remaining(self) -> float:
        return self._deadline - self._boottime()

    @property
    def _call_timeout_s(self) -> float:
        """Timeout of one keep-alive: leaves time for another one, and ends at the deadline."""
        return min(self._remaining, self._ttl_s / _SHARES)

    async def _renew(self) -> None:
        try:
            while self.alive:
                with suppress(*_BROKEN):
                    await self._renew_by_one_stream()
                await asyncio.sleep(max(0.0, min(self._remaining, self._backoff.next())))
        finally:
            self._gone.set()

    async def _renew_by_one_stream(self) -> None:
        async with asyncio.timeout(self._call_timeout_s):
            metadata = await self._connection.metadata()
        channel = self._connection.channel()
        call: Any = None
        try:
            while self.alive:
                # The first keep-alive follows the grant at once, and opens the stream while there is time.
                async with asyncio.timeout(self._call_timeout_s):
                    if call is None:
                        call = rpc_pb2_grpc.LeaseStub(channel).LeaseKeepAlive(metadata=metadata)
                    sent = self._boottime()
                    await call.write(rpc_pb2.LeaseKeepAliveRequest(ID=self._id))
                    reply = await call.read()
                if reply is grpc.aio.EOF:
                    return
                if reply.TTL <= 0:  # unknown to etcd: it ran out, or etcd lost everything
                    self._gone.set()
                    return
                self._deadline = sent + reply.TTL
                self._backoff.reset()
                await asyncio.sleep(aligned_pause(self._ttl_s / _SHARES))
        except grpc.aio.AioRpcError:
            self._connection.forget_token(metadata)
            raise
        finally:
            if call is not None:
                call.cancel()
            await self._connection.drop(channel)
