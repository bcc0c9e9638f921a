"""Deletion deletes: the data of deleted jobs is erased, whatever dies in between; nothing that a job names is."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import CollectorRegistry

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.adapters.sqlite.metrics.store import SqliteMetricStore
from services.core.domain.errors import InvalidRequest, StaleFence, Unavailable
from services.core.domain.job import Job, removed
from services.core.domain.status import Status
from services.core.ports.job_store import DispatcherDoc
from services.core.ports.metric_store import Batch, LineQuery, LogLine, SourceId
from services.core.use_cases import code_removal
from services.core.use_cases.code_removal import code_key
from services.core.use_cases.jobs import update
from services.lcm.erasure import Eraser, ErasurePorts
from services.lcm.instrumentation import Instrumentation
from services.lcm.settings import LcmSettings
from tests.documents import NOW, a_job, at_status
from tests.testbed.memory import MemoryJobStore, MemoryRecordStore
from tests.testbed.tripwire import Tripwire

DAY_MS: Final = 86_400_000
SHARED, OWN, LIVE = ("sha256:" + letter * 64 for letter in "abc")
SOURCE = SourceId(attempt=1, role="worker", rank=0, run=1, source="stdout")


@dataclass
class Clock:
    ms: int = NOW

    def now_ms(self) -> int:
        return self.ms

    def boottime(self) -> float:
        return self.ms / 1000

    def random_bits(self, count: int) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)


@dataclass
class Metrics:
    """The metrics service's store, without the service."""

    store: SqliteMetricStore
    away: bool = False
    away_for: frozenset[str] = frozenset()
    """Jobs of a shard that is away."""

    async def forget(self, job_id: str) -> None:
        if self.away or job_id in self.away_for:
            raise Unavailable("the metrics service does not answer")
        await self.store.delete(job_id)

    async def close(self) -> None: ...


@dataclass
class World:
    root: Path
    metrics: Metrics
    jobs: MemoryJobStore = field(default_factory=MemoryJobStore)
    records: MemoryRecordStore = field(default_factory=MemoryRecordStore)
    clock: Clock = field(default_factory=Clock)
    unreadable: bool = False

    def __post_init__(self) -> None:
        self.objects = FolderObjectStore.make(self.root / "objects")

    def eraser(self, wire: Tripwire | None = None, *, deleted_keep_s: float) -> Eraser:
        wire = wire or Tripwire()
        self.instrumentation = Instrumentation(CollectorRegistry())
        ports = ErasurePorts(
            jobs=wire.wrap(self.jobs, "jobs"),
            records=wire.wrap(self.records, "records"),
            objects=wire.wrap(self.objects, "objects"),
            telemetry=wire.wrap(self.metrics, "telemetry"),
            clock=self.clock,
        )
        chosen = LcmSettings(home=self.root, deleted_keep_s=deleted_keep_s)
        return Eraser(ports, chosen, self.instrumentation, all_readable=lambda: not self.unreadable)

    async def put(self, key: str, size: int = 3) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"x" * size

        await self.objects.put(key, chunks())

    async def add(self, *, code: str = "", ended: bool = True, objects: int = 3) -> Job:
        """A job with objects, a log line, and its code."""
        job = a_job(code_digest=code)
        job = await self.jobs.insert(at_status(job, Status.KILLED) if ended else job)
        for number in range(objects):
            await self.put(f"tenants/acme/jobs/{job.id}/attempts/1/results/worker-0/{number}")
        if code:
            await self.put(code_key("acme", code))
        line = LogLine(offset=0, time_ms=NOW, text="hello")
        await self.metrics.store.append(job.id, [Batch(source=SOURCE, start=0, end=6, lines=[line])])
        return job

    async def delete(self, job: Job) -> None:
        now = self.clock.now_ms()
        await update(self.jobs, job.id, None, lambda job: removed(job, actor="user:ada", now=now))

    async def keys(self) -> set[str]:
        return {meta.key for meta in await self.objects.list("tenants/")}

    async def intact(self, job: Job) -> bool:
        """Whether everything of the job is there."""
        prefix = f"tenants/acme/jobs/{job.id}/"
        keys = await self.keys()
        lines = await self.metrics.store.lines(job.id, LineQuery())
        return (
            sum(key.startswith(prefix) for key in keys) == 3
            and [line.line.text for line in lines] == ["hello"]
            and (not job.code_digest or code_key("acme", job.code_digest) in keys)
        )

    async def gone(self, job: Job) -> bool:
        """Whether nothing is left but the document."""
        prefix = f"tenants/acme/jobs/{job.id}/"
        lines = await self.metrics.store.lines(job.id, LineQuery())
        stored = await self.jobs.get(job.id)
        assert stored is not None
        return not lines and stored.erased is not None and not any(key.startswith(prefix) for key in await self.keys())

    async def erase_all(self, eraser: Eraser, term: int = 0) -> None:
        """As many turns as it takes, with the time that code is kept in between."""
        for _ in range(3):
            while await eraser.erase_jobs():
                pass
            await eraser.remove_code(term)
            self.clock.ms += 601_000


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    store = await SqliteMetricStore.open(tmp_path / "metrics")
    yield World(tmp_path, Metrics(store))
    await store.close()


async def test_a_deleted_job_is_erased_after_the_time_that_the_operator_sets(world: World) -> None:
    job, other = await world.add(code=OWN), await world.add(code=SHARED)
    await world.delete(job)
    eraser = world.eraser(deleted_keep_s=7 * 86_400)
    world.clock.ms += 7 * DAY_MS - 1
    assert await eraser.erase_jobs() == 0
    assert await world.intact(job)
    world.clock.ms += 1
    assert await eraser.erase_jobs() == 1
    assert await world.gone(job)
    assert await eraser.erase_jobs() == 0
    assert await world.intact(other)


async def test_a_job_whose_metrics_shard_is_away_keeps_no_other_job_from_being_erased(world: World) -> None:
    jobs = [await world.add() for _ in range(6)]
    for job in jobs:
        await world.delete(job)
    world.metrics.away_for = frozenset({jobs[0].id, jobs[1].id, jobs[4].id})
    eraser = world.eraser(deleted_keep_s=0)
    for _ in range(3):
        with contextlib.suppress(Unavailable):
            await eraser.erase_jobs()
    assert [await world.gone(job) for job in jobs] == [False, False, True, True, False, True]
    world.metrics.away_for = frozenset()
    assert sum([await eraser.erase_jobs() for _ in range(2)]) == 3


async def test_with_zero_seconds_a_deleted_job_is_erased_at_once(world: World) -> None:
    job = await world.add()
    eraser = world.eraser(deleted_keep_s=0)
    assert await eraser.erase_jobs() == 0
    await world.delete(job)
    assert await eraser.erase_jobs() == 1
    assert await world.gone(job)


async def test_code_is_removed_with_the_last_job_that_names_it(world: World) -> None:
    first, second = await world.add(code=SHARED), await world.add(code=SHARED)
    eraser = world.eraser(deleted_keep_s=0)
    await world.delete(first)
    await world.erase_all(eraser)
    assert await world.intact(second)
    await world.delete(second)
    assert await eraser.erase_jobs() == 1
    await eraser.remove_code(0)
    assert code_key("acme", SHARED) in await world.keys(), "a submission under way may have checked that it is there"
    world.clock.ms += 600_000
    assert await eraser.remove_code(0) == 1
    assert await world.keys() == set()
    assert await code_removal.candidates(world.records, after=None, limit=10) == []


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_killed_at_any_step_leaves_nothing_half_deleted(world: World, when: str) -> None:
    """A job, and code that only it names, must go; everything that another job names must stay."""
    kept = [await world.add(code=SHARED), await world.add(code=LIVE, ended=False), await world.add()]
    for step in itertools.count():
        job = await world.add(code=OWN)
        sharing = await world.add(code=SHARED)
        await world.delete(job)
        await world.delete(sharing)
        wire = Tripwire(at=step, when=when)
        dying = asyncio.create_task(world.erase_all(world.eraser(wire, deleted_keep_s=0)))
        tripped = asyncio.create_task(wire.tripped.wait())
        await asyncio.wait({dying, tripped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (dying, tripped):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await world.erase_all(world.eraser(deleted_keep_s=0))
        assert await world.gone(job)
        assert await world.gone(sharing)
        assert code_key("acme", OWN) not in await world.keys()
        assert all([await world.intact(job) for job in kept]), f"{when} {wire.calls[step : step + 1]}"
        if not wire.tripped.is_set():
            assert step > 20
            return


async def test_code_that_is_submitted_again_before_its_removal_is_kept(world: World) -> None:
    job = await world.add(code=OWN)
    await world.delete(job)
    eraser = world.eraser(deleted_keep_s=0)
    await eraser.erase_jobs()
    world.clock.ms += 599_000
    await code_removal.claim(world.records, "acme", OWN, now=world.clock.ms)
    world.clock.ms += 60_000  # the submission takes its time to insert the job
    assert await eraser.remove_code(0) == 0
    again = await world.add(code=OWN)
    await world.erase_all(eraser)
    assert await world.intact(again)
    assert await code_removal.candidates(world.records, after=None, limit=10) == []


async def test_a_submission_that_is_cut_off_after_its_claim_does_not_keep_code_for_ever(world: World) -> None:
    job = await world.add(code=OWN)
    await world.delete(job)
    eraser = world.eraser(deleted_keep_s=0)
    await eraser.erase_jobs()
    await code_removal.claim(world.records, "acme", OWN, now=world.clock.ms)
    await world.erase_all(eraser)
    assert await world.keys() == set()


@pytest.mark.parametrize("step", range(8))
async def test_a_submission_at_any_moment_of_the_removal_keeps_its_code_or_has_to_repeat(
    world: World, step: int
) -> None:
    job = await world.add(code=OWN)
    await world.delete(job)
    await world.eraser(deleted_keep_s=0).erase_jobs()
    world.clock.ms += 600_000
    submitted: list[Job] = []

    async def submit() -> None:
        with suppress(Unavailable):  # the code is being removed: the client sends it again
            await code_removal.claim(world.records, "acme", OWN, now=world.clock.ms)
            submitted.append(await world.add(code=OWN))

    await world.eraser(Tripwire(at=step, what="act", act=submit), deleted_keep_s=0).remove_code(0)
    await world.erase_all(world.eraser(deleted_keep_s=0))
    for job in submitted:
        assert await world.intact(job)
    if not submitted:
        await code_removal.claim(world.records, "acme", OWN, now=world.clock.ms)
        assert await world.keys() == set()


async def test_no_code_is_removed_while_a_document_cannot_be_read(world: World) -> None:
    job, damaged = await world.add(code=OWN), await world.add(code=OWN)
    await world.delete(job)
    world.jobs.plant(damaged.id, "{")
    world.unreadable = True
    eraser = world.eraser(deleted_keep_s=0)
    await world.erase_all(eraser)
    assert await world.gone(job)
    assert code_key("acme", OWN) in await world.keys()
    world.unreadable = False  # not yet known to this process: the store knows
    await world.erase_all(eraser)
    assert code_key("acme", OWN) in await world.keys()


async def test_a_process_that_stood_still_removes_no_code(world: World) -> None:
    job = await world.add(code=OWN)
    await world.delete(job)
    await world.eraser(deleted_keep_s=0).erase_jobs()
    world.clock.ms += 600_000
    calls = Tripwire()
    await world.eraser(calls, deleted_keep_s=0).remove_code(0)
    head = calls.calls.index("objects.head")

    await world.put(code_key("acme", OWN))
    await code_removal.mark(world.records, "acme", OWN, now=0)
    again = replace(job, id="jagain", idem="again", code_digest=OWN)

    async def stand_still() -> None:
        """Meanwhile another process removes the code, and its owner submits it again."""
        await world.eraser(deleted_keep_s=0).remove_code(0)
        await world.put(code_key("acme", OWN))
        await world.jobs.insert(again)
        world.clock.ms += 3_600_000

    await world.eraser(Tripwire(at=head, when="after", what="act", act=stand_still), deleted_keep_s=0).remove_code(0)
    assert code_key("acme", OWN) in await world.keys()


async def test_a_dispatcher_that_was_replaced_removes_no_code(world: World) -> None:
    job = await world.add(code=OWN)
    await world.delete(job)
    eraser = world.eraser(deleted_keep_s=0)
    await eraser.erase_jobs()
    world.clock.ms += 600_000
    await world.jobs.replace_dispatcher(DispatcherDoc(), DispatcherDoc(term=7, holder="other"))
    with pytest.raises(StaleFence):
        await eraser.remove_code(6)
    assert code_key("acme", OWN) in await world.keys()
    assert await eraser.remove_code(7) == 1


async def test_code_of_a_submission_that_was_cut_off_is_removed_later(world: World) -> None:
    job = await world.add(code=SHARED)
    for tenant in ("acme", "acme-2", "umbrella"):
        await world.put(code_key(tenant, OWN))
    await world.put("tenants/umbrella/jobs/j1/attempts/1/results/x")
    eraser = world.eraser(deleted_keep_s=0)
    world.clock.ms = 2**42  # long after the files' own times
    for _ in range(4):
        await eraser.mark_unnamed_code()
    await world.erase_all(eraser)
    assert await world.intact(job)
    assert [key for key in await world.keys() if "/code/" in key] == [code_key("acme", SHARED)]
    assert "tenants/umbrella/jobs/j1/attempts/1/results/x" in await world.keys()


async def test_fresh_code_that_no_job_names_yet_is_left_alone(world: World) -> None:
    await world.put(code_key("acme", OWN))
    world.clock.ms = (await world.objects.list("tenants/"))[0].modified + DAY_MS
    await world.eraser(deleted_keep_s=2 * 86_400).mark_unnamed_code()
    assert await code_removal.candidates(world.records, after=None, limit=10) == []


async def test_a_job_with_many_objects_is_erased_in_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.lcm.erasure._OBJECTS", 10)
    large, small = await world.add(objects=25), await world.add()
    for job in (large, small):
        await world.delete(job)
    eraser = world.eraser(deleted_keep_s=0)
    remaining = []
    for _ in range(6):
        await eraser.erase_jobs()
        remaining.append(len(await world.keys()))
    assert remaining[0] == 18
    assert all(before - after <= 13 for before, after in itertools.pairwise(remaining))
    assert await world.gone(large)
    assert await world.gone(small)


async def test_a_job_that_cannot_be_erased_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.lcm.erasure._JOBS", 2)
    jobs = [await world.add() for _ in range(5)]
    for job in jobs:
        await world.delete(job)
    forget = world.metrics.forget

    async def refusing(job_id: str) -> None:
        if job_id in {jobs[0].id, jobs[1].id}:
            raise InvalidRequest("damaged")
        await forget(job_id)

    monkeypatch.setattr(world.metrics, "forget", refusing)
    eraser = world.eraser(deleted_keep_s=0)
    for _ in range(4):
        await eraser.erase_jobs()
        world.clock.ms += 1
    assert [await world.gone(job) for job in jobs] == [False, False, True, True, True]
    monkeypatch.undo()
    for _ in range(3):
        await eraser.erase_jobs()
    assert not await world.gone(jobs[0]), "it is tried again after a minute, not every second"
    world.clock.ms += 60_001
    for _ in range(3):
        await eraser.erase_jobs()
    assert all([await world.gone(job) for job in jobs])


async def test_nothing_is_erased_while_the_metrics_service_is_away(world: World) -> None:
    job = await world.add()
    await world.delete(job)
    world.metrics.away = True
    eraser = world.eraser(deleted_keep_s=0)
    with pytest.raises(Unavailable):
        await eraser.erase_jobs()
    world.metrics.away = False
    assert await world.intact(job)
    assert await eraser.erase_jobs() == 1
    assert await world.gone(job)
