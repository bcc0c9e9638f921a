"""The waiting jobs that the dispatcher keeps between its rounds: what a round reads, and that it is what is stored."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.core.domain.job import Job, moved
from services.core.domain.sizes import SIZES
from services.core.domain.spec import parse_spec
from services.core.domain.status import Status
from services.core.ports.job_store import JobQuery
from services.core.runtime.quarantine import Quarantine
from services.core.use_cases.jobs import update
from services.lcm import queue as queue_module
from services.lcm.queue import WaitingQueue
from services.lcm.scheduling.placement import NOTHING, Gang, gang_of
from services.lcm.unreadable import UnreadableJobs
from tests.documents import a_job
from tests.testbed.control_plane import ControlPlane
from tests.testbed.memory.cluster import MemoryCluster
from tests.testbed.memory.jobs import MemoryJobStore

pytestmark = pytest.mark.looptime(noop_cycles=0)
_PAGE = 3


class CountingJobStore(MemoryJobStore):
    """Counts the documents that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.documents = 0

    async def find(self, query: JobQuery, **options: Any) -> Sequence[Job]:
        jobs = await super().find(query, **options)
        self.documents += len(jobs)
        return jobs

    async def get(self, job_id: str) -> Job | None:
        self.documents += 1
        return await super().get(job_id)


async def test_a_round_reads_few_documents_however_many_jobs_of_a_tenant_can_never_fit(plane: ControlPlane) -> None:
    plane.jobs = store = CountingJobStore()
    for _ in range(1_000):
        await plane.submit(resources={"gpus": 1_000})
    process = await plane.start_lcm(queue_scan=300)
    await plane.reached(await plane.submit(), Status.PENDING)
    assert len(process.service.waiting) == 1_000
    before = store.documents
    await process.service.round()
    assert store.documents - before < 300
    last = await plane.submit()
    await plane.reached(last, Status.PENDING)


def test_the_hash_of_a_gang_of_a_thousand_learners_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gang = gang_of(parse_spec({"name": "digits", "command": "true", "learners": 1_000}), SIZES)
    monkeypatch.setattr(type(gang.learners[0][1]), "__hash__", lambda _: pytest.fail("the hash is computed again"))
    assert {gang: 1}[gang] == 1


# --- what is kept is what is stored ------------------------------------------------


class World:
    """A queue beside its store."""

    def __init__(self) -> None:
        self.jobs = CountingJobStore()
        self._time = 0
        quarantine = Quarantine(lambda: 0, CollectorRegistry())
        unreadable = UnreadableJobs(self.jobs, MemoryCluster((), now_ms=lambda: 0), quarantine, SIZES, NOTHING)
        self.queue = WaitingQueue(self.jobs, unreadable, self._gang)

    def _gang(self, job: Job) -> Gang | None:
        return gang_of(parse_spec(job.spec), SIZES)

    async def submit(self) -> str:
        self._time += 1
        spec = {"name": "digits", "command": "true"}
        return (await self.jobs.insert(a_job(at=self._time, spec=spec))).id

    async def end(self, job_id: str) -> None:
        def change(job: Job) -> Job:
            return moved(job, Status.FAILED, actor="lcm", now=self._time, reason="Unschedulable", message="")

        await update(self.jobs, job_id, None, change)

    async def kept(self, *, limit: int = 10**6) -> list[str]:
        await self.queue.refresh({})
        return [waiter.id for waiter in await self.queue.scan(after=None, limit=limit)]

    async def stored(self) -> list[str]:
        return [job.id for job in await self.jobs.find(JobQuery(statuses=(Status.QUEUED,)), newest_first=False)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(queue_module, "_PAGE", _PAGE)
    return World()


@pytest.mark.parametrize("seed", range(20))
async def test_the_queue_is_what_is_stored_after_any_writes(seed: int, world: World) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        for _ in range(chance.randrange(5)):
            waiting = await world.stored()
            if waiting and chance.random() < 0.4:
                await world.end(chance.choice(waiting))
            else:
                await world.submit()
        if chance.random() < 0.5:
            limit = chance.randrange(1, 20)
            assert await world.kept(limit=limit) == (await world.stored())[:limit]
    assert await world.kept() == await world.stored()


async def test_a_job_whose_document_was_deleted_leaves_the_queue(world: World) -> None:
    first, *others = [await world.submit() for _ in range(10)]
    assert await world.kept() == [first, *others]
    await world.jobs.delete(first)
    for _ in range(4):  # pages
        await world.kept()
    assert await world.kept() == others


async def test_a_long_queue_is_read_anew_after_many_changes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "_MANY_CHANGES", 5)
    await world.kept()
    ids = [await world.submit() for _ in range(20)]
    before = world.jobs.documents
    assert await world.kept() == ids
    assert world.jobs.documents - before == len(ids) + _PAGE


async def test_an_outdated_page_brings_no_ended_job_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [await world.submit() for _ in range(2)]
    assert await world.kept() == [first, second]
    outdated = await world.jobs.find(JobQuery(), newest_first=False)
    await world.end(first)
    third = await world.submit()

    async def find(_query: JobQuery, **_: Any) -> Sequence[Job]:
        return outdated

    monkeypatch.setattr(world.jobs, "find", find)
    assert await world.kept() == [second, third]
