"""Contract of every RecordStore."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import apsw
import pytest
from pymongo import AsyncMongoClient

from services.core.adapters.mongo import MongoRecordStore
from services.core.adapters.sqlite import SqliteRecordStore
from services.core.domain.errors import Conflict, Duplicate, InvalidRequest, NotFound, Quarantined, StaleRevision
from services.core.ports.record_store import Record, RecordStore
from tests.contract.hostile import PLAIN, TEXTS, VALUES, Refusal, attempt, names
from tests.testbed.memory import MemoryRecordStore


class World(Protocol):
    """One set of records and its users."""

    async def another(self) -> RecordStore:
        """The store as another process uses it."""
        ...

    async def close(self) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self.store = MemoryRecordStore()

    async def another(self) -> RecordStore:
        return self.store

    async def close(self) -> None:
        await self.store.close()


class OnSqlite:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.stores: list[SqliteRecordStore] = []

    async def another(self) -> RecordStore:
        self.stores.append(await SqliteRecordStore.open(self.path))
        return self.stores[-1]

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


class OnMongo:
    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.stores: list[MongoRecordStore] = []

    async def another(self) -> RecordStore:
        self.stores.append(await MongoRecordStore.open(self.uri))
        return self.stores[-1]

    async def plant(self, record_id: str, changes: Mapping[str, Any]) -> None:
        async with AsyncMongoClient[dict[str, Any]](self.uri) as client:
            records = client.get_default_database()["records"]
            assert (await records.update_one({"id": record_id}, {"$set": changes})).matched_count == 1

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


@pytest.fixture(params=["sqlite", "memory", "mongo"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[World, None]:
    world: World
    if request.param == "mongo":
        request.getfixturevalue("long_mongo_timeouts")
        world = OnMongo(request.getfixturevalue("mongo_uri"))
    else:
        world = InMemory() if request.param == "memory" else OnSqlite(tmp_path / "records.sqlite")
    yield world
    await world.close()


@pytest.fixture
async def store(world: World) -> RecordStore:
    return await world.another()


@pytest.fixture
async def on_sqlite(tmp_path: Path) -> AsyncGenerator[OnSqlite, None]:
    world = OnSqlite(tmp_path / "records.sqlite")
    yield world
    await world.close()


@pytest.fixture
async def on_mongo(mongo_uri: str, long_mongo_timeouts: None) -> AsyncGenerator[OnMongo, None]:
    world = OnMongo(mongo_uri)
    yield world
    await world.close()


def a_key(record_id: str, **index: str) -> Record:
    return Record(kind="key", id=record_id, body={"scopes": ["train", None, 1.5], "né": {"a": True}}, index=index)


def ids(records: Sequence[Record]) -> list[str]:
    return [record.id for record in records]


async def test_an_inserted_record_is_read_by_all_processes(world: World) -> None:
    ours, theirs = await world.another(), await world.another()
    stored = await ours.insert(replace(a_key("k1", tenant="acme"), rev=9))
    assert stored == a_key("k1", tenant="acme")
    assert await theirs.get("key", "k1") == stored
    assert await theirs.get("key", "k2") is None
    assert await theirs.get("user", "k1") is None


async def test_a_second_record_with_the_same_kind_and_id_is_refused(store: RecordStore) -> None:
    first = await store.insert(a_key("k1"))
    with pytest.raises(Duplicate):
        await store.insert(replace(first, body={}))
    await store.insert(replace(first, kind="user", body={"name": "ada"}))
    assert await store.get("key", "k1") == first


async def test_one_of_sixteen_racing_inserts_of_an_id_wins(world: World) -> None:
    stores = [await world.another() for _ in range(2)]
    outcomes = await asyncio.gather(
        *[stores[n % 2].insert(replace(a_key("k"), body={"by": n})) for n in range(16)], return_exceptions=True
    )
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Record)]
    assert Counter(type(outcome) for outcome in outcomes) == {Record: 1, Duplicate: 15}
    assert await stores[0].get("key", "k") == winner


async def test_one_of_sixteen_racing_replaces_of_a_revision_wins(world: World) -> None:
    stores = [await world.another() for _ in range(4)]
    prior = await stores[0].insert(a_key("k"))
    outcomes = await asyncio.gather(
        *[stores[n % 4].replace(replace(prior, body={"by": n})) for n in range(16)], return_exceptions=True
    )
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Record)]
    assert Counter(type(outcome) for outcome in outcomes) == {Record: 1, StaleRevision: 15}
    assert winner.rev == 2
    assert await stores[3].get("key", "k") == winner


async def test_a_missing_record_cannot_be_replaced(store: RecordStore) -> None:
    with pytest.raises(NotFound):
        await store.replace(a_key("k"))
    assert await store.get("key", "k") is None


async def test_records_are_found_by_all_given_fields(store: RecordStore) -> None:
    for record in (
        a_key("a", tenant="acme", user="ada"),
        a_key("b", tenant="acme", user="eve"),
        a_key("c", tenant="umbrella", user="ada"),
        a_key("d"),
        replace(a_key("a", tenant="acme"), kind="secret"),
    ):
        await store.insert(record)
    assert ids(await store.find("key", {})) == ["a", "b", "c", "d"]
    assert ids(await store.find("key", {"tenant": "acme"})) == ["a", "b"]
    assert ids(await store.find("key", {"tenant": "acme", "user": "ada"})) == ["a"]
    assert ids(await store.find("secret", {"tenant": "acme"})) == ["a"]
    assert await store.find("key", {"tenant": "nobody"}) == []
    assert await store.find("key", {"nothing": "acme"}) == []


async def test_a_replaced_record_is_found_by_its_new_fields_only(store: RecordStore) -> None:
    record = await store.insert(a_key("a", tenant="acme", state="on"))
    record = await store.replace(replace(record, index={"tenant": "acme", "state": "off"}))
    assert await store.find("key", {"state": "on"}) == []
    assert await store.find("key", {"state": "off", "tenant": "acme"}) == [record]


async def test_pages_form_the_whole_list_during_inserts(store: RecordStore) -> None:
    for number in range(7):
        await store.insert(a_key(f"k{number}", tenant="acme"))
    collected: list[str] = []
    after: str | None = None
    while page := await store.find("key", {"tenant": "acme"}, after=after, limit=3):
        assert len(page) <= 3
        collected += ids(page)
        after = page[-1].id
        await store.insert(a_key(f"a{len(collected)}", tenant="acme"))  # behind the cursor
    assert collected == [f"k{number}" for number in range(7)]


async def test_a_deleted_record_is_gone_and_its_id_free(store: RecordStore) -> None:
    await store.insert(a_key("a", tenant="acme"))
    await store.delete("key", "a")
    await store.delete("key", "a")
    assert await store.get("key", "a") is None
    assert await store.find("key", {"tenant": "acme"}) == []
    again = await store.insert(a_key("a", tenant="umbrella"))
    assert await store.find("key", {"tenant": "umbrella"}) == [again]


async def test_kinds_are_those_with_a_record(store: RecordStore) -> None:
    assert await store.kinds() == []
    for record in (a_key("k1"), a_key("k2"), replace(a_key("u1"), kind="user"), replace(a_key("x"), kind="gone")):
        await store.insert(record)
    await store.delete("gone", "x")
    assert await store.kinds() == ["key", "user"]
    assert await store.unreadable() == []


async def test_changing_a_record_that_was_read_does_not_change_the_store(store: RecordStore) -> None:
    body: dict[str, Any] = {"roles": ["user"]}
    await store.insert(Record(kind="user", id="ada", body=body, index={}))
    body["roles"].append("admin")
    read = await store.get("user", "ada")
    assert read is not None
    read.body["roles"].append("admin")
    again = await store.get("user", "ada")
    assert again is not None
    assert again.body == {"roles": ["user"]}


@pytest.mark.parametrize(
    "record",
    [
        Record(kind="", id="x", body={}, index={}),
        Record(kind="x", id="", body={}, index={}),
        Record(kind="x", id="x", body={}, index={str(n): "" for n in range(5)}),
    ],
    ids=["no kind", "no id", "five index fields"],
)
async def test_an_invalid_record_is_refused(store: RecordStore, record: Record) -> None:
    with pytest.raises(InvalidRequest):
        await store.insert(record)
    with pytest.raises(InvalidRequest):
        await store.replace(record)


async def test_a_healthy_store_answers_a_ping(store: RecordStore) -> None:
    await store.ping()


# --- hostile texts -------------------------------------------------------------


def with_text(place: str, text: str) -> Record:
    """A record that has the text in this place."""
    plain = a_key("k1", tenant="acme")
    match place:
        case "kind" | "id":
            return replace(plain, **dict[str, Any]({place: text}))
        case "field":
            return replace(plain, index={text: "acme"})
        case "value":
            return replace(plain, index={"tenant": text})
        case "key of the body":
            return replace(plain, body={text: {"a": [{text: 1}]}})
        case _:
            return replace(plain, body={"a": [text]})


@pytest.mark.parametrize("place", ["kind", "id", "field", "value", "key of the body", "body"])
async def test_a_hostile_text_in_a_record_is_stored_exactly_or_refused(store: RecordStore, place: str) -> None:
    other = await store.insert(a_key("other"))
    for text in names(huge=place in {"id", "value", "body"}):
        record = with_text(place, TEXTS[text])
        stored = await attempt(store.insert(record))
        if isinstance(stored, Refusal):
            assert text not in PLAIN
            assert await store.find("key", {}) == [other]
            assert await store.kinds() == ["key"]
        else:
            assert stored == record
            assert await store.get(record.kind, record.id) == record
            assert await store.find(record.kind, record.index) == [record]
            assert (await store.replace(record)).rev == 2
            await store.delete(record.kind, record.id)
            assert await store.get(record.kind, record.id) is None
        assert await store.unreadable() == []
        assert await store.get("key", "other") == other


@pytest.mark.parametrize("place", ["field", "value", "key of the body", "body"])
async def test_a_hostile_replace_is_stored_exactly_or_changes_nothing(store: RecordStore, place: str) -> None:
    before = await store.insert(a_key("k1", tenant="acme"))
    for text in names(huge=place == "body"):
        new = replace(with_text(place, TEXTS[text]), rev=before.rev)
        stored = await attempt(store.replace(new))
        if isinstance(stored, Refusal):
            assert text not in PLAIN
            stored = before
        else:
            assert stored == replace(new, rev=before.rev + 1)
        assert await store.get("key", "k1") == stored
        assert await store.find("key", stored.index) == [stored]
        before = await store.replace(replace(stored, body={}))
        assert before.rev == stored.rev + 1


@pytest.mark.parametrize("value", VALUES)
async def test_a_value_that_a_store_may_not_hold_is_stored_exactly_or_refused(store: RecordStore, value: str) -> None:
    record = Record(kind="key", id="k1", body={"value": VALUES[value]}, index={})
    if isinstance(await attempt(store.insert(record)), Refusal):
        assert await store.find("key", {}) == []
    else:
        assert await store.get("key", "k1") == record
    assert await store.unreadable() == []
    assert await store.insert(a_key("k2")) == await store.get("key", "k2")


async def test_a_hostile_query_finds_nothing_or_is_refused(store: RecordStore) -> None:
    record = await store.insert(a_key("k1", tenant="acme"))
    for text, hostile in TEXTS.items():
        for call in (
            store.get("key", hostile),
            store.get(hostile, "k1"),
            store.find(hostile, {}),
            store.find("key", {hostile: "acme"}),
            store.find("key", {"tenant": hostile}),
            store.delete("key", hostile),
            store.delete(hostile, "k1"),
        ):
            result = await attempt(call)
            if isinstance(result, Refusal):
                assert text not in PLAIN
            else:
                assert not result
    assert await store.find("key", {"tenant": "acme"}) == [record]


# --- SQLite --------------------------------------------------------------------


async def test_records_survive_reopening(on_sqlite: OnSqlite) -> None:
    store = await on_sqlite.another()
    record = await store.insert(a_key("a", tenant="acme"))
    await store.close()
    assert await (await on_sqlite.another()).find("key", {"tenant": "acme"}) == [record]


@pytest.mark.parametrize("body", ["{", "[]", "[" * 100_000])
async def test_a_malformed_record_does_not_affect_others(on_sqlite: OnSqlite, body: str) -> None:
    store = await on_sqlite.another()
    sound = [await store.insert(a_key(name)) for name in "acd"]
    await store.insert(a_key("b"))
    connection = apsw.Connection(str(on_sqlite.path))
    connection.execute("UPDATE records SET body = ? WHERE id = 'b'", (body,))
    connection.close()
    assert await store.find("key", {}, limit=3) == sound
    with pytest.raises(Quarantined, match="key record b"):
        await store.get("key", "b")
    assert [(bad.kind, bad.id) for bad in await store.unreadable()] == [("key", "b")]


async def test_a_file_of_a_newer_weft_is_refused(on_sqlite: OnSqlite) -> None:
    await (await on_sqlite.another()).close()
    connection = apsw.Connection(str(on_sqlite.path))
    connection.execute("UPDATE weft_schema SET version = version + 1")
    connection.close()
    with pytest.raises(Conflict, match="newer"):
        await on_sqlite.another()


# --- MongoDB -------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{"body": "text"}, {"body": None}, {"index": "text"}, {"index": [{"field": "tenant"}]}, {"rev": "x", "body": 1}],
    ids=str,
)
async def test_a_malformed_document_does_not_affect_others(on_mongo: OnMongo, changes: Mapping[str, Any]) -> None:
    store = await on_mongo.another()
    sound = [await store.insert(a_key(name)) for name in "acd"]
    await store.insert(a_key("b"))
    await on_mongo.plant("b", changes)
    assert await store.find("key", {}, limit=3) == sound
    with pytest.raises(Quarantined, match="key record b"):
        await store.get("key", "b")
    with pytest.raises(Duplicate):
        await store.insert(a_key("b"))
    assert [(bad.kind, bad.id) for bad in await store.unreadable()] == [("key", "b")]


async def test_a_document_that_no_query_finds_is_reported_as_unreadable(on_mongo: OnMongo) -> None:
    store = await on_mongo.another()
    for name in "ab":
        await store.insert(a_key(name))
    await on_mongo.plant("b", {"id": 7})
    assert ids(await store.find("key", {})) == ["a"]
    assert [(bad.kind, bad.id) for bad in await store.unreadable()] == [("key", "7")]
