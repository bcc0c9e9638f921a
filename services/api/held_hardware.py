"""For how long the jobs of each user held hardware within a window: what GPU-hours are counted from.

Only jobs of the window are read: those that hold hardware, and those that have given it back since the window began,
from an index and a few fields of each. So the cost depends on the jobs since then, not on all that the store keeps.

It is no snapshot: jobs begin and end while pages are read. The jobs that gave hardware back are read first, then those
that hold some, then those that gave it back meanwhile. So none is missed, and none is counted twice: ids that may come
again are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Final

from services.core.domain.held_time import HeldTotal
from services.core.ports.clock import Clock
from services.core.ports.job_store import HeldPage, JobStore

_AT_A_TIME: Final = 2
"""Windows that are counted at the same time: a long one reads many jobs, and other requests go on beside it."""


@dataclass(slots=True)
class HeldTotals:
    """The use of hardware within a window."""

    of_users: dict[tuple[str, str], HeldTotal] = field(default_factory=dict)
    """(tenant, user) -> what jobs of the user held; users whose jobs held nothing are left out."""
    unreadable: int = 0
    """Jobs of the window whose documents cannot be read. They are not counted."""


class HeldHardware:
    """Counts the hardware that jobs held."""

    def __init__(self, store: JobStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._turns = asyncio.Semaphore(_AT_A_TIME)

    def now_ms(self) -> int:
        """Unix ms: no window reaches beyond it."""
        return self._clock.now_ms()

    async def within(self, since: int, until: int, tenant: str | None) -> HeldTotals:
        """What the tenant's jobs (None: those of all tenants) held in [since, until), in Unix ms."""
        totals, again = HeldTotals(), set[str]()
        async with self._turns:
            async for page in self._pages(since, tenant):
                totals.unreadable += page.unreadable
                now = self._clock.now_ms()
                for job in page.jobs:
                    if job.id in again:
                        continue
                    if not job.ended or job.released is None:
                        again.add(job.id)
                    total = totals.of_users.setdefault((job.tenant, job.user), HeldTotal())
                    total.add(job, job.held_ms(since=since, until=until, now=now))
        totals.of_users = {user: total for user, total in totals.of_users.items() if total.jobs}
        return totals

    async def _pages(self, since: int, tenant: str | None) -> AsyncGenerator[HeldPage]:
        after: Mapping[int | None, tuple[int, str] | None] = {since: None, None: None}
        for released_since in (since, None, since):
            more = True
            while more:
                page = await self._store.held(released_since=released_since, tenant=tenant, after=after[released_since])
                yield page
                after, more = {**after, released_since: page.after}, page.more
