"""The job store on MongoDB: servers that die, replies that are lost, servers that must be refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from services.core.adapters.mongo import MongoJobStore, MongoRecordStore, close, trusted
from services.core.bootstrap import wiring
from services.core.domain.errors import Duplicate, InvalidRequest, NotFound, StaleRevision, TooLarge, Unavailable
from services.core.domain.job import Job
from services.core.ports.job_store import DispatcherDoc, JobQuery
from services.core.runtime.settings import Settings
from tests.documents import NOW, a_job
from tests.promises import Promise
from tests.testbed.ferretdb import FerretDB
from tests.testbed.mongo import Mongo, short_timeouts
from tests.testbed.proxy import Proxy, proxied
from tests.waiting import tries_within, until

pytestmark = pytest.mark.usefixtures("long_mongo_timeouts")
INSERT, REPLACE = b"\x02insert\x00", b"\x02update\x00"


@pytest.fixture
async def own_store(own_mongo: Mongo) -> AsyncGenerator[MongoJobStore, None]:
    """A store on a server that the test may kill."""
    store = await MongoJobStore.open(own_mongo.uri)
    yield store
    await store.close()


@pytest.fixture
async def far(own_mongo: Mongo) -> AsyncGenerator[tuple[Proxy, MongoJobStore, MongoJobStore], None]:
    """A line that may fail, a store behind it, and a store with a direct connection."""
    async with proxied(own_mongo.address) as line:
        store, near = await MongoJobStore.open(f"mongodb://{line.address}/"), await MongoJobStore.open(own_mongo.uri)
        yield line, store, near
        await store.close()
        await near.close()


async def test_acknowledged_writes_survive_kill_9_of_the_server(own_mongo: Mongo, own_store: MongoJobStore) -> None:
    acknowledged: dict[str, int] = {}

    async def write() -> None:
        while True:
            job = await own_store.insert(a_job())
            acknowledged[job.id] = job.rev
            job = await own_store.replace(job, replace(job, updated=NOW + 1))
            acknowledged[job.id] = job.rev

    for kill in range(1, 3):
        writers = [asyncio.create_task(write()) for _ in range(4)]
        await until(lambda: len(acknowledged) > 40 * kill)  # noqa: B023 - called in this round only
        own_mongo.kill()
        before = dict(acknowledged)
        own_mongo.start()
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        there = {job.id: job.rev for job in await own_store.find(JobQuery(), limit=100_000)}
        assert {job_id: rev for job_id, rev in before.items() if there.get(job_id, 0) < rev} == {}


async def test_an_unreachable_server_is_unavailable_and_used_again_when_it_returns(
    own_mongo: Mongo, own_store: MongoJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await own_store.insert(a_job())
    own_mongo.kill()
    with short_timeouts(monkeypatch):
        outcomes = await asyncio.gather(
            own_store.get(job.id),
            own_store.insert(a_job()),
            own_store.replace(job, job),
            own_store.find(JobQuery()),
            own_store.count(JobQuery()),
            own_store.delete(job.id),
            own_store.dispatcher(),
            own_store.ping(),
            own_store.append_history(job.id, job.tenant, job.history_tail),
            own_store.history(job.id),
            return_exceptions=True,
        )
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * len(outcomes)
    assert {getattr(outcome, "retry_after_s", None) for outcome in outcomes} == {1.0}
    own_mongo.start()

    async def read() -> Job | None:
        try:
            return await own_store.get(job.id)
        except Unavailable:
            return None

    assert await until(read) == job


async def test_a_write_whose_reply_is_lost_is_recognised_as_done(
    far: tuple[Proxy, MongoJobStore, MongoJobStore],
) -> None:
    line, store, near = far
    line.lose_answer_to(INSERT)
    job = await store.insert(a_job())
    assert await near.find(JobQuery()) == [job]

    line.lose_answer_to(REPLACE)
    job = await store.replace(job, replace(job, updated=NOW + 1))
    assert (job.rev, await near.get(job.id)) == (2, job)

    line.lose_answer_to(INSERT)
    taken = await store.replace_dispatcher(DispatcherDoc(), DispatcherDoc(term=1, holder="lcm-1"))
    line.lose_answer_to(REPLACE)
    taken = await store.replace_dispatcher(taken, DispatcherDoc(term=2, holder="lcm-1"))
    assert await near.dispatcher() == taken == DispatcherDoc(term=2, holder="lcm-1", rev=2)


async def test_a_refusal_whose_reply_is_lost_stays_a_refusal(
    far: tuple[Proxy, MongoJobStore, MongoJobStore],
) -> None:
    line, store, near = far
    first = await near.insert(a_job())
    second = await near.replace(first, replace(first, updated=NOW + 1))
    line.lose_answer_to(REPLACE)
    with pytest.raises(StaleRevision):
        # An equal change of another writer is not taken for ours.
        await store.replace(first, replace(first, updated=NOW + 1))
    line.lose_answer_to(INSERT)
    with pytest.raises(Duplicate):
        await store.insert(first)
    line.lose_answer_to(REPLACE)
    with pytest.raises(NotFound):
        await store.replace(replace(first, id="jnone"), replace(first, id="jnone"))
    assert await near.find(JobQuery()) == [second]


async def test_a_breaking_line_neither_loses_nor_doubles_writes(
    far: tuple[Proxy, MongoJobStore, MongoJobStore],
) -> None:
    line, store, near = far
    job = await near.insert(a_job(summary={"count": 0}))

    async def add(lane: int) -> None:
        times = 2 if lane == 0 else 5
        while times:
            prior = await near.get(job.id)
            assert prior is not None
            if lane == 0:
                line.lose_answer_to(REPLACE)
            try:
                await store.replace(prior, replace(prior, summary={"count": prior.summary["count"] + 1}))
                times -= 1
            except (StaleRevision, Unavailable):
                pass

    await asyncio.gather(*map(add, range(4)))
    final = await near.get(job.id)
    assert final is not None
    # A write that another writer replaced before we looked raises StaleRevision, and is repeated. So is a write whose
    # outcome was not known in time: after each of the many breaks the driver waits for half a second.
    assert final.summary["count"] == final.rev - 1 >= 17


async def test_writers_at_the_same_time_end_once_a_broken_line_works_again(
    far: tuple[Proxy, MongoJobStore, MongoJobStore],
) -> None:
    # Where the server is no replica set, the driver's own retry of writes raised the error of the attempt before, took
    # it for a new one and dropped all connections. With several writers, nothing was written any more.
    line, store, near = far
    jobs = [await store.insert(a_job()) for _ in range(8)]
    line.cut()
    refused = line.connections
    writers = [asyncio.create_task(store.replace(job, replace(job, updated=NOW + 1))) for job in jobs]
    await until(lambda: line.connections > refused)
    line.mend()
    written = await asyncio.gather(*writers)
    assert [await near.get(job.id) for job in jobs] == written


async def test_a_silent_server_is_unavailable_within_the_timeout(
    far: tuple[Proxy, MongoJobStore, MongoJobStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, store, near = far
    job = await store.insert(a_job())
    line.freeze()
    line.cut()
    with short_timeouts(monkeypatch):
        for stopwatch in tries_within(5):
            with stopwatch, pytest.raises(Unavailable):
                await store.replace(job, replace(job, updated=NOW + 1))
    assert await near.get(job.id) == job


# --- values ----------------------------------------------------------------------


@pytest.fixture
async def store(mongo_uri: str) -> AsyncGenerator[MongoJobStore, None]:
    store = await MongoJobStore.open(mongo_uri)
    yield store
    await store.close()


async def test_names_with_dots_and_dollars_and_long_numbers_are_stored_exactly(store: MongoJobStore) -> None:
    summary = {"train.loss": 0.25, "$best": {"a.b": [1, None]}, "": "", "steps": 2**62}
    job = await store.insert(a_job(summary=summary))
    read = await store.get(job.id)
    assert read is not None
    assert read == job
    assert {type(read.created), type(read.summary["steps"])} == {int}


async def test_values_that_mongodb_cannot_hold_are_refused_before_anything_is_stored(store: MongoJobStore) -> None:
    for summary in ({"n": 2**70}, {"a\0b": 1}, {"x": "\ud800"}):
        with pytest.raises(InvalidRequest):
            await store.insert(a_job(summary=summary))
    with pytest.raises(TooLarge):
        await store.insert(a_job(summary={"x": "x" * 2**25}))
    assert await store.find(JobQuery()) == []


async def test_a_live_list_misses_no_job_when_thousands_change_between_two_polls(
    store: MongoJobStore, mongo_uri: str
) -> None:
    template = await store.insert(a_job())
    position = (await store.changes(None)).position
    async with AsyncMongoClient[dict[str, Any]](mongo_uri) as client:
        jobs = client.get_default_database()["jobs"]
        document = await jobs.find_one({"_id": template.id})
        assert document is not None
        # Thousands of one time: a page ends among them.
        times = {f"j{number:05}": position + number // 2_000 for number in range(6_000)}
        copies = [{**document, "_id": name, "idem": name, "changed": time} for name, time in times.items()]
        await jobs.insert_many(copies, ordered=False)
    changes = await store.changes(position)
    assert times.keys() - changes.revisions.keys() == set()
    assert changes.position == max(times.values())


async def test_a_live_list_shows_a_write_that_was_repeated_for_as_long_as_a_call_may_take(
    store: MongoJobStore, mongo_uri: str
) -> None:
    slow, other = await store.insert(a_job()), await store.insert(a_job())
    other = await store.replace(other, replace(other, updated=NOW + 1))
    position = (await store.changes(None)).position
    async with AsyncMongoClient[dict[str, Any]](mongo_uri) as client:
        # Sent first five seconds before the other write and on a clock that is behind; it takes effect now.
        written = {"$set": {"rev": 2, "changed": position - 6_900}}
        assert (await client.get_default_database()["jobs"].update_one({"_id": slow.id}, written)).modified_count == 1
    assert (await store.changes(position)).revisions[slow.id] == 2


async def test_a_closed_store_is_unavailable(store: MongoJobStore) -> None:
    await store.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.ping()


@pytest.mark.parametrize("uri", ["mongodb://", "mongodb://x:y:z/", "mongodb://h/?w=sometimes&tls=maybe"])
async def test_an_invalid_uri_is_refused(uri: str) -> None:
    with pytest.raises(InvalidRequest, match="WEFT_JOB_STORE"):
        await MongoJobStore.open(uri)


# --- which servers are trusted -------------------------------------------------


@pytest.fixture
def faulty(request: pytest.FixtureRequest, mongo_program: Path, tmp_path: Path) -> Iterator[Mongo]:
    server = Mongo(mongo_program, tmp_path, fault=request.param)
    server.start()
    yield server
    server.kill()


def settings(uri: str) -> Settings:
    return Settings(job_store=uri, home=Path("/nowhere"))


async def test_services_use_a_server_with_one_winner_of_each_race(mongo_uri: str) -> None:
    jobs, records = await wiring.job_store(settings(mongo_uri)), await wiring.record_store(settings(mongo_uri))
    assert isinstance(jobs, MongoJobStore)
    assert isinstance(records, MongoRecordStore)
    job = await jobs.insert(a_job())
    assert await jobs.find(JobQuery()) == [job]
    await jobs.close()
    await records.close()


@pytest.mark.parametrize("faulty", ["two-winners"], indirect=True)
async def test_a_server_that_lets_two_compare_and_sets_win_is_refused(faulty: Mongo) -> None:
    for wire in (wiring.job_store, wiring.record_store):
        with pytest.raises(InvalidRequest, match=r"let 16 of 16 compare-and-sets .* win.*sqlite"):
            await wire(settings(faulty.uri))


@pytest.mark.promise("R18")
async def test_ferretdb_is_refused_at_each_start(ferretdb: FerretDB, promise: Promise) -> None:
    n = promise.n(short=25, long=1_000)
    for start in range(n):
        with pytest.raises(InvalidRequest, match=r"let \d+ of 16 compare-and-sets .* win.*sqlite"):
            await wiring.job_store(settings(f"{ferretdb.uri}start{start % 10}"))
    promise.kept(n, "starts on FerretDB 1.24, which lets several of 16 compare-and-sets win")


@pytest.mark.promise("R18")
async def test_a_server_with_one_winner_is_accepted_at_each_start(mongo_server: str, promise: Promise) -> None:
    n = promise.n(short=5, long=1_000)
    for _ in range(n):
        await close(await trusted(mongo_server))
    promise.kept(n, "starts on a server with one winner of each race, taken")


@pytest.mark.parametrize("faulty", ["no-replica-set"], indirect=True)
async def test_a_server_without_linearizable_reads_is_refused_with_advice(faulty: Mongo) -> None:
    with pytest.raises(InvalidRequest, match="replSet"):
        await wiring.job_store(settings(faulty.uri))


async def test_a_store_of_another_kind_is_refused_without_repeating_its_password() -> None:
    with pytest.raises(InvalidRequest, match="WEFT_JOB_STORE") as refused:
        await wiring.job_store(settings("mongo://weft:hunter2@host/"))
    assert "hunter2" not in str(refused.value) + repr(settings("mongodb://weft:hunter2@host/"))
