"""The time that searches through logs take, bounded for each tenant.

A search reads all lines of a job with a pattern that its user chose, which may take seconds. A tenant may search for
``window_s`` seconds without a pause, and earns them back at ``share`` seconds a second. The number of its searches at a
time is bounded, too. A page beyond the bounds is refused; a live stream waits. The streams of a tenant take turns, one
search at a time, so that hundreds of them leave the metrics service a thread for other searches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from services.core.domain.errors import ResourceExhausted
from services.core.ports.clock import Clock

_BUSY_S: Final = 1.0


@dataclass(slots=True)
class _Spent:
    seconds: float
    """Search time that is not earned back yet."""
    at: float
    """When, on the boot-time clock."""
    running: int = 0
    streams: int = 0
    """Live streams that search or wait."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the stream that searches, or is the next one."""


class SearchBudget:
    def __init__(self, clock: Clock, *, window_s: float, share: float, at_a_time: int) -> None:
        self._clock, self._window_s, self._share, self._at_a_time = clock, window_s, share, at_a_time
        self._tenants: dict[str, _Spent] = {}

    @contextmanager
    def searching(self, tenant: str) -> Generator[None]:
        """Counts the time in the context. Raises ResourceExhausted for a tenant that has none left."""
        spent = self._earned(tenant)
        refusal = self._refusal(tenant, spent)
        if refusal is not None:
            raise refusal
        with self._counted(spent):
            yield

    @asynccontextmanager
    async def searching_in_turn(self, tenant: str) -> AsyncGenerator[None]:
        """As ``searching``, for a live stream: waits for its turn, and until the tenant has time left."""
        spent = self._earned(tenant)
        spent.streams += 1
        try:
            async with spent.turn:
                await self._until_allowed(tenant)
                with self._counted(spent):
                    yield
        finally:
            spent.streams -= 1

    async def _until_allowed(self, tenant: str) -> None:
        while True:
            refusal = self._refusal(tenant, self._earned(tenant))
            if refusal is None:
                return
            await asyncio.sleep(refusal.retry_after_s or _BUSY_S)

    def _refusal(self, tenant: str, spent: _Spent) -> ResourceExhausted | None:
        """Why the tenant may not search now; None: it may."""
        if spent.running >= self._at_a_time:
            return ResourceExhausted(
                f"tenant {tenant} searches {spent.running} logs now, which is the most (WEFT_TENANT_SEARCHES)",
                retry_after_s=_BUSY_S,
            )
        if spent.seconds >= self._window_s:
            wait_s = (spent.seconds - self._window_s) / self._share + _BUSY_S
            return ResourceExhausted(
                f"tenant {tenant} has searched logs for {spent.seconds:.0f} s (WEFT_TENANT_SEARCH_S); try again in "
                f"{wait_s:.0f} s, with a narrower search (rank, attempt, time)",
                retry_after_s=wait_s,
            )
        return None

    @contextmanager
    def _counted(self, spent: _Spent) -> Generator[None]:
        spent.running += 1
        began = self._clock.boottime()
        try:
            yield
        finally:
            spent.running -= 1
            spent.seconds += self._clock.boottime() - began

    def _earned(self, tenant: str) -> _Spent:
        """The tenant's account as of now. Accounts of tenants that have earned everything back are dropped."""
        now = self._clock.boottime()
        for name, spent in list(self._tenants.items()):
            spent.seconds = max(0.0, spent.seconds - (now - spent.at) * self._share)
            spent.at = now
            if not spent.seconds and not spent.running and not spent.streams:
                del self._tenants[name]
        return self._tenants.setdefault(tenant, _Spent(0.0, now))
