"""Concurrent changes of job documents, and reading and copying of their history."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from services.core.domain.errors import NotFound, StaleFence, StaleRevision
from services.core.domain.job import Claim, Event, Job
from services.core.domain.status import Status
from services.core.ports.job_store import JobQuery, Unreadable
from services.core.use_cases.jobs import all_jobs, copy_history, history, update
from tests.documents import NOW, a_job, at_status
from tests.testbed.memory import MemoryJobStore


class Contested(MemoryJobStore):
    """The first ``races`` replaces come after another write."""

    def __init__(self, races: int) -> None:
        super().__init__()
        self.races = races
        self.replaces = 0

    async def replace(self, prior: Job, new: Job) -> Job:
        self.replaces += 1
        if self.races:
            self.races -= 1
            await super().replace(prior, replace(prior, summary={"by": f"other {self.races}"}))
        return await super().replace(prior, new)


def touched(job: Job) -> Job:
    return replace(job, updated=job.updated + 1)


async def test_an_update_that_lost_a_race_reads_again_and_applies_its_change() -> None:
    store = Contested(races=3)
    job = await store.insert(a_job())
    updated = await update(store, job.id, None, touched)
    assert (store.replaces, updated.rev, updated.updated) == (4, 5, NOW + 1)
    assert updated.summary == {"by": "other 0"}  # the other writes are kept
    assert await store.get(job.id) == updated


async def test_no_update_is_lost_among_many_concurrent_ones() -> None:
    store = MemoryJobStore()
    job = await store.insert(a_job())
    await asyncio.gather(*[update(store, job.id, None, touched) for _ in range(20)])
    assert (await update(store, job.id, None, lambda current: current)).updated == NOW + 20


async def test_an_update_that_always_loses_the_race_raises_stale_revision() -> None:
    store = Contested(races=10_000)
    job = await store.insert(a_job())
    with pytest.raises(StaleRevision, match="kept changing"):
        await update(store, job.id, None, touched)
    assert store.replaces == 100


async def test_an_unchanged_document_is_not_written() -> None:
    store = Contested(races=0)
    job = await store.insert(a_job())
    assert await update(store, job.id, None, replace) == job
    assert store.replaces == 0


async def test_an_update_of_a_missing_job_raises_not_found() -> None:
    with pytest.raises(NotFound, match="there is no job jx"):
        await update(MemoryJobStore(), "jx", None, touched)


@pytest.mark.parametrize(
    "outdated", [Claim(term=1, nonce="a"), Claim(term=2, nonce="b"), Claim(term=3, nonce="a"), Claim()]
)
async def test_an_update_under_an_outdated_claim_writes_nothing(outdated: Claim) -> None:
    store = MemoryJobStore()
    job = await store.insert(a_job(guardian=Claim(term=2, nonce="a", holder="g2")))
    with pytest.raises(StaleFence):
        await update(store, job.id, outdated, touched)
    assert await store.get(job.id) == job
    # The holder's member id is not part of the fence.
    assert (await update(store, job.id, Claim(term=2, nonce="a"), touched)).rev == 2


async def test_a_claim_that_is_taken_over_during_the_update_is_noticed() -> None:
    class TakenOver(MemoryJobStore):
        async def replace(self, prior: Job, new: Job) -> Job:
            await super().replace(prior, replace(prior, guardian=Claim(term=3, nonce="z")))
            return await super().replace(prior, new)

    store = TakenOver()
    job = await store.insert(a_job(guardian=Claim(term=2, nonce="a")))
    with pytest.raises(StaleFence, match="term 3, ours is 2"):
        await update(store, job.id, Claim(term=2, nonce="a"), touched)


@pytest.mark.parametrize("page", [1, 2, 3, 10])
async def test_all_jobs_are_listed_in_order_over_several_pages(page: int) -> None:
    store = MemoryJobStore()
    jobs = [await store.insert(a_job()) for _ in range(5)]
    store.plant(jobs[3].id, "{")
    left_out: list[Unreadable] = []
    listed = [job async for job in all_jobs(store, JobQuery(), page=page, left_out=left_out)]
    assert listed == [*jobs[:3], jobs[4]]
    assert [unreadable.id for unreadable in left_out] == [jobs[3].id]


async def test_history_merges_the_copied_events_with_the_document_s() -> None:
    store = MemoryJobStore()
    job = await store.insert(at_status(a_job(), Status.PENDING, Status.DOWNLOADING))
    events = list(job.history_tail)
    assert await history(store, job) == events

    await store.append_history(job.id, job.tenant, events[:2])  # a process copied them and died before trimming
    assert await history(store, job) == events
    trimmed = await copy_history(store, job)
    assert trimmed.history_tail == ()
    assert await history(store, trimmed) == events
    assert await history(store, trimmed, after_seq=2) == events[2:]
    assert await copy_history(store, trimmed) is trimmed


async def test_an_event_that_is_appended_while_history_is_copied_is_kept() -> None:
    store = MemoryJobStore()
    job = await store.insert(a_job())
    later = await store.replace(job, at_status(job, Status.PENDING))
    copied = await copy_history(store, job)  # with the document as it was read before
    assert [event.seq for event in copied.history_tail] == [2]
    assert [event.seq for event in await history(store, copied)] == [1, 2]
    assert copied.rev == later.rev + 1


async def test_a_history_of_several_pages_is_read_completely() -> None:
    store = MemoryJobStore()
    job = await store.insert(a_job(history_seq=2_500, history_tail=()))
    events = [
        Event(seq=seq, time=NOW, actor="x", generation=1, from_status=None, to=Status.QUEUED) for seq in range(1, 2_501)
    ]
    await store.append_history(job.id, job.tenant, events)
    assert await history(store, job) == events
    assert await history(store, job, after_seq=2_400) == events[2_400:]
