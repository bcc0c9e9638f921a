"""The stores on MongoDB: lost replies, silent servers, long index builds, a router whose shards fail over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import pytest
from pymongo import MongoClient
from pymongo.asynchronous.database import AsyncDatabase

from services.core.adapters.mongo import MongoJobStore, MongoRecordStore
from services.core.adapters.mongo.check import check_store
from services.core.adapters.mongo.connection import close, connect, translated
from services.core.domain.errors import Duplicate, Internal, Unavailable
from services.core.domain.status import Status
from services.core.ports.record_store import Record
from tests.documents import a_job, at_status
from tests.testbed.mongo import Mongo, short_timeouts
from tests.testbed.mongo_script import Command, scripted
from tests.testbed.proxy import Proxy, proxied
from tests.waiting import tries_within, until

pytestmark = pytest.mark.usefixtures("long_mongo_timeouts")
DELETE = b"\x02delete\x00"


def a_record(owner: str = "ada") -> Record:
    return Record(kind="key", id="k1", body={"owner": owner}, index={})


class Silent:
    """A server that takes connections and never answers."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    @property
    def uri(self) -> str:
        """With TLS, and as a load balancer: the driver connects when it is used, not before."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"mongodb://{host}:{port}/?tls=true&loadBalanced=true"

    async def start(self) -> None:
        self._server = await asyncio.start_server(lambda _, writer: self.connections.append(writer), "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self.connections:
            connection.transport.abort()
        await self._server.wait_closed()


@pytest.fixture
async def line(own_mongo: Mongo) -> AsyncGenerator[Proxy]:
    """A line to the server that may fail."""
    async with proxied(own_mongo.address) as line:
        yield line


@pytest.fixture
async def records(line: Proxy) -> AsyncGenerator[MongoRecordStore]:
    """A store behind the line."""
    store = await MongoRecordStore.open(f"mongodb://{line.address}/")
    yield store
    await store.close()


async def test_a_delete_whose_reply_is_lost_spares_a_record_that_another_writer_inserted_since(
    own_mongo: Mongo, line: Proxy, records: MongoRecordStore
) -> None:
    await records.insert(a_record())
    deletes = 0
    with MongoClient[dict[str, Any]](own_mongo.uri) as another_writer:
        stored = another_writer["weft"]["records"]

        def lose_the_first_answer(request: bytes) -> bool:
            nonlocal deletes
            if DELETE not in request:
                return False
            deletes += 1
            if deletes == 2:  # the first took effect; this is its repeat, on the way to the server
                stored.insert_one({"kind": "key", "id": "k1", "rev": 1, "body": {"owner": "bob"}, "index": []})
            return deletes == 1

        line.loses_answer_to = lose_the_first_answer
        await records.delete("key", "k1")
    assert deletes == 2
    assert await records.get("key", "k1") == a_record("bob")


async def test_a_record_that_another_writer_replaces_meanwhile_is_deleted(
    own_mongo: Mongo, line: Proxy, records: MongoRecordStore
) -> None:
    await records.insert(a_record())
    with MongoClient[dict[str, Any]](own_mongo.uri) as another_writer:
        stored = another_writer["weft"]["records"]

        def replace_before(request: bytes) -> bool:
            if DELETE in request:
                replacement = {"kind": "key", "id": "k1", "rev": 2, "body": {"owner": "bob"}, "index": []}
                assert stored.replace_one({"id": "k1"}, replacement).matched_count == 1
            return False

        line.loses_answer_to = replace_before
        await records.delete("key", "k1")
    assert await records.get("key", "k1") is None


@pytest.fixture
async def silent() -> AsyncGenerator[Silent]:
    server = Silent()
    await server.start()
    yield server
    await server.close()


async def test_a_server_that_is_silent_in_the_tls_handshake_is_unavailable_within_the_timeout(
    silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    with short_timeouts(monkeypatch):
        store = MongoRecordStore(connect(silent.uri))
        for stopwatch in tries_within(5):
            with stopwatch, pytest.raises(Unavailable, match="does not answer"):
                await store.get("key", "k1")
        await store.close()


async def test_a_call_that_is_cancelled_in_the_tls_handshake_ends_as_cancelled(silent: Silent) -> None:
    store = MongoRecordStore(connect(silent.uri))
    call = asyncio.create_task(store.get("key", "k1"))
    await until(lambda: silent.connections)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await store.close()


async def test_a_cancelled_call_ends_although_the_driver_loses_the_cancellation() -> None:
    waiting = asyncio.Event()

    async def call() -> None:
        async with translated():
            with suppress(asyncio.CancelledError):  # as wait_for of Python 3.11 does when it ends at that moment
                waiting.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(call())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_reply_that_comes_as_the_time_limit_ends_is_no_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    with short_timeouts(monkeypatch):
        async with translated():
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_store_starts_although_its_indexes_take_longer_to_build_than_a_call_may(
    own_mongo: Mongo, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = connect(own_mongo.uri)
    with monkeypatch.context() as shortened:
        shortened.setattr("services.core.adapters.mongo.connection.TIMEOUT_S", 1e-6)
        shortened.setattr("services.core.adapters.mongo.connection._GRACE_S", 0)
        store = await MongoRecordStore.on(database)
    assert {"kind_id", "fields"} <= (await database["records"].index_information()).keys()
    await store.close()


@pytest.mark.parametrize("kind", [MongoJobStore, MongoRecordStore])
async def test_the_server_gets_no_time_limit_for_building_indexes(
    kind: type[MongoJobStore | MongoRecordStore],
) -> None:
    answers = Answers()
    async with on_router(answers) as database:
        store = await kind.on(database)
        await store.ping()
    limited = {next(iter(command)): "maxTimeMS" in command for command in answers.commands}
    assert (limited["createIndexes"], limited["ping"]) == (False, True)


# --- a router whose shards fail over -----------------------------------------------


class Answers:
    """Answers each command with the next of its answers; then with a success."""

    def __init__(self, **answers: list[Mapping[str, Any]]) -> None:
        self._answers = answers
        self.commands: list[Command] = []

    def __call__(self, command: Command) -> Mapping[str, Any]:
        self.commands.append(command)
        name = next(iter(command))
        if left := self._answers.get(name):
            return left.pop(0)
        return {"cursor": {"id": 0, "ns": "weft.x", "firstBatch": []}} if name == "find" else {"n": 1, "nModified": 1}


def refused(*codes: int) -> Mapping[str, Any]:
    """The answer of a router for writes that a shard refused."""
    errors = [{"index": index, "code": code, "errmsg": f"E{code} of a shard"} for index, code in enumerate(codes)]
    return {"n": 0, "writeErrors": errors}


UNDECIDED: Final = {"n": 1, "writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}
FAIL_OVER: Final = (10107, 13435, 13436, 189, 91, 11600, 11602, 133, 134, 50, 202)


@asynccontextmanager
async def on_router(answers: Answers) -> AsyncGenerator[AsyncDatabase[dict[str, Any]]]:
    async with scripted(answers) as server:
        database = connect(server.uri)
        try:
            yield database
        finally:
            await close(database)


@pytest.mark.parametrize("code", FAIL_OVER)
async def test_a_write_is_repeated_while_a_shard_behind_a_router_fails_over(code: int) -> None:
    answers = Answers(update=[refused(code)], insert=[refused(code)])
    async with on_router(answers) as database:
        store = MongoRecordStore(database)
        stored = await store.insert(a_record())
        assert (await store.replace(stored)).rev == 2
    assert [next(iter(command)) for command in answers.commands] == ["insert", "insert", "update", "update"]


async def test_a_shard_that_stays_away_is_unavailable_and_may_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_router(Answers(insert=[refused(189)] * 1_000)) as database:
        with short_timeouts(monkeypatch), pytest.raises(Unavailable, match="does not answer") as away:
            await MongoRecordStore(database).insert(a_record())
    assert away.value.retry_after_s is not None


async def test_a_write_that_a_shard_refuses_for_another_reason_is_not_repeated() -> None:
    answers = Answers(insert=[refused(121)])
    async with on_router(answers) as database:
        with pytest.raises(Internal, match="E121"):
            await MongoRecordStore(database).insert(a_record())
    assert len(answers.commands) == 1


@pytest.mark.parametrize("code", [133, 189])
async def test_a_start_during_a_fail_over_does_not_say_that_mongodb_must_be_a_replica_set(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    away = {"ok": 0, "code": code, "errmsg": "no primary of the shard"}
    async with on_router(Answers(find=[away] * 1_000)) as database:
        with short_timeouts(monkeypatch), pytest.raises(Unavailable):
            await check_store(database)


@pytest.mark.parametrize(
    "answer",
    [refused(11000, 189), refused(10107), UNDECIDED, {**refused(11000), **UNDECIDED}],
    ids=["some-exist", "refused", "undecided", "exists-undecided"],
)
async def test_events_are_stored_again_while_a_fail_over_leaves_them_undecided(answer: Mapping[str, Any]) -> None:
    job = at_status(a_job(), Status.PENDING)
    answers = Answers(insert=[answer, refused(11000)])
    async with on_router(answers) as database:
        await MongoJobStore(database).append_history(job.id, job.tenant, job.history_tail)
    first, second = ([event["seq"] for event in command["documents"]] for command in answers.commands)
    assert first == second == [1, 2]


async def test_events_that_the_server_refuses_are_not_stored_again() -> None:
    job, answers = at_status(a_job(), Status.PENDING), Answers(insert=[refused(11000, 121)])
    async with on_router(answers) as database:
        with pytest.raises(Internal, match="E121"):
            await MongoJobStore(database).append_history(job.id, job.tenant, job.history_tail)
    assert len(answers.commands) == 1


# --- a key that is free again ------------------------------------------------------


def exists(**key_pattern: int) -> Mapping[str, Any]:
    return {"n": 0, "writeErrors": [{"index": 0, "code": 11000, "errmsg": "E11000", "keyPattern": key_pattern}]}


async def test_an_insert_takes_a_key_whose_record_is_deleted_at_that_moment() -> None:
    answers = Answers(insert=[exists(kind=1, id=1)])
    async with on_router(answers) as database:
        assert await MongoRecordStore(database).insert(a_record()) == a_record()
    names = [next(iter(command)) for command in answers.commands]
    assert names == ["insert", "find", "find", "insert"]
    assert [command.get("readConcern") for command in answers.commands[1:3]] == [
        {"level": "majority"},
        {"level": "linearizable"},
    ]


async def test_a_job_with_the_idempotency_key_of_another_job_is_a_duplicate_at_once() -> None:
    answers = Answers(insert=[exists(idem=1)])
    async with on_router(answers) as database:
        with pytest.raises(Duplicate):
            await MongoJobStore(database).insert(a_job())
    assert [next(iter(command)) for command in answers.commands].count("insert") == 1
