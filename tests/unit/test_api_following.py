"""Live streams of the api: a follower that leaves, leaves no task behind."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from services.api.clients import ServiceClient, TelemetryClient
from services.api.following import Following
from services.api.job_answer import listed
from services.api.job_watcher import Watcher
from services.api.settings import ApiSettings
from services.core.domain.errors import Unavailable
from services.core.domain.job import Job
from services.core.ports.job_store import Changes
from services.core.ports.metric_store import LineQuery
from services.core.runtime.home import Home
from tests.documents import NOW, a_job
from tests.testbed.identities import credential
from tests.testbed.memory import MemoryJobStore
from tests.testbed.server import socket_folder
from tests.waiting import until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "run").mkdir()
    return Home(tmp_path)


async def test_a_follower_that_leaves_while_metrics_hangs_leaves_no_task_behind(home: Home) -> None:
    """The api reported a destroyed task when it stopped: the wait for changes of the job was not cancelled."""
    before = asyncio.all_tasks()

    def waiting() -> list[str]:
        return [str(task) for task in asyncio.all_tasks() - before if "Event.wait" in str(task.get_coro())]

    store = MemoryJobStore()
    job = await store.insert(a_job())
    path = socket_folder() / "hangs"
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(path))
        hanging.listen()
        home.addresses_file.write_text(json.dumps({"metrics": f"unix:{path}"}))
        client = ServiceClient(home, "metrics", credential("api", "metrics"))
        stream = Following(store, TelemetryClient(client), Watcher(store, every_s=60, render=listed)).lines(
            job, LineQuery()
        )
        reading = asyncio.ensure_future(anext(stream))
        await until(waiting)
        reading.cancel()
        await asyncio.wait({reading})
        await stream.aclose()
        await client.close()
    assert waiting() == []


class CountedStore(MemoryJobStore):
    """Counts the reads of documents."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.feeds = 0

    async def get(self, job_id: str) -> Job | None:
        self.reads += 1
        return await super().get(job_id)

    async def changes(self, after: int | None) -> Changes:
        self.feeds += 1
        return await super().changes(after)


@pytest.mark.looptime
async def test_a_hundred_followers_of_quiet_jobs_cost_no_reads_of_their_own() -> None:
    store = CountedStore()
    jobs = [await store.insert(a_job()) for _ in range(100)]
    watcher = Watcher(store, every_s=0.03, render=listed)
    async with AsyncExitStack() as stack:
        for job in jobs:
            for _ in range(3):
                await stack.enter_async_context(watcher.follow(job))
        await asyncio.sleep(1)
        assert store.reads == len(jobs)  # once each: it may have changed before it was followed
        assert store.feeds < 40
        await asyncio.sleep(10)
        assert store.reads == len(jobs)
    store.feeds = 0
    await asyncio.sleep(10)
    assert store.feeds == 0


@pytest.mark.looptime
async def test_every_follower_hears_of_a_change_within_50_ms() -> None:
    store = CountedStore()
    job, other = await store.insert(a_job()), await store.insert(a_job())
    watcher = Watcher(store, every_s=ApiSettings().follow_poll_s, render=listed)
    loop = asyncio.get_running_loop()
    async with watcher.follow(job) as first, watcher.follow(job) as second, watcher.follow(other) as quiet:
        assert first is second
        await asyncio.sleep(1.001)
        for number in range(20):
            changed, began = first.changed, loop.time()
            job = await store.replace(job, replace(job, updated=NOW + number))
            await changed.wait()
            assert loop.time() - began <= 0.05
            assert first.job == job
            await asyncio.sleep(0.0137)
        assert quiet.job == other


@pytest.mark.looptime
async def test_a_change_between_the_first_read_and_the_follow_is_heard() -> None:
    store = CountedStore()
    other, job = await store.insert(a_job()), await store.insert(a_job())
    watcher = Watcher(store, every_s=0.03, render=listed)
    async with watcher.follow(other):
        await asyncio.sleep(1)
        newer = await store.replace(job, replace(job, updated=NOW + 1))
        await asyncio.sleep(1)
        async with watcher.follow(job) as watched:  # its caller has read it before the change
            await watched.changed.wait()
            assert watched.job == newer


@pytest.mark.looptime
async def test_a_job_that_the_sequence_does_not_report_is_read_now_and_then() -> None:
    store = CountedStore()
    job = await store.insert(a_job())
    watcher = Watcher(store, every_s=0.03, render=listed)
    async with watcher.follow(job) as watched:
        await asyncio.sleep(1)
        await store.delete(job.id)
        await watched.changed.wait()
        assert watched.job is None
        assert watched.over


@pytest.mark.looptime
async def test_a_feed_goes_on_after_the_store_was_away_and_misses_nothing() -> None:
    class Away(CountedStore):
        away = False

        async def get(self, job_id: str) -> Job | None:
            if self.away:
                raise Unavailable("the store is away")
            return await super().get(job_id)

    store = Away()
    job = await store.insert(a_job())
    watcher = Watcher(store, every_s=0.03, render=listed)
    async with watcher.follow(job) as watched:
        await asyncio.sleep(1)
        changed = watched.changed
        newer = await store.replace(job, replace(job, updated=NOW + 1))
        store.away = True
        await asyncio.sleep(1)
        assert watched.job == job
        store.away = False
        await changed.wait()
        assert watched.job == newer
