"""Counting what jobs held while they begin and end: none is missed or counted twice, and pages are small."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from services.api.held_hardware import HeldHardware
from services.core.domain.job import Job, admitted, moved, released
from services.core.domain.status import Status
from services.core.ports.job_store import HeldPage
from tests.documents import NOW, a_job
from tests.testbed.memory import MemoryJobStore
from tests.testbed.set_clock import SetClock

HOUR_MS = 3_600_000
SPEC: dict[str, Any] = {"name": "digits", "command": "true", "resources": {"gpus": 1}}
USER = ("acme", "ada")


class TenHoursLater(SetClock):
    def now_ms(self) -> int:
        return NOW + 10 * HOUR_MS


class Interrupted(MemoryJobStore):
    """Jobs change after a page was read: ``after[n]`` runs after the page number n."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[int | None] = []
        self.after: dict[int, Callable[[], Awaitable[object]]] = {}

    async def held(self, *, released_since: int | None, limit: int = 500, **which: Any) -> HeldPage:
        del limit
        page = await super().held(released_since=released_since, limit=2, **which)
        self.pages.append(released_since)
        if change := self.after.pop(len(self.pages), None):
            await change()
        return page


async def admit(store: MemoryJobStore, job: Job, *, hour: float) -> Job:
    now = NOW + round(hour * HOUR_MS)
    return await store.replace(job, admitted(job, placement={}, dispatcher_term=1, now=now))


async def end(store: MemoryJobStore, job: Job, *, hour: float, to: Status = Status.KILLED) -> Job:
    now = NOW + round(hour * HOUR_MS)
    return await store.replace(job, released(moved(job, to, actor="test", now=now), now=now))


async def a_running_job(store: MemoryJobStore, *, hour: float = 1) -> Job:
    return await admit(store, await store.insert(a_job(spec=SPEC)), hour=hour)


async def counted(store: MemoryJobStore) -> tuple[int, float]:
    """(jobs, GPU-hours) of the user within the ten hours."""
    totals = await HeldHardware(store, TenHoursLater()).within(NOW, NOW + 10 * HOUR_MS, None)
    total = totals.of_users[USER]
    return total.jobs, round(total.gpu_hours, 6)


async def test_all_pages_are_counted() -> None:
    store = Interrupted()
    for number in range(5):
        await end(store, await a_running_job(store), hour=2 + number / 10)
    for _ in range(3):
        await a_running_job(store, hour=8)
    assert await counted(store) == (8, 5 + 1.0 + 6)
    assert len(store.pages) == 3 + 2 + 1


async def test_a_job_that_gives_back_its_hardware_between_two_pages_is_counted_once() -> None:
    store = Interrupted()
    job = await a_running_job(store)
    store.after[1] = lambda: end(store, job, hour=5)  # after the jobs that gave it back were read
    assert await counted(store) == (1, 4.0)


async def test_a_job_that_ends_after_it_was_read_is_counted_once() -> None:
    store = Interrupted()
    job = await a_running_job(store)
    store.after[2] = lambda: end(store, job, hour=9.5)  # after those that hold hardware were read
    assert await counted(store) == (1, 9.0)


async def test_a_job_that_is_admitted_again_after_it_was_read_is_counted_once() -> None:
    store = Interrupted()
    queued = await end(store, await a_running_job(store), hour=3, to=Status.QUEUED)
    store.after[1] = lambda: admit(store, queued, hour=9)
    assert await counted(store) == (1, 2.0)


async def test_users_whose_jobs_held_nothing_are_left_out() -> None:
    store = Interrupted()
    await end(store, await a_running_job(store, hour=-3), hour=0)
    await store.insert(a_job(spec=SPEC))
    assert (await HeldHardware(store, TenHoursLater()).within(NOW, NOW + HOUR_MS, None)).of_users == {}
