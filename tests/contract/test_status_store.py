"""Contract of every StatusStore: run on a real etcd and on the store in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

import pytest

from services.core.adapters.etcd.connection import Connection, Credentials
from services.core.adapters.etcd.lease import EtcdLease
from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.errors import Conflict, InvalidRequest, TooLarge
from services.core.gen.weft.etcd import rpc_pb2
from services.core.ports.status_store import MAX_VALUE, Change, Entry, Lease, StatusStore
from tests.testbed.etcd import Etcd
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.waiting import HANG_S, until

TTL_S = 6.0
"""A process that is stalled for two thirds of it may lose its lease."""


class World(Protocol):
    """One status store and its users."""

    def another(self) -> StatusStore:
        """The store as another process uses it."""
        ...

    async def write_bytes(self, key: str, stored: bytes) -> None:
        """Writes any bytes below the key, as another program may."""
        ...

    async def abandon(self, lease: Lease) -> None:
        """Ends the keep-alives of the lease, as if its holder stopped."""
        ...


class OnEtcd:
    def __init__(self, address: str, prefix: str) -> None:
        self._address, self._prefix = address, prefix
        self.stores: list[EtcdStatusStore] = []

    def another(self) -> StatusStore:
        self.stores.append(EtcdStatusStore(self._address, prefix=self._prefix, timeout_s=HANG_S))
        return self.stores[-1]

    async def write_bytes(self, key: str, stored: bytes) -> None:
        connection = Connection(self._address, credentials=Credentials(), timeout_s=HANG_S)
        request = rpc_pb2.PutRequest(key=(self._prefix + key).encode(), value=stored)
        await connection.call(connection.kv.Put, request)
        await connection.close()

    async def abandon(self, lease: Lease) -> None:
        assert isinstance(lease, EtcdLease)
        await lease.stop()


class InMemory:
    def __init__(self) -> None:
        self.store = MemoryStatusStore()

    def another(self) -> StatusStore:
        return self.store

    async def write_bytes(self, key: str, stored: bytes) -> None:
        self.store.put_bytes(key, stored)

    async def abandon(self, lease: Lease) -> None:
        self.store.pause(lease.id)


@pytest.fixture(params=["etcd", "memory"])
async def world(request: pytest.FixtureRequest) -> AsyncGenerator[World, None]:
    if request.param == "memory":
        yield InMemory()
        return
    server: Etcd = request.getfixturevalue("etcd")
    on_etcd = OnEtcd(server.address, request.getfixturevalue("etcd_prefix"))
    yield on_etcd
    for store in on_etcd.stores:
        await store.close()


@pytest.fixture
async def store(world: World) -> StatusStore:
    return world.another()


@asynccontextmanager
async def watching(store: StatusStore, prefix: str) -> AsyncGenerator[list[Change], None]:
    """The changes that a watch has delivered so far. Enters the context once the first is there."""
    delivered: list[Change] = []

    async def watch() -> None:
        async with aclosing(store.watch(prefix)) as changes:
            async for change in changes:
                delivered.append(change)  # noqa: PERF401 - tests read the list while the watch runs

    task = asyncio.create_task(watch())
    try:
        await until(lambda: delivered)
        yield delivered
    finally:
        task.cancel()
        await asyncio.wait({task})


def values(delivered: list[Change]) -> list[str]:
    return [change.entry.value for change in delivered if change.entry is not None]


# --- reading and writing -------------------------------------------------------


async def test_a_written_value_is_read_with_its_revisions(store: StatusStore) -> None:
    first = await store.put("/jobs/a", "1")
    second = await store.put("/jobs/a", "zwei ✓")
    assert second > first
    assert await store.get("/jobs/a") == Entry("/jobs/a", "zwei ✓", second, first)
    assert await store.get("/jobs/b") is None


async def test_list_returns_exactly_the_entries_below_the_prefix_by_key(store: StatusStore) -> None:
    keys = [f"/jobs/x/{number:04}" for number in range(1100)]  # more than a page
    await asyncio.gather(*(store.put(key, key) for key in [*keys, "/jobs/y", "/jobs", "/jobs/x0"]))
    assert [entry.key for entry in await store.list("/jobs/x/")] == keys
    assert [entry.key for entry in await store.list("/jobs/x/0000")] == ["/jobs/x/0000"]
    assert await store.list("/members/") == []


async def test_delete_removes_a_key_and_delete_prefix_all_keys_below(store: StatusStore) -> None:
    for key in ("/jobs/x/1", "/jobs/x/2", "/jobs/x/3", "/jobs/y"):
        await store.put(key, "")
    await store.delete("/jobs/x/1")
    await store.delete("/jobs/x/1")
    assert await store.delete_prefix("/jobs/x/") == 2
    assert await store.delete_prefix("/jobs/x/") == 0
    assert [entry.key for entry in await store.list("/")] == ["/jobs/y"]


@pytest.mark.parametrize("key", ["jobs/x", "", "/jobs/\x00"])
async def test_an_invalid_key_is_refused(store: StatusStore, key: str) -> None:
    with pytest.raises(InvalidRequest):
        await store.put(key, "")
    with pytest.raises(InvalidRequest):
        await store.get(key)
    with pytest.raises(InvalidRequest):
        await store.list(key)


async def test_a_value_of_more_than_64_kib_is_refused(store: StatusStore) -> None:
    await store.put("/big", "x" * MAX_VALUE)
    for value in ("x" * (MAX_VALUE + 1), "✓" * (MAX_VALUE // 2)):
        with pytest.raises(TooLarge):
            await store.put("/big", value)
    assert (await store.list("/big"))[0].value == "x" * MAX_VALUE


async def test_the_store_answers_a_ping(store: StatusStore) -> None:
    await store.ping()


HOSTILE_TEXTS = [
    "\x00",
    "a\x00b",
    "\x1b[2J\x07\r\n",
    "\u202egpj.exe",
    "\ufeff\ufffe\U0010ffff",
    '{"$where": "1", "a.b": "../.."}',
    "",
    " ",
    "x" * MAX_VALUE,
]
HOSTILE_KEYS = [
    "/jobs/$where",
    "/jobs/a.b..",
    "/jobs/../x",
    "//",
    "/jobs/ ",
    "/\u202egpj",
    "/\x1b[2J\n",
    "/" + "x" * 1023,
]
REFUSED_TEXTS = ["\ud800", "a\udfffb", "x" * (MAX_VALUE + 1), "x" * 10_000_000, "\ud800" * 10_000_000]
REFUSED_KEYS = [
    "",
    "jobs",
    "../jobs",
    "/jobs/\x00",
    "/\ud800",
    "/" + "x" * 1024,
    "/" + "é" * 512,
    "/" + "x" * 10_000_000,
]


@pytest.mark.parametrize("value", HOSTILE_TEXTS, ids=lambda value: repr(value)[:20])
async def test_a_hostile_value_is_read_back_exactly(store: StatusStore, value: str) -> None:
    revision = await store.put("/jobs/x", value)
    entry = Entry("/jobs/x", value, revision, revision)
    assert await store.get("/jobs/x") == entry
    assert await store.list("/jobs/") == [entry]
    assert await store.put_if("/jobs/x", value, mod_revision=revision) is not None
    revision = await store.put("/jobs/y", value)
    assert await store.put_while("/jobs/y", value, guard_key="/jobs/x", guard_value=value, mod_revision=revision)


@pytest.mark.parametrize("key", HOSTILE_KEYS, ids=lambda key: repr(key)[:20])
async def test_a_hostile_key_is_read_back_exactly_and_meets_no_other(store: StatusStore, key: str) -> None:
    await store.put("/jobs/x", "other")
    revision = await store.put(key, "1")
    assert await store.get(key) == Entry(key, "1", revision, revision)
    assert await store.list(key) == [Entry(key, "1", revision, revision)]
    await store.delete(key)
    assert await store.get(key) is None
    assert [entry.key for entry in await store.list("/")] == ["/jobs/x"]


@pytest.mark.parametrize("value", REFUSED_TEXTS, ids=lambda value: repr(value)[:20])
async def test_a_value_that_cannot_be_stored_is_refused_before_anything_is_written(
    store: StatusStore, value: str
) -> None:
    revision = await store.put("/jobs/x", "1")
    for write in (
        store.put("/jobs/x", value),
        store.put_if("/jobs/x", value, mod_revision=revision),
        store.put_while("/jobs/x", value, guard_key="/jobs/x", guard_value="1", mod_revision=revision),
        store.put_while("/jobs/x", "2", guard_key="/jobs/x", guard_value=value, mod_revision=revision),
    ):
        with pytest.raises((InvalidRequest, TooLarge)):
            await write
    assert await store.list("/") == [Entry("/jobs/x", "1", revision, revision)]


@pytest.mark.parametrize("key", REFUSED_KEYS, ids=lambda key: repr(key)[:20])
async def test_a_key_that_cannot_be_stored_is_refused_before_anything_is_written(store: StatusStore, key: str) -> None:
    revision = await store.put("/jobs/x", "1")
    for call in (
        store.get(key),
        store.list(key),
        store.put(key, ""),
        store.put_if(key, "", mod_revision=0),
        store.put_while(key, "", guard_key="/jobs/x", guard_value="1", mod_revision=0),
        store.put_while("/jobs/x", "", guard_key=key, guard_value="1", mod_revision=revision),
        store.delete(key),
        store.delete_prefix(key),
    ):
        with pytest.raises(InvalidRequest) as refused:
            await call
        assert len(refused.value.message) < 300
    with pytest.raises(InvalidRequest):
        await anext(store.watch(key))
    assert await store.list("/") == [Entry("/jobs/x", "1", revision, revision)]


# --- entries that another program wrote ---------------------------------------

NOT_OURS = [b"\xff", b'{"phase": "\xed\xa0\x80"}', b"x" * (MAX_VALUE + 1), b"\xff" * 1_000_000]


@pytest.mark.parametrize("stored", NOT_OURS, ids=["not UTF-8", "surrogate", "too large", "both"])
async def test_a_value_that_is_not_utf_8_or_too_large_is_malformed_for_its_own_key_only(
    world: World, stored: bytes
) -> None:
    store = world.another()
    await store.put("/jobs/a", "1")
    async with watching(store, "/jobs/") as delivered:
        await until(lambda: len(delivered) == 2)
        await world.write_bytes("/jobs/b", stored)
        await store.put("/jobs/c", "3")
        await until(lambda: len(delivered) == 4)
        assert [(change.kind, change.key) for change in delivered[2:]] == [("put", "/jobs/b"), ("put", "/jobs/c")]
        bad, good = delivered[2].entry, delivered[3].entry
        assert bad is not None
        assert good is not None
        assert (bad.value, good.value, good.malformed) == ("", "3", "")
        assert "UTF-8" in bad.malformed or "bytes" in bad.malformed
        assert [entry.malformed == "" for entry in await store.list("/jobs/")] == [True, False, True]
        assert await store.get("/jobs/b") == bad
        async with watching(world.another(), "/jobs/") as relisted:  # a watch that finds it in its first listing
            await until(lambda: len(relisted) == 4)
            await store.put_if("/jobs/b", "2", mod_revision=bad.mod_revision)
            await store.delete("/jobs/b")
            await until(lambda: len(relisted) == 6 and len(delivered) == 6)
    assert values(delivered[4:]) == values(relisted[4:]) == ["2"]
    assert [entry.key for entry in await store.list("/jobs/")] == ["/jobs/a", "/jobs/c"]


# --- compare and set -----------------------------------------------------------


async def test_one_of_sixteen_racing_creators_of_a_key_wins(world: World) -> None:
    stores = [world.another() for _ in range(4)]
    for race in range(5):
        won = await asyncio.gather(
            *(stores[racer % 4].put_if(f"/leader/{race}", str(racer), mod_revision=0) for racer in range(16))
        )
        winners = [racer for racer, revision in enumerate(won) if revision is not None]
        assert len(winners) == 1
        entry = await stores[0].get(f"/leader/{race}")
        assert entry is not None
        assert (entry.value, entry.mod_revision) == (str(winners[0]), won[winners[0]])


async def test_concurrent_increments_by_compare_and_set_lose_none(world: World) -> None:
    stores = [world.another() for _ in range(4)]
    await stores[0].put("/count", "0")

    async def count(store: StatusStore) -> None:
        for _ in range(5):
            revision = None
            while revision is None:
                entry = await store.get("/count")
                assert entry is not None
                revision = await store.put_if("/count", str(int(entry.value) + 1), mod_revision=entry.mod_revision)

    await asyncio.gather(*(count(stores[racer % 4]) for racer in range(16)))
    entry = await stores[0].get("/count")
    assert entry is not None
    assert entry.value == "80"


async def test_put_if_distinguishes_a_recreated_key_from_the_deleted_one(store: StatusStore) -> None:
    first = await store.put("/a", "1")
    await store.delete("/a")
    assert await store.put_if("/a", "2", mod_revision=first) is None
    second = await store.put_if("/a", "2", mod_revision=0)
    assert second is not None
    assert await store.put_if("/a", "3", mod_revision=0) is None
    assert await store.put_if("/a", "3", mod_revision=first) is None
    assert await store.put_if("/a", "3", mod_revision=second) == second + 1


async def test_put_while_writes_only_while_its_guard_has_the_value(store: StatusStore) -> None:
    async def put(value: str, guard: str, mod_revision: int) -> int | None:
        return await store.put_while(
            "/learner", value, guard_key="/attempt", guard_value=guard, mod_revision=mod_revision
        )

    assert await put("early", "1", 0) is None, "there is no guard yet"
    assert await put("early", "", 0) is None, "a missing guard is not an empty one"
    await store.put("/attempt", "1")
    first = await put("a", "1", 0)
    assert first is not None
    assert await put("b", "1", 0) is None, "the revision is another"
    second = await put("b", "1", first)
    assert second is not None
    await store.put("/attempt", "2")
    assert await put("late", "1", second) is None, "the attempt is over"
    await store.delete("/attempt")
    assert await put("late", "2", second) is None
    assert await store.get("/learner") == Entry("/learner", "b", second, first)


# --- watching ------------------------------------------------------------------


async def test_a_watch_delivers_present_entries_and_then_changes(store: StatusStore) -> None:
    await store.put("/jobs/b", "1")
    await store.put("/jobs/a", "2")
    await store.put("/other", "3")
    async with watching(store, "/jobs/") as delivered:
        await until(lambda: len(delivered) == 3)
        revision = await store.put("/jobs/a", "4")
        await store.put("/other", "5")
        await store.delete("/jobs/b")
        await store.delete("/jobs/b")
        await store.put_if("/jobs/c", "6", mod_revision=0)
        await store.put_if("/jobs/c", "7", mod_revision=0)
        await until(lambda: len(delivered) == 6)
    assert [(change.kind, change.key) for change in delivered] == [
        ("reset", ""),
        ("put", "/jobs/a"),
        ("put", "/jobs/b"),
        ("put", "/jobs/a"),
        ("delete", "/jobs/b"),
        ("put", "/jobs/c"),
    ]
    assert values(delivered) == ["2", "1", "4", "6"]
    assert delivered[3].entry is not None
    assert delivered[3].entry.mod_revision == revision
    assert delivered[4].entry is None


async def test_a_watch_delivers_one_delete_for_each_key_of_a_deleted_prefix(store: StatusStore) -> None:
    for number in range(5):
        await store.put(f"/jobs/x/{number}", "")
    async with watching(store, "/jobs/") as delivered:
        await until(lambda: len(delivered) == 6)
        await store.delete_prefix("/jobs/x/")
        await store.put("/jobs/last", "")
        await until(lambda: len(delivered) == 12)
    assert [change.key for change in delivered[6:]] == [*(f"/jobs/x/{number}" for number in range(5)), "/jobs/last"]


async def test_a_watch_started_during_writes_delivers_each_once_and_in_order(world: World) -> None:
    writer, watchers = world.another(), [world.another() for _ in range(5)]

    async def write() -> None:
        for number in range(300):
            await writer.put(f"/jobs/{number:03}", str(number))

    async def watch(store: StatusStore, written: list[Change], after: int) -> list[str]:
        await until(lambda: len(written) > after)
        got: list[str] = []
        async with aclosing(store.watch("/jobs/")) as changes:
            async for change in changes:
                got += values([change])
                if got and got[-1] == "299":
                    break
        return got

    async with watching(world.another(), "/jobs/") as written:
        results = await asyncio.gather(write(), *(watch(store, written, 50 * nr) for nr, store in enumerate(watchers)))
    for delivered in results[1:]:
        assert delivered == [str(number) for number in range(300)]


async def test_closing_the_store_ends_its_watches(world: World) -> None:
    store = world.another()
    changes = store.watch("/")
    assert (await anext(changes)).kind == "reset"
    waiting = asyncio.ensure_future(anext(changes, None))
    await until(lambda: asyncio.sleep(0, result=not waiting.done()))
    await store.close()
    assert await asyncio.wait_for(waiting, HANG_S) is None


# --- leases --------------------------------------------------------------------


async def test_revoking_a_lease_removes_its_keys_at_once(world: World) -> None:
    store, other = world.another(), world.another()
    lease = await store.lease(60)
    assert lease.alive
    await store.put("/members/a", "1", lease=lease)
    await store.put_if("/members/b", "1", mod_revision=0, lease=lease)
    await store.put("/members/c", "1", lease=lease)
    await store.put("/members/c", "2")  # detaches the key from the lease
    async with watching(other, "/members/") as delivered:
        await until(lambda: len(delivered) == 4)
        await lease.revoke()
        assert not lease.alive
        assert [entry.key for entry in await other.list("/members/")] == ["/members/c"]
        await asyncio.wait_for(lease.lost(), HANG_S)
        await until(lambda: len(delivered) == 6)
    assert sorted(change.key for change in delivered[4:]) == ["/members/a", "/members/b"]
    await lease.revoke()


async def test_a_restarted_process_revokes_its_former_lease_by_id(world: World) -> None:
    before, after = world.another(), world.another()
    lease = await before.lease(60)
    await before.put("/members/a", "1", lease=lease)
    await after.revoke_id(lease.id)
    assert await after.get("/members/a") is None
    await after.revoke_id(lease.id)
    await after.revoke_id(123456789)
    with pytest.raises(Conflict):
        await before.put("/members/a", "1", lease=lease)
    with pytest.raises(Conflict):
        await before.put_if("/members/a", "1", mod_revision=0, lease=lease)
    assert await after.get("/members/a") is None


async def test_a_lease_kept_alive_outlives_its_ttl_and_an_abandoned_one_does_not(world: World) -> None:
    store = world.another()
    kept, started = await store.lease(TTL_S), time.monotonic()
    abandoned = await store.lease(TTL_S)
    await store.put("/members/kept", "1", lease=kept)
    await store.put("/members/abandoned", "1", lease=abandoned)
    await world.abandon(abandoned)

    async def gone() -> bool:
        return await store.get("/members/abandoned") is None

    await until(gone)
    assert time.monotonic() - started >= TTL_S, "it had its TTL still"
    assert not abandoned.alive
    await asyncio.wait_for(abandoned.lost(), HANG_S)
    assert kept.alive
    assert await store.get("/members/kept") is not None
