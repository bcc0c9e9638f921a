"""The log of changes that live lists follow: one read and one JSON for each change, and no change missed."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from services.api import job_changes
from services.api.job_answer import listed
from services.api.job_changes import JobChanges, Rendered
from services.api.job_watcher import Watcher
from services.core.domain.errors import Unavailable
from services.core.domain.job import Job, moved, set_desired
from services.core.domain.status import Desired, Status
from services.core.ports.job_store import Changes
from tests.documents import NOW, a_job
from tests.testbed.memory import MemoryJobStore


class CountedStore(MemoryJobStore):
    """Counts the reads of documents; does not answer while ``away``."""

    reads = 0
    away = False

    async def get(self, job_id: str) -> Job | None:
        self.reads += 1
        if self.away:
            raise Unavailable("the store is away")
        return await super().get(job_id)


class Writer(MemoryJobStore):
    """The same documents for a writer, whose reads are not counted and not cut off."""

    def __init__(self, store: MemoryJobStore) -> None:
        self.__dict__ = store.__dict__


class CountedRender:
    calls = 0

    def __call__(self, job: Job) -> Rendered:
        self.calls += 1
        return listed(job)


def halted(job: Job) -> Job:
    return set_desired(job, Desired.HALT, actor="user:ada", now=NOW + 1)


@pytest.mark.looptime
async def test_two_hundred_open_lists_cost_one_read_and_one_json_for_each_change() -> None:
    store, render = CountedStore(), CountedRender()
    jobs = [await store.insert(a_job()) for _ in range(10)]
    watcher = Watcher(store, every_s=0.03, render=render)
    async with AsyncExitStack() as stack:
        logs = [await stack.enter_async_context(watcher.follow_all()) for _ in range(200)]
        places = [changes.number for changes in logs]
        await asyncio.sleep(10)
        assert store.reads == 0
        for job in jobs:
            await Writer(store).replace(job, halted(job))
        await asyncio.sleep(0.04)
        for changes, place in zip(logs, places, strict=True):
            batch = changes.after(place)
            assert [change.job_id for change in batch.changes] == [job.id for job in jobs]
            assert not batch.missed
        assert (store.reads, render.calls) == (10, 10)


@pytest.mark.looptime
async def test_a_list_hears_of_every_change_after_it_follows_and_of_none_that_it_cannot_see() -> None:
    store = CountedStore()
    job = await store.insert(a_job())
    watcher = Watcher(store, every_s=0.03, render=listed)
    async with watcher.follow_all() as changes:
        place = changes.number
        new = await store.insert(a_job())
        claimed = await store.replace(job, replace(job, updated=NOW + 5))  # as a claim: nothing that users see
        await asyncio.sleep(1)
        assert {change.job_id for change in changes.after(place).changes} == {job.id, new.id}
        place = changes.after(place).place
        await store.replace(claimed, replace(claimed, updated=NOW + 6))
        await asyncio.sleep(1)
        assert changes.after(place).changes == []


@pytest.mark.looptime
async def test_a_job_that_changes_often_is_sent_once_in_its_newest_form() -> None:
    store = CountedStore()
    job = await store.insert(a_job())
    watcher = Watcher(store, every_s=0.03, render=listed)
    async with watcher.follow_all() as changes:
        place = changes.number
        for status in (Status.PENDING, Status.DOWNLOADING, Status.PROCESSING):
            job = await store.replace(job, moved(job, status, actor="lcm", now=NOW + 1))
            await asyncio.sleep(0.1)
        [change] = changes.after(place).changes
        assert change.job is not None
        assert change.job.status is Status.PROCESSING
        assert '"PROCESSING"' in change.data


@pytest.mark.looptime
async def test_a_list_misses_nothing_while_the_store_is_away() -> None:
    store = CountedStore()
    jobs = [await store.insert(a_job()) for _ in range(3)]
    watcher = Watcher(store, every_s=0.03, render=listed)
    async with watcher.follow_all() as changes:
        place = changes.number
        store.away = True
        await Writer(store).replace(jobs[0], halted(jobs[0]))
        await asyncio.sleep(1)
        assert changes.after(place).changes == []
        heard = changes.changed
        store.away = False
        await heard.wait()
        assert [change.job_id for change in changes.after(place).changes] == [jobs[0].id]


@pytest.mark.looptime
async def test_an_unreadable_job_is_left_out_and_the_others_are_sent() -> None:
    store = CountedStore()
    bad, good = await store.insert(a_job()), await store.insert(a_job())
    watcher = Watcher(store, every_s=0.03, render=listed)
    async with watcher.follow_all() as changes:
        place = changes.number
        await store.replace(bad, halted(bad))
        store.plant(bad.id, "{")
        await store.replace(good, halted(good))
        await asyncio.sleep(1)
        assert [change.job_id for change in changes.after(place).changes] == [good.id]


@pytest.mark.looptime
async def test_the_feed_stops_with_its_last_list() -> None:
    class Counted(CountedStore):
        feeds = 0

        async def changes(self, after: int | None) -> Changes:
            self.feeds += 1
            return await super().changes(after)

    store = Counted()
    watcher = Watcher(store, every_s=0.03, render=listed)
    async with watcher.follow_all():
        await asyncio.sleep(1)
    feeds = store.feeds
    await asyncio.sleep(10)
    assert store.feeds == feeds
    job = await store.insert(a_job())
    async with watcher.follow_all() as changes:
        await store.replace(job, halted(job))
        await changes.changed.wait()
        assert [change.job_id for change in changes.after(0).changes] == [job.id]


def log_of(count: int) -> JobChanges:
    """A log with ``count`` jobs at the positions 11, 12, ...; it begins at 10."""
    changes = JobChanges(10, listed)
    for number in range(count):
        changes.add(replace(a_job(), id=f"j{number:022}"), 11 + number)
        changes.complete(11 + number)
    return changes


def test_a_reader_continues_after_the_position_it_has() -> None:
    changes = log_of(5)
    for position, expected in ((10, 5), (12, 4), (15, 1)):
        place = changes.place_of(position)
        assert place is not None
        assert len(changes.after(place).changes) == expected
    assert changes.place_of(9) is None  # before the log began
    assert changes.place_of(16) is None  # of another process


def test_a_reader_that_was_cut_off_gets_a_write_that_the_store_reported_late() -> None:
    """MongoDB's positions are times: a page that connected again lacked a change of the same millisecond for good."""
    changes = log_of(1)
    late = "j" + "9" * 22
    changes.add(replace(a_job(), id=late), 11)
    changes.complete(11)
    place = changes.place_of(11)
    assert place is not None
    assert late in [change.job_id for change in changes.after(place).changes]


def test_a_reader_that_is_too_slow_is_told_that_it_missed_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "_KEPT", 3)
    changes = log_of(5)
    assert changes.after(0).missed
    assert changes.after(1).missed
    assert not changes.after(2).missed
    assert [change.number for change in changes.after(0).changes] == [3, 4, 5]
    assert changes.place_of(12) is None
    assert changes.place_of(13) == 2


def test_changes_of_an_unfinished_turn_are_not_shown_yet() -> None:
    changes = log_of(1)
    changes.add(replace(a_job(), id="j" + "9" * 22), 12)
    assert len(changes.after(0).changes) == 1
    changes.complete(13)  # the turn was repeated, and had read further
    assert len(changes.after(0).changes) == 2


@pytest.mark.slow
def test_changes_of_jobs_with_large_specs_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "_KEPT_BYTES", 2**20)
    changes = JobChanges(10, listed)
    env = {f"N{number}": str(number) for number in range(1_000)}
    tracemalloc.start()
    try:
        for number in range(150):
            job = a_job(spec={"name": f"n{number}", "command": "x", "env": dict(env)})
            changes.add(replace(job, spec={**job.spec, "env": json.loads(json.dumps(env))}), 11 + number)
            changes.complete(11 + number)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1.5 * 2**20
    batch = changes.after(0)
    assert batch.missed
    assert 50 < len(batch.changes) < 150
    newest = batch.changes[-1].job
    assert newest is not None
    assert newest.spec["env"] == env


def test_reader_that_is_too_slow_is_told_once_while_a_long_turn_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "_KEPT", 3)
    changes = log_of(1)
    for number in range(5):
        changes.add(replace(a_job(), id=f"j{9 - number:022}"), 12)
    first = changes.after(0)
    assert (first.missed, first.changes) == (True, [])
    assert not changes.after(first.place).missed
    changes.complete(12)
    assert len(changes.after(first.place).changes) == 3
