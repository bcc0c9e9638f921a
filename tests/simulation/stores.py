"""The stores of the simulation: those in memory, with what their real twins can do to their callers.

The job store remembers every version of every document, so that a ``find`` may answer from a little while ago, as far
as the real ones may: never from before the last write that was acknowledged to the same client. etcd counts its leases
by itself; what keeps them alive is the real client of its adapter, over a channel that can be slow or cut.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from services.core.adapters.etcd._stubs import messages
from services.core.adapters.etcd.lease import EtcdLease
from services.core.domain.job import Event, Job
from services.core.ports.job_store import DispatcherDoc, JobQuery
from tests.simulation.checker import Checker
from tests.testbed.memory.jobs import MemoryJobStore
from tests.testbed.memory.status_store import MemoryLease, MemoryStatusStore

if TYPE_CHECKING:
    from tests.simulation.wire import Wire


class Ledger(MemoryJobStore):
    """The job store, every commit of which the checker sees at once."""

    def __init__(self, checker: Checker, who: Callable[[], str]) -> None:
        """``who``: the process whose call is carried out now."""
        super().__init__()
        self._checker, self._who = checker, who
        self.commits = 0
        """How many writes there were: the store's own time."""
        self._versions: dict[str, list[tuple[int, Job]]] = {}

    def _kept(self, job: Job) -> Job:
        self.commits += 1
        self._versions.setdefault(job.id, []).append((self.commits, job))
        return job

    async def insert(self, job: Job) -> Job:
        stored = self._kept(await super().insert(job))
        self._checker.committed(self._who(), None, stored)
        return stored

    async def replace(self, prior: Job, new: Job) -> Job:
        current = await self.get(prior.id)
        stored = self._kept(await super().replace(prior, new))
        self._checker.committed(self._who(), current, stored)
        return stored

    async def append_history(self, job_id: str, tenant: str, events: Sequence[Event]) -> None:
        await super().append_history(job_id, tenant, events)
        self.commits += 1
        self._checker.copied(job_id, await self.history(job_id))

    async def replace_dispatcher(self, prior: DispatcherDoc, new: DispatcherDoc) -> DispatcherDoc:
        stored = await super().replace_dispatcher(prior, new)
        self.commits += 1
        self._checker.dispatches(self._who(), stored.term)
        return stored

    async def find_stale(self, query: JobQuery, *, at: int, **how: Any) -> Sequence[Job]:
        """What ``find`` would have answered after commit number ``at``."""
        then = MemoryJobStore()
        for job_id, versions in self._versions.items():
            place = bisect_right(versions, at, key=lambda version: version[0])
            if place:
                then._jobs[job_id] = versions[place - 1][1]
        then._ids = sorted(then._jobs)
        return await then.find(query, **how)


class Etcd(MemoryStatusStore):
    """etcd: its leases run out by its own clock, whatever their holders believe."""

    def __init__(self, checker: Checker, *, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self._checker = checker
        self._believers: dict[int, EtcdLease] = {}

    async def lease(self, ttl_s: float) -> MemoryLease:
        lease = await super().lease(ttl_s)
        self.keep_alive(lease.id)
        return lease

    def keep_alive(self, lease_id: int) -> float:
        """The TTL granted, in seconds; 0 where there is no such lease (any more). Unavailable."""
        self._answer()
        lease = self._leases.get(lease_id)
        if lease is None:
            return 0
        lease.ends = self.clock() + lease.ttl_s
        asyncio.get_running_loop().call_later(lease.ttl_s, self.tick)
        return lease.ttl_s

    def tick(self) -> None:
        """The moment a lease runs out, nobody may believe to hold it."""
        for lease in [each for each in self._leases.values() if not each.alive]:
            holder = self._believers.pop(lease.id, None)
            if holder is not None:
                self._checker.lease_ran_out(lease.id, believed=holder.alive)
            self.end(lease)

    def go_away(self) -> None:
        self._away = True

    def come_back(self) -> None:
        """Leases that ran out meanwhile are gone; the others are their holders' to keep alive."""
        self._away = False

    async def open_lease(self, wire: Wire, ttl_s: float) -> EtcdLease:
        """As ``EtcdStatusStore.lease``: the real client's lease, over the wire of one process."""
        requested_at = self.clock()
        granted: MemoryLease = await wire.call("status", "lease", self.lease, (ttl_s,), {})
        connection: Any = _Connection(wire, self)
        lease = EtcdLease(connection, granted.id, ttl_s=ttl_s, requested_at=requested_at, boottime=self.clock)
        self._believers[granted.id] = lease
        wire.leases.append(lease)
        return lease


@dataclass
class _Connection:
    """The part of the adapter's connection that a lease uses."""

    wire: Wire
    etcd: Etcd

    def __post_init__(self) -> None:
        self.lease = SimpleNamespace(LeaseRevoke=self.etcd.revoke_id)

    async def metadata(self) -> None: ...

    def channel(self) -> _Channel:
        return _Channel(self.wire, self.etcd)

    async def drop(self, channel: object) -> None: ...

    def forget_token(self, metadata: object) -> None: ...

    async def call(self, method: Any, request: Any) -> None:
        await self.wire.call("status", "revoke_id", method, (request.ID,), {})


class _Channel:
    """Of gRPC: one stream of keep-alives, and nothing else."""

    def __init__(self, wire: Wire, etcd: Etcd) -> None:
        self._wire, self._etcd = wire, etcd

    def unary_unary(self, *_: Any, **__: Any) -> None: ...

    def unary_stream(self, *_: Any, **__: Any) -> None: ...

    def stream_stream(self, *_: Any, **__: Any) -> Callable[..., _KeepAlives]:
        return lambda **_: _KeepAlives(self._wire, self._etcd)


class _KeepAlives:
    def __init__(self, wire: Wire, etcd: Etcd) -> None:
        self._wire, self._etcd = wire, etcd
        self._asked: list[int] = []

    async def write(self, request: Any) -> None:
        self._asked.append(request.ID)

    async def read(self) -> Any:
        lease_id = self._asked.pop(0)
        ttl = await self._wire.call("status", "keep_alive", self._granted, (lease_id,), {})
        return messages.LeaseKeepAliveResponse(ID=lease_id, TTL=int(ttl))

    async def _granted(self, lease_id: int) -> float:
        return self._etcd.keep_alive(lease_id)

    def cancel(self) -> None: ...
