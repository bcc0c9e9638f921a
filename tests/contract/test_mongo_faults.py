"""What the stores on MongoDB do when a reply is lost, a server stays silent, or a shard behind a router fails over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo import MongoClient

from services.core.adapters.mongo import MongoRecordStore
from services.core.adapters.mongo.connection import connect
from services.core.domain.errors import Unavailable
from services.core.ports.record_store import Record
from tests.testbed.mongo import Mongo
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


@contextmanager
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Within it; the server of a busy machine may be slow before and afterwards."""
    with monkeypatch.context() as shortened:
        for module in ("connection", "documents"):
            shortened.setattr(f"services.core.adapters.mongo.{module}.TIMEOUT_S", 0.5)
        yield


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
