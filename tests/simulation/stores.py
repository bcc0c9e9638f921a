"""The stores of the simulation: those in memory, with the faults of real ones, reporting to the checker.

The job store keeps every version of every document, so that ``find`` can return stale results as far as real stores
may: never from before the last write that was acknowledged to the same client. etcd ends leases by its own clock; the
real client of its adapter keeps them alive, over a channel that can be slow or cut.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from services.core.adapters.etcd.lease import EtcdLease
from services.core.domain.job import Event, Job
from services.core.gen.weft.etcd import rpc_pb2
from services.core.ports.job_store import DispatcherDoc, JobQuery
from tests.simulation.checker import Checker
from tests.testbed.memory.jobs import MemoryJobStore
from tests.testbed.memory.status_store import MemoryLease, MemoryStatusStore

if TYPE_CHECKING:
    from tests.simulation.network import Connection


class CheckedJobStore(MemoryJobStore):
    """The job store. It reports every commit to the checker."""

    def __init__(self, checker: Checker, caller: Callable[[], str]) -> None:
        """``caller``: returns the name of the process whose call is being executed."""
        super().__init__()
        self._checker, self._caller = checker, caller
        self.commits = 0
        """How many writes there were."""
        self._versions: dict[str, list[tuple[int, Job]]] = {}
        """Job id -> [(number of the commit, the job after it)]."""

    def _record(self, job: Job) -> Job:
        self.commits += 1
        self._versions.setdefault(job.id, []).append((self.commits, job))
        return job

    async def insert(self, job: Job) -> Job:
        stored = self._record(await super().insert(job))
        self._checker.committed(self._caller(), None, stored)
        return stored

    async def replace(self, prior: Job, new: Job) -> Job:
        current = await self.get(prior.id)
        stored = self._record(await super().replace(prior, new))
        self._checker.committed(self._caller(), current, stored)
        return stored

    async def append_history(self, job_id: str, tenant: str, events: Sequence[Event]) -> None:
        await super().append_history(job_id, tenant, events)
        self.commits += 1
        self._checker.copied(job_id, await self.history(job_id))

    async def replace_dispatcher(self, prior: DispatcherDoc, new: DispatcherDoc) -> DispatcherDoc:
        stored = await super().replace_dispatcher(prior, new)
        self.commits += 1
        self._checker.dispatches(self._caller(), stored.term)
        return stored

    async def find_stale(self, query: JobQuery, *, at: int, **options: Any) -> Sequence[Job]:
        """Returns what ``find`` would have returned after commit number ``at``."""
        older = MemoryJobStore()
        for job_id, versions in self._versions.items():
            count = bisect_right(versions, at, key=lambda version: version[0])
            if count:
                older._jobs[job_id] = versions[count - 1][1]
        older._ids = sorted(older._jobs)
        return await older.find(query, **options)


class SimulatedEtcd(MemoryStatusStore):
    """The status store. Leases run out by its own clock."""

    def __init__(self, checker: Checker, *, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self._checker = checker
        self._client_leases: dict[int, EtcdLease] = {}

    async def lease(self, ttl_s: float) -> MemoryLease:
        lease = await super().lease(ttl_s)
        self.keep_alive(lease.id)
        return lease

    def keep_alive(self, lease_id: int) -> float:
        """Returns the granted TTL in seconds; 0 where the lease does not exist. Raises Unavailable."""
        self._check_reachable()
        lease = self._leases.get(lease_id)
        if lease is None:
            return 0
        lease.ends = self.clock() + lease.ttl_s
        asyncio.get_running_loop().call_later(lease.ttl_s, self.tick)
        return lease.ttl_s

    def tick(self) -> None:
        """Ends the leases that have run out. Their clients must know it by then: the checker records it."""
        for lease in [lease for lease in self._leases.values() if not lease.alive]:
            client_lease = self._client_leases.pop(lease.id, None)
            if client_lease is not None:
                self._checker.lease_ran_out(lease.id, believed=client_lease.alive)
            self.end(lease)

    def go_away(self) -> None:
        self._away = True

    def come_back(self) -> None:
        """Answers again. Leases that ran out meanwhile are gone; clients keep the others alive."""
        self._away = False

    async def open_lease(self, connection: Connection, ttl_s: float) -> EtcdLease:
        """As ``EtcdStatusStore.lease``: returns the real client's lease, over the connection of one process."""
        requested_at = self.clock()
        granted: MemoryLease = await connection.call("status", "lease", self.lease, (ttl_s,), {})
        etcd_connection: Any = _EtcdConnection(connection, self)
        lease = EtcdLease(etcd_connection, granted.id, ttl_s=ttl_s, requested_at=requested_at, boottime=self.clock)
        self._client_leases[granted.id] = lease
        connection.leases.append(lease)
        return lease


@dataclass
class _EtcdConnection:
    """The part of the adapter's connection that a lease uses."""

    connection: Connection
    etcd: SimulatedEtcd

    def __post_init__(self) -> None:
        self.lease = SimpleNamespace(LeaseRevoke=self.etcd.revoke_id)

    async def metadata(self) -> None: ...

    def channel(self) -> _Channel:
        return _Channel(self.connection, self.etcd)

    async def drop(self, channel: object) -> None: ...

    def forget_token(self, metadata: object) -> None: ...

    async def call(self, method: Any, request: Any) -> None:
        await self.connection.call("status", "revoke_id", method, (request.ID,), {})


class _Channel:
    """The part of a gRPC channel that a lease uses: a stream of keep-alives."""

    def __init__(self, connection: Connection, etcd: SimulatedEtcd) -> None:
        self._connection, self._etcd = connection, etcd

    def unary_unary(self, *_: Any, **__: Any) -> None: ...

    def unary_stream(self, *_: Any, **__: Any) -> None: ...

    def stream_stream(self, *_: Any, **__: Any) -> Callable[..., _KeepAlives]:
        return lambda **_: _KeepAlives(self._connection, self._etcd)


class _KeepAlives:
    def __init__(self, connection: Connection, etcd: SimulatedEtcd) -> None:
        self._connection, self._etcd = connection, etcd
        self._requested: list[int] = []

    async def write(self, request: Any) -> None:
        self._requested.append(request.ID)

    async def read(self) -> Any:
        lease_id = self._requested.pop(0)
        ttl = await self._connection.call("status", "keep_alive", self._keep_alive, (lease_id,), {})
        return rpc_pb2.LeaseKeepAliveResponse(ID=lease_id, TTL=int(ttl))

    async def _keep_alive(self, lease_id: int) -> float:
        return self._etcd.keep_alive(lease_id)

    def cancel(self) -> None: ...
