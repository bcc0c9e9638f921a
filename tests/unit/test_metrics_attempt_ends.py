"""When a learner's token loses the right to append (S8)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from services.core.domain.codec import dump
from services.core.domain.errors import PermissionDenied, Unavailable
from services.core.domain.job import Job, admitted, moved, new_job, released
from services.core.domain.learner import LearnerStatus
from services.core.domain.status import Phase, Status
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.job_store import JobStore
from services.metrics.attempt_ends import AttemptEnds, declared_end
from services.metrics.attempts import Attempts
from tests.testbed.memory import MemoryJobStore
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.waiting import until

T0 = 1_800_000_000_000
ID = "j0"


class SetClock:
    """Only ``now_ms`` is used."""

    def __init__(self) -> None:
        self.now = T0

    def now_ms(self) -> int:
        return self.now

    def boottime(self) -> float:
        return self.now / 1000

    def random_bits(self, count: int) -> int:
        return 1

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


def running(attempt: int = 1) -> Job:
    job = new_job(
        job_id=ID,
        tenant="acme",
        user="ada",
        spec={"name": "x", "command": "true"},
        code_digest="",
        idem=ID,
        idem_digest="",
        trace="",
        now=T0,
    )
    for number in range(1, attempt + 1):
        job = admitted(job, placement={"worker-0": "local"}, dispatcher_term=1, now=T0 + number * 1_000)
        if number < attempt:
            job = released(moved(job, Status.QUEUED, actor="guardian", now=T0 + number * 1_000 + 500), now=T0)
    return job


def learner(attempt: int = 1) -> LearnerIdentity:
    return LearnerIdentity(ID, "acme", attempt, "worker", 0, "worker-0")


class World:
    """The view of etcd, the job store and the clock that ``ends`` uses."""

    def __init__(self) -> None:
        self.status, self.jobs, self.clock = MemoryStatusStore(), MemoryJobStore(), SetClock()
        self.attempts = Attempts(self.status)
        self.opened = 0
        self.away = False
        self.ends = AttemptEnds(self.open, self.attempts, self.clock, late_s=5)

    async def open(self) -> JobStore:
        if self.away:
            raise Unavailable("the job store is away")
        self.opened += 1
        return self.jobs

    async def in_view(self, attempt: int, phase: Phase) -> None:
        await self.status.put(f"/jobs/{ID}/attempt", json.dumps({"attempt": attempt, "learners": 1}))
        report = LearnerStatus(name="worker-0", role="worker", rank=0, attempt=attempt, seq=1, phase=phase)
        await self.status.put(f"/jobs/{ID}/learners/worker-0", json.dumps(dump(report)))
        await until(lambda: self.attempts.is_reported(learner(attempt), report))


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    made = World()
    following = asyncio.create_task(made.attempts.follow())
    yield made
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


async def test_token_appends_nothing_later_than_five_seconds_after_the_end_of_its_job(world: World) -> None:
    job = await world.jobs.insert(running())
    await world.in_view(1, Phase.STORED)
    await world.ends.check(learner())
    world.clock.now = T0 + 60_000
    done = moved(job, Status.KILLED, actor="guardian", now=world.clock.now)
    await world.jobs.replace(job, done)
    world.clock.now += 5_000
    await world.ends.check(learner())
    world.clock.now += 1
    with pytest.raises(PermissionDenied, match="attempt 1 of job j0 has ended"):
        await world.ends.check(learner())


async def test_token_of_a_job_whose_keys_are_gone_from_etcd_appends_while_the_job_runs(world: World) -> None:
    await world.jobs.insert(running())
    world.clock.now = T0 + 3_600_000
    await world.ends.check(learner())


async def test_appends_of_a_running_learner_read_no_job_document(world: World) -> None:
    await world.in_view(1, Phase.PROCESSING)
    world.away = True
    await world.ends.check(learner())
    assert world.opened == 0


async def test_likely_end_that_cannot_be_looked_up_is_unavailable_and_loses_no_line(world: World) -> None:
    world.away = True
    with pytest.raises(Unavailable):
        await world.ends.check(learner())
    world.away = False
    await world.jobs.insert(running())
    await world.ends.check(learner())


async def test_former_attempt_appends_nothing_later_than_five_seconds_after_the_next_was_admitted(world: World) -> None:
    await world.jobs.insert(running(attempt=2))
    await world.in_view(2, Phase.PROCESSING)
    world.clock.now = T0 + 2_000 + 5_000
    await world.ends.check(learner(1))
    world.clock.now += 1
    with pytest.raises(PermissionDenied):
        await world.ends.check(learner(1))
    await world.ends.check(learner(2))


class SlowJobStore(MemoryJobStore):
    """Answers reads of jobs when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.answering = asyncio.Event()

    async def get(self, job_id: str) -> Job | None:
        self.reads += 1
        await self.answering.wait()
        return await super().get(job_id)


async def test_a_gang_that_ends_reads_its_document_once_however_slow_the_job_store_is(world: World) -> None:
    world.jobs = slow = SlowJobStore()
    await slow.insert(running())
    gang = [asyncio.create_task(world.ends.check(replace(learner(), name=f"worker-{n}", rank=n))) for n in range(50)]
    await until(lambda: slow.reads)
    gang[0].cancel()  # one that leaves ends the read of no other
    slow.answering.set()
    await asyncio.wait(gang)
    assert slow.reads == 1
    assert [task.exception() for task in gang[1:]] == [None] * 49


async def test_job_without_a_document_is_not_refused(world: World) -> None:
    await world.ends.check(learner())


def test_attempt_ends_when_its_job_waits_again_or_is_halted() -> None:
    job = running()
    assert declared_end(job, 1) is None
    again = moved(job, Status.QUEUED, actor="guardian", now=T0 + 9_000)
    assert declared_end(again, 1) == T0 + 9_000
    halted = moved(moved(job, Status.HALTING, actor="g", now=T0 + 2_000), Status.HALTED, actor="g", now=T0 + 3_000)
    assert declared_end(halted, 1) == T0 + 3_000
    # An older document than the token: another process is ahead.
    assert declared_end(replace(job, attempt=replace(job.attempt, number=0)), 1) is None
