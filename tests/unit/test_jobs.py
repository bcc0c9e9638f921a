"""How documents are changed by many, and how their history is read."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from services.core.domain.errors import NotFound, StaleFence, StaleRevision
from services.core.domain.job import Claim, Event, Job
from services.core.domain.status import Status
from services.core.use_cases.jobs import copy_history, history, update
from tests.documents import NOW, a_job, at_status
from tests.testbed.memory import MemoryJobStore


class Contested(MemoryJobStore):
    """Somebody else writes first, so many times."""

    def __init__(self, races: int) -> None:
        super().__init__()
        self.races = races
        self.tries = 0

    async def replace(self, prior: Job, new: Job) -> Job:
        self.tries += 1
        if self.races:
            self.races -= 1
            await super().replace(prior, replace(prior, summary={"by": f"other {self.races}"}))
        return await super().replace(prior, new)


def touched(job: Job) -> Job:
    return replace(job, updated=job.updated + 1)


async def test_a_lost_race_starts_again_from_reading() -> None:
    store = Contested(races=3)
    job = await store.insert(a_job())
    done = await update(store, job.id, None, touched)
    assert (store.tries, done.rev, done.updated) == (4, 5, NOW + 1)
    assert done.summary == {"by": "other 0"}  # the others' writes are kept
    assert await store.get(job.id) == done


async def test_of_many_updates_at_once_none_is_lost() -> None:
    store = MemoryJobStore()
    job = await store.insert(a_job())
    await asyncio.gather(*[update(store, job.id, None, touched) for _ in range(20)])
    assert (await update(store, job.id, None, lambda one: one)).updated == NOW + 20


async def test_a_race_lost_without_end_is_an_error() -> None:
    store = Contested(races=10_000)
    job = await store.insert(a_job())
    with pytest.raises(StaleRevision, match="kept changing"):
        await update(store, job.id, None, touched)
    assert store.tries == 100


async def test_what_is_unchanged_is_not_written() -> None:
    store = Contested(races=0)
    job = await store.insert(a_job())
    assert await update(store, job.id, None, replace) == job
    assert store.tries == 0


async def test_a_job_that_is_not_there_cannot_be_updated() -> None:
    with pytest.raises(NotFound, match="there is no job jx"):
        await update(MemoryJobStore(), "jx", None, touched)


@pytest.mark.parametrize(
    "mine", [Claim(term=1, nonce="a"), Claim(term=2, nonce="b"), Claim(term=3, nonce="a"), Claim()]
)
async def test_who_no_longer_holds_the_claim_writes_nothing(mine: Claim) -> None:
    store = MemoryJobStore()
    job = await store.insert(a_job(guardian=Claim(term=2, nonce="a", holder="g2")))
    with pytest.raises(StaleFence):
        await update(store, job.id, mine, touched)
    assert await store.get(job.id) == job
    # The holder's name is no part of the fence.
    assert (await update(store, job.id, Claim(term=2, nonce="a"), touched)).rev == 2


async def test_a_claim_lost_during_the_race_is_noticed() -> None:
    class TakenOver(MemoryJobStore):
        async def replace(self, prior: Job, new: Job) -> Job:
            await super().replace(prior, replace(prior, guardian=Claim(term=3, nonce="z")))
            return await super().replace(prior, new)

    store = TakenOver()
    job = await store.insert(a_job(guardian=Claim(term=2, nonce="a")))
    with pytest.raises(StaleFence, match="term 3, ours is 2"):
        await update(store, job.id, Claim(term=2, nonce="a"), touched)


async def test_history_is_one_wherever_it_lies() -> None:
    store = MemoryJobStore()
    job = await store.insert(at_status(a_job(), Status.PENDING, Status.DOWNLOADING))
    events = list(job.history_tail)
    assert await history(store, job) == events

    await store.append_history(job.id, job.tenant, events[:2])  # whoever copied died before trimming
    assert await history(store, job) == events
    trimmed = await copy_history(store, job)
    assert trimmed.history_tail == ()
    assert await history(store, trimmed) == events
    assert await history(store, trimmed, after_seq=2) == events[2:]
    assert await copy_history(store, trimmed) is trimmed


async def test_what_happens_while_history_is_copied_is_kept() -> None:
    store = MemoryJobStore()
    job = await store.insert(a_job())
    later = await store.replace(job, at_status(job, Status.PENDING))
    copied = await copy_history(store, job)  # with the document as it was read before
    assert [event.seq for event in copied.history_tail] == [2]
    assert [event.seq for event in await history(store, copied)] == [1, 2]
    assert copied.rev == later.rev + 1


async def test_a_long_history_is_read_to_its_end() -> None:
    store = MemoryJobStore()
    job = await store.insert(a_job(history_seq=2_500, history_tail=()))
    events = [
        Event(seq=seq, time=NOW, actor="x", generation=1, from_status=None, to=Status.QUEUED) for seq in range(1, 2_501)
    ]
    await store.append_history(job.id, job.tenant, events)
    assert await history(store, job) == events
    assert await history(store, job, after_seq=2_400) == events[2_400:]
