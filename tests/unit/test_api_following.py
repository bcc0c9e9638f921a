"""Live streams of the api: a follower that leaves, leaves no task behind."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from services.api.clients import Lines, ServiceClient, Summary, TelemetryClient
from services.api.following import End, Following
from services.api.job_answer import listed
from services.api.job_watcher import Watcher
from services.api.search_budget import SearchBudget
from services.api.settings import ApiSettings
from services.core.domain.errors import Unavailable
from services.core.domain.job import Job, set_desired
from services.core.domain.status import Desired
from services.core.ports.job_store import Changes
from services.core.ports.metric_store import LineQuery, LogLine, SourceId, StoredLine
from services.core.runtime.home import Home
from tests.documents import NOW, a_job
from tests.testbed.identities import credential
from tests.testbed.memory import MemoryJobStore
from tests.testbed.server import socket_folder
from tests.testbed.set_clock import SetClock
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
        watcher = Watcher(store, every_s=60, render=listed)
        stream = Following(store, TelemetryClient(client), watcher, searches()).lines(job, LineQuery())
        reading = asyncio.ensure_future(anext(stream))
        await until(waiting)
        reading.cancel()
        await asyncio.wait({reading})
        await stream.aclose()
        await client.close()
    assert waiting() == []


def searches() -> SearchBudget:
    return SearchBudget(LoopClock(), window_s=30, share=0.25, at_a_time=2)


class LoopClock(SetClock):
    """The time of the event loop."""

    def boottime(self) -> float:
        return asyncio.get_running_loop().time()


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
async def test_a_job_that_ran_again_between_two_reads_of_the_feed_goes_on() -> None:
    """Its page lacked the lines and points of this run until it was loaded anew."""
    store = MemoryJobStore()
    halted = set_desired(a_job(), Desired.HALT, actor="ada", now=NOW)
    job = await store.insert(replace(halted, attempt=replace(halted.attempt, number=1), released=NOW))
    watcher = Watcher(store, every_s=60, render=listed)
    following = Following(store, Metrics(0), watcher, searches())
    async with watcher.follow(job) as watched:
        waiting = asyncio.ensure_future(following.until_resumed(job, attempt=1))
        await until(lambda: watched.followers == 2)
        assert job.at_rest
        job = await store.replace(job, replace(job, attempt=replace(job.attempt, number=2)))
        assert job.at_rest
        await waiting


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
async def test_log_of_a_resumed_job_goes_on_although_an_open_page_has_it_as_halted() -> None:
    """`weft logs --follow` right after `weft resume` ended at once, with the former end."""
    store = MemoryJobStore()
    halted = set_desired(a_job(), Desired.HALT, actor="ada", now=NOW)
    job = await store.insert(replace(halted, released=NOW))
    watcher = Watcher(store, every_s=60, render=listed)
    async with watcher.follow(job) as page:
        await asyncio.sleep(1)  # the feed has read it
        assert page.over
        resumed = await store.replace(job, set_desired(job, Desired.RUN, actor="ada", now=NOW + 1))
        stream = Following(store, Metrics(0), watcher, searches()).lines(resumed, LineQuery())
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(1)
        assert not reading.done()
        assert page.job == resumed
        reading.cancel()
        await asyncio.wait({reading})
        await stream.aclose()


@pytest.mark.looptime
async def test_late_answer_of_the_store_takes_no_newer_document_from_the_followers() -> None:
    class Late(MemoryJobStore):
        async def get(self, job_id: str) -> Job | None:
            job = await super().get(job_id)
            await asyncio.sleep(1)
            return job

    store = Late()
    job = await store.insert(a_job())
    watcher = Watcher(store, every_s=60, render=listed)
    async with watcher.follow(job) as watched:
        await asyncio.sleep(0.5)  # the feed is reading it
        newer = await store.replace(job, replace(job, updated=NOW + 1))
        async with watcher.follow(newer):
            await asyncio.sleep(1)
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


@pytest.mark.slow
async def test_followers_of_a_job_with_a_large_spec_share_one_document() -> None:
    def documents() -> int:
        gc.collect()
        return sum(type(thing) is Job and thing.id == job.id for thing in gc.get_objects())

    store = MemoryJobStore()
    job = await store.insert(a_job())
    watcher = Watcher(store, every_s=60, render=listed)
    following = Following(store, Metrics(0), watcher, searches())
    streams = [following.events(replace(job), after_seq=0) for _ in range(50)]
    waiting = []
    for stream in streams:
        await anext(stream)  # its history
        await anext(stream)  # the document
        waiting.append(asyncio.ensure_future(anext(stream)))
    await asyncio.sleep(0)
    try:
        assert documents() < 10
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


class StoredLines(TelemetryClient):
    """A metrics service with lines of the seqs 1 to ``stored``. It was away at the first ``failures`` requests."""

    def __init__(self, stored: int, *, failures: int = 0) -> None:
        self.stored, self.failures = stored, failures

    async def lines(self, job_id: str, query: LineQuery, *, limit: int) -> Lines:
        last = min(self.stored, query.before_seq - 1) if query.before_seq is not None else self.stored
        first = query.after_seq + 1 if query.tail is None else max(last - query.tail + 1, 1)
        return Lines([stored_line(seq) for seq in range(first, last + 1)], last)

    async def summary(self, job_id: str) -> Summary:
        self.failures -= 1
        if self.failures >= 0:
            raise Unavailable("the metrics service is away")
        return Summary(lines=self.stored, points=0, latest={}, progress=None, eta_ms=None)


def stored_line(seq: int) -> StoredLine:
    return StoredLine(seq, SourceId(1, "worker", 0, 1, "stdout"), LogLine(seq, NOW, f"line {seq}"))


@pytest.mark.looptime
@pytest.mark.parametrize(("tail", "start"), [(0, 5), (2, 3), (5, 0), (20, 0), (None, 0)])
async def test_a_tail_that_is_cut_before_its_first_line_begins_at_the_same_line_again(
    tail: int | None, start: int
) -> None:
    """It began at the last lines of the second connection: lines that were stored in between were lost."""
    store, metrics = MemoryJobStore(), StoredLines(5, failures=3)
    job = await store.insert(set_desired(a_job(), Desired.KILL, actor="user:ada", now=NOW))
    following = Following(store, metrics, Watcher(store, every_s=60, render=listed), searches())
    query = await following.without_tail(job, LineQuery(tail=tail))
    assert (query.after_seq, query.tail) == (start, None)
    metrics.stored = 50
    seqs = [stored.seq async for batch in following.lines(job, query) if not isinstance(batch, End) for stored in batch]
    assert seqs == [*range(start + 1, 51)]


class Metrics(TelemetryClient):
    """A metrics service with ``stored`` lines, two threads that search, and no line that matches. A search stops after
    10 s, in which it gets through a million lines.
    """

    def __init__(self, stored: int) -> None:
        self.stored = stored
        self.searched_s: dict[str, float] = {}
        """By job."""
        self.live: list[int] = []
        """Where live searches began."""
        self._threads = asyncio.Semaphore(2)

    async def lines(self, job_id: str, query: LineQuery, *, limit: int) -> Lines:
        async with self._threads:
            through = min(query.after_seq + 1_000_000, self.stored)
            seconds = (through - query.after_seq) / 100_000
            await asyncio.sleep(seconds)
            self.searched_s[job_id] = self.searched_s.get(job_id, 0.0) + seconds
            return Lines([], through, through if through < self.stored else None)

    async def follow_lines(self, job_id: str, query: LineQuery) -> AsyncGenerator[tuple[Sequence[StoredLine], int]]:
        self.live.append(query.after_seq)
        await asyncio.sleep(3600)
        yield [], query.after_seq

    async def summary(self, job_id: str) -> Summary:
        return Summary(lines=self.stored, points=0, latest={}, progress=None, eta_ms=None)


@pytest.mark.looptime
async def test_hundreds_of_followed_searches_of_one_tenant_leave_the_others_a_thread() -> None:
    """They held both threads of the metrics service: searches of other tenants were answered 503."""
    store, metrics, budget = MemoryJobStore(), Metrics(1_000_000_000), searches()
    job = await store.insert(set_desired(a_job(), Desired.KILL, actor="user:ada", now=NOW))
    assert job.at_rest
    following = Following(store, metrics, Watcher(store, every_s=60, render=listed), budget)

    async def follow() -> None:
        async with aclosing(following.lines(job, LineQuery(search="x"))) as batches:
            async for _ in batches:
                pass

    loop = asyncio.get_running_loop()
    followers = [asyncio.create_task(follow()) for _ in range(300)]
    began = loop.time()
    for minute in range(10):
        await asyncio.sleep(60 * minute + began - loop.time() + 1)
        searched_from = loop.time()
        with budget.searching("other"):
            await metrics.lines("another job", LineQuery(search="x", after_seq=metrics.stored), limit=1)
        assert loop.time() - searched_from < 1
    assert metrics.searched_s[job.id] <= 30 + 10 + 0.25 * (loop.time() - began)
    for task in followers:
        task.cancel()
    await asyncio.wait(followers)


@pytest.mark.looptime
async def test_followed_search_ends_with_the_job_however_many_turns_it_takes() -> None:
    store, metrics = MemoryJobStore(), Metrics(20_000_000)
    job = await store.insert(set_desired(a_job(), Desired.KILL, actor="user:ada", now=NOW))
    following = Following(store, metrics, Watcher(store, every_s=60, render=listed), searches())
    batches = [batch async for batch in following.lines(job, LineQuery(search="x"))]
    assert isinstance(batches[-1], End)
    assert metrics.searched_s[job.id] == 200


@pytest.mark.looptime
async def test_followed_search_of_a_running_job_is_live_only_for_lines_that_are_new() -> None:
    store, metrics = MemoryJobStore(), Metrics(5_000_000)
    job = await store.insert(a_job())
    following = Following(store, metrics, Watcher(store, every_s=60, render=listed), searches())

    async def follow() -> None:
        async for _ in following.lines(job, LineQuery(search="x")):
            pass

    follower = asyncio.create_task(follow())
    await asyncio.sleep(40)
    metrics.stored += 1_000_000
    await asyncio.sleep(600)
    assert metrics.live == [6_000_000]
    assert metrics.searched_s[job.id] == 60
    follower.cancel()
    await asyncio.wait({follower})
