"""What the stores on MongoDB do when a reply is lost, a server stays silent, or a shard behind a router fails over."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from pymongo import MongoClient

from services.core.adapters.mongo import MongoRecordStore
from services.core.ports.record_store import Record
from tests.testbed.mongo import Mongo
from tests.testbed.proxy import Proxy, proxied

pytestmark = pytest.mark.usefixtures("long_mongo_timeouts")
DELETE = b"\x02delete\x00"


def a_record(owner: str = "ada") -> Record:
    return Record(kind="key", id="k1", body={"owner": owner}, index={})


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
