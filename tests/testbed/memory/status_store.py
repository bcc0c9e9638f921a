"""StatusStore in memory, with an injected clock and failures on demand. One object serves all processes of a test.

``go_away``/``come_back``: the store does not answer. ``pause``: the process that holds a lease is stopped.
``forget``: the store loses all its data, as etcd may.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from services.core.domain.errors import Conflict, Unavailable
from services.core.ports.status_store import Change, Entry, Lease, check_key, check_value, decode_value


@dataclass(eq=False)
class MemoryLease:
    id: int
    ttl_s: float
    store: MemoryStatusStore
    ends: float | None = None
    """When it runs out, by the store's clock; None: it is kept alive."""
    keys: set[str] = field(default_factory=set)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def alive(self) -> bool:
        return not self.gone.is_set() and (self.ends is None or self.store.clock() < self.ends)

    async def lost(self) -> None:
        await self.gone.wait()

    async def revoke(self) -> None:
        self.store.end(self)


class MemoryStatusStore:
    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds. Where it is moved by hand, call ``tick`` after moving it."""
        self.clock = clock
        self._entries: dict[str, Entry] = {}
        self._lease_of: dict[str, MemoryLease] = {}
        self._leases: dict[int, MemoryLease] = {}
        self._lease_ids = itertools.count(1)
        self._revision = 1
        self._watchers: dict[asyncio.Queue[Change | None], str] = {}
        self._away = False

    # --- the port --------------------------------------------------------------

    async def get(self, key: str) -> Entry | None:
        self._check_reachable()
        return self._entries.get(check_key(key))

    async def list(self, prefix: str) -> Sequence[Entry]:
        self._check_reachable()
        return self._below(prefix)

    async def put(self, key: str, value: str, *, lease: Lease | None = None) -> int:
        self._check_reachable()
        return self._write(key, value, lease)

    async def put_if(self, key: str, value: str, *, mod_revision: int, lease: Lease | None = None) -> int | None:
        self._check_reachable()
        return self._write(key, value, lease) if self._mod_revision(key) == mod_revision else None

    async def put_while(
        self, key: str, value: str, *, guard_key: str, guard_value: str, mod_revision: int
    ) -> int | None:
        self._check_reachable()
        check_value(guard_value)
        guard = self._entries.get(check_key(guard_key))
        if guard is None or guard.value != guard_value or self._mod_revision(key) != mod_revision:
            return None
        return self._write(key, value, None)

    async def delete(self, key: str) -> None:
        self._check_reachable()
        self._remove([check_key(key)])

    async def delete_prefix(self, prefix: str) -> int:
        self._check_reachable()
        return self._remove([entry.key for entry in self._below(prefix)])

    async def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        check_key(prefix)
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        self._watchers[queue] = prefix
        for change in self._all(prefix):
            queue.put_nowait(change)
        try:
            while (step := await queue.get()) is not None:
                yield step
        finally:
            self._watchers.pop(queue, None)

    async def lease(self, ttl_s: float) -> MemoryLease:
        self._check_reachable()
        lease = MemoryLease(next(self._lease_ids), ttl_s, self)
        self._leases[lease.id] = lease
        return lease

    async def revoke_id(self, lease_id: int) -> None:
        self._check_reachable()
        if lease_id in self._leases:
            self.end(self._leases[lease_id])

    async def ping(self) -> None:
        self._check_reachable()

    async def close(self) -> None:
        for lease in list(self._leases.values()):
            self.pause(lease.id)
        for queue in self._watchers:
            queue.put_nowait(None)

    # --- failures --------------------------------------------------------------

    def go_away(self) -> None:
        """Makes all calls raise Unavailable. No lease is kept alive."""
        self._away = True
        for lease in list(self._leases.values()):
            self.pause(lease.id)

    def come_back(self) -> None:
        """Answers again. Leases that have not run out are kept alive again."""
        self.tick()
        self._away = False
        for lease in self._leases.values():
            lease.ends = None

    def pause(self, lease_id: int) -> None:
        """Stops the keep-alives of a lease: it runs out after its TTL."""
        lease = self._leases[lease_id]
        lease.ends = self.clock() + lease.ttl_s
        asyncio.get_running_loop().call_later(lease.ttl_s, self.tick)

    def forget(self) -> None:
        """Removes all keys and leases. Watchers get a reset."""
        for lease in self._leases.values():
            lease.gone.set()
        self._entries.clear()
        self._lease_of.clear()
        self._leases.clear()
        self._revision = 1
        for queue in self._watchers:
            queue.put_nowait(Change("reset"))

    def put_bytes(self, key: str, stored: bytes) -> None:
        """Writes any bytes, as another program may write them to etcd."""
        self._revision += 1
        prior = self._entries.get(key)
        value, malformed = decode_value(stored)
        created = prior.create_revision if prior else self._revision
        entry = Entry(key, value, self._revision, created, malformed=malformed)
        self._entries[key] = entry
        self._notify(Change("put", key, entry))

    def tick(self) -> None:
        """Ends the leases that have run out by the clock."""
        for lease in [lease for lease in self._leases.values() if not lease.alive]:
            self.end(lease)

    def end(self, lease: MemoryLease) -> None:
        """Ends a lease and removes its keys. May be repeated."""
        lease.gone.set()
        if self._leases.pop(lease.id, None) is not None:
            self._remove(sorted(lease.keys))

    # --- inside ----------------------------------------------------------------

    def _check_reachable(self) -> None:
        if self._away:
            raise Unavailable("the status store does not answer")
        self.tick()

    def _mod_revision(self, key: str) -> int:
        entry = self._entries.get(check_key(key))
        return entry.mod_revision if entry is not None else 0

    def _below(self, prefix: str) -> Sequence[Entry]:
        check_key(prefix)
        return [self._entries[key] for key in sorted(self._entries) if key.startswith(prefix)]

    def _all(self, prefix: str) -> Sequence[Change]:
        return [Change("reset"), *(Change("put", entry.key, entry) for entry in self._below(prefix))]

    def _write(self, key: str, value: str, lease: Lease | None) -> int:
        check_key(key)
        check_value(value)
        holder = self._leases.get(lease.id) if lease is not None else None
        if lease is not None and holder is None:
            raise Conflict("the lease of this write is gone")
        self._detach_lease(key)
        if holder is not None:
            holder.keys.add(key)
            self._lease_of[key] = holder
        self._revision += 1
        prior = self._entries.get(key)
        entry = Entry(key, value, self._revision, prior.create_revision if prior else self._revision)
        self._entries[key] = entry
        self._notify(Change("put", key, entry))
        return self._revision

    def _remove(self, keys: Sequence[str]) -> int:
        """Removes the keys that exist, in one revision. Returns how many."""
        present = [key for key in keys if key in self._entries]
        if present:
            self._revision += 1
        for key in present:
            self._detach_lease(key)
            del self._entries[key]
            self._notify(Change("delete", key))
        return len(present)

    def _detach_lease(self, key: str) -> None:
        if (holder := self._lease_of.pop(key, None)) is not None:
            holder.keys.discard(key)

    def _notify(self, change: Change) -> None:
        for queue, prefix in self._watchers.items():
            if change.key.startswith(prefix):
                queue.put_nowait(change)
