"""StatusStore on etcd. Keys are stored below the prefix of the installation: ``/jobs/x`` is ``/weft/jobs/x``."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from grpc.aio import UnaryUnaryMultiCallable

from services.core.adapters.etcd.connection import MAX_MESSAGE, Connection, Credentials, ReplyT, RequestT
from services.core.adapters.etcd.lease import EtcdLease
from services.core.adapters.etcd.watch import Keyspace, Listing, read_all, resuming
from services.core.domain.errors import Conflict, NotFound
from services.core.gen.weft.etcd import rpc_pb2
from services.core.ports.status_store import Change, Entry, Lease, check_key, check_value
from services.core.runtime.address import Address

_TIMEOUT_S: Final = 3.0
_SILENCE_S: Final = 3.0


def boottime() -> float:
    """Seconds on CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class EtcdStatusStore:
    """Create it inside the event loop that uses it."""

    def __init__(
        self,
        target: Address | str,
        *,
        prefix: str = "/weft",
        credentials: Credentials = Credentials(),  # noqa: B008 - frozen
        timeout_s: float = _TIMEOUT_S,
        silence_s: float = _SILENCE_S,
        max_message: int = MAX_MESSAGE,
        clock: Callable[[], float] = boottime,
    ) -> None:
        """``target``: see ``Connection``. ``timeout_s``: of each call. ``silence_s``: a watch without messages for this
        long requests progress, and reconnects after as long again. ``max_message``: largest reply, in bytes. ``clock``:
        seconds on a clock that runs while the machine sleeps.
        """
        self._connection = Connection(target, credentials=credentials, timeout_s=timeout_s, max_message=max_message)
        self._keys = Keyspace(prefix)
        self._silence_s = silence_s
        self._clock = clock
        self._leases: set[EtcdLease] = set()

    async def get(self, key: str) -> Entry | None:
        reply = await self._connection.call(self._connection.kv.Range, rpc_pb2.RangeRequest(key=self._keys.full(key)))
        return self._keys.entry(reply.kvs[0]) if reply.kvs else None

    async def list(self, prefix: str) -> Sequence[Entry]:
        listing: Listing = await read_all(self._connection, self._keys, prefix)
        return listing.entries

    async def put(self, key: str, value: str, *, lease: Lease | None = None) -> int:
        reply = await self._write(self._connection.kv.Put, self._put(key, value, lease))
        return reply.header.revision

    async def put_if(self, key: str, value: str, *, mod_revision: int, lease: Lease | None = None) -> int | None:
        return await self._put_in_txn([self._unchanged(key, mod_revision)], self._put(key, value, lease))

    async def put_while(
        self, key: str, value: str, *, guard_key: str, guard_value: str, mod_revision: int
    ) -> int | None:
        guard = rpc_pb2.Compare(
            key=self._keys.full(guard_key),
            target=rpc_pb2.Compare.VALUE,
            result=rpc_pb2.Compare.EQUAL,
            value=check_value(guard_value).encode(),
        )
        return await self._put_in_txn([guard, self._unchanged(key, mod_revision)], self._put(key, value, None))

    async def delete(self, key: str) -> None:
        request = rpc_pb2.DeleteRangeRequest(key=self._keys.full(key))
        await self._connection.call(self._connection.kv.DeleteRange, request)

    async def delete_prefix(self, prefix: str) -> int:
        first, end = self._keys.range(prefix)
        request = rpc_pb2.DeleteRangeRequest(key=first, range_end=end)
        return (await self._connection.call(self._connection.kv.DeleteRange, request)).deleted

    def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        return resuming(self._connection, self._keys, check_key(prefix), silence_s=self._silence_s)

    async def lease(self, ttl_s: float) -> Lease:
        requested_at = self._clock()
        reply = await self._connection.call(
            self._connection.lease.LeaseGrant, rpc_pb2.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        )
        lease = EtcdLease(self._connection, reply.ID, ttl_s=reply.TTL, requested_at=requested_at, boottime=self._clock)
        self._leases = {other for other in self._leases if other.alive} | {lease}
        return lease

    async def revoke_id(self, lease_id: int) -> None:
        try:
            await self._connection.call(self._connection.lease.LeaseRevoke, rpc_pb2.LeaseRevokeRequest(ID=lease_id))
        except NotFound:
            return

    async def ping(self) -> None:
        request = rpc_pb2.RangeRequest(key=self._keys.full("/ping"), count_only=True)
        await self._connection.call(self._connection.kv.Range, request)

    async def close(self) -> None:
        """Ends watches and keep-alives; leases that were not revoked run out."""
        await asyncio.gather(*(lease.stop() for lease in self._leases))
        await self._connection.close()

    def _put(self, key: str, value: str, lease: Lease | None) -> rpc_pb2.PutRequest:
        return rpc_pb2.PutRequest(
            key=self._keys.full(key),
            value=check_value(value).encode(),
            lease=lease.id if lease is not None else 0,
        )

    def _unchanged(self, key: str, mod_revision: int) -> rpc_pb2.Compare:
        return rpc_pb2.Compare(
            key=self._keys.full(key),
            target=rpc_pb2.Compare.MOD,
            result=rpc_pb2.Compare.EQUAL,
            mod_revision=mod_revision,
        )

    async def _put_in_txn(self, conditions: Sequence[rpc_pb2.Compare], put: rpc_pb2.PutRequest) -> int | None:
        request = rpc_pb2.TxnRequest(compare=conditions, success=[rpc_pb2.RequestOp(request_put=put)])
        reply = await self._write(self._connection.kv.Txn, request)
        return reply.header.revision if reply.succeeded else None

    async def _write(self, method: UnaryUnaryMultiCallable[RequestT, ReplyT], request: RequestT) -> ReplyT:
        try:
            return await self._connection.call(method, request)
        except NotFound:  # a write refers to nothing else that may be missing
            raise Conflict("the lease of this write is gone") from None
