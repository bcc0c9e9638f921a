"""What every StatusStore does, over a real etcd and over the one in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

import pytest

from services.core.adapters.etcd.lease import EtcdLease
from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.errors import Conflict, InvalidRequest, TooLarge
from services.core.ports.status_store import MAX_VALUE, Change, Entry, Lease, StatusStore
from tests.testbed.etcd import Etcd
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.waiting import HANG_S, until

TTL_S = 2.0  # etcd's minimum


class World(Protocol):
    """One status store and those who use it."""

    def another(self) -> StatusStore:
        """Another process's view of it."""
        ...

    async def abandon(self, lease: Lease) -> None:
        """As if the lease's holder stopped: nobody keeps it alive any more."""
        ...


class OnEtcd:
    def __init__(self, address: str, prefix: str) -> None:
        self._address, self._prefix = address, prefix
        self.stores: list[EtcdStatusStore] = []

    def another(self) -> StatusStore:
        self.stores.append(EtcdStatusStore(self._address, prefix=self._prefix))
        return self.stores[-1]

    async def abandon(self, lease: Lease) -> None:
        assert isinstance(lease, EtcdLease)
        await lease.stop()


class InMemory:
    def __init__(self) -> None:
        self.store = MemoryStatusStore()

    def another(self) -> StatusStore:
        return self.store

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
    """What a watch has seen so far, from when it has listed."""
    seen: list[Change] = []

    async def watch() -> None:
        async with aclosing(store.watch(prefix)) as changes:
            async for change in changes:
                seen.append(change)  # noqa: PERF401 - a comprehension would show it only at its end

    task = asyncio.create_task(watch())
    try:
        await until(lambda: seen)
        yield seen
    finally:
        task.cancel()
        await asyncio.wait({task})


def values(seen: list[Change]) -> list[str]:
    return [change.entry.value for change in seen if change.entry is not None]


# --- reading and writing -------------------------------------------------------


async def test_what_was_written_is_read_with_its_revisions(store: StatusStore) -> None:
    first = await store.put("/jobs/a", "1")
    second = await store.put("/jobs/a", "zwei ✓")
    assert second > first
    assert await store.get("/jobs/a") == Entry("/jobs/a", "zwei ✓", second, first)
    assert await store.get("/jobs/b") is None


async def test_list_has_all_below_the_prefix_by_key_and_nothing_beside(store: StatusStore) -> None:
    keys = [f"/jobs/x/{number:04}" for number in range(1100)]  # more than a page
    await asyncio.gather(*(store.put(key, key) for key in [*keys, "/jobs/y", "/jobs", "/jobs/x0"]))
    assert [entry.key for entry in await store.list("/jobs/x/")] == keys
    assert [entry.key for entry in await store.list("/jobs/x/0000")] == ["/jobs/x/0000"]
    assert await store.list("/members/") == []


async def test_delete_removes_a_key_and_delete_prefix_all_below(store: StatusStore) -> None:
    for key in ("/jobs/x/1", "/jobs/x/2", "/jobs/x/3", "/jobs/y"):
        await store.put(key, "")
    await store.delete("/jobs/x/1")
    await store.delete("/jobs/x/1")
    assert await store.delete_prefix("/jobs/x/") == 2
    assert await store.delete_prefix("/jobs/x/") == 0
    assert [entry.key for entry in await store.list("/")] == ["/jobs/y"]


@pytest.mark.parametrize("key", ["jobs/x", "", "/jobs/\x00"])
async def test_a_key_that_is_no_path_is_refused(store: StatusStore, key: str) -> None:
    with pytest.raises(InvalidRequest):
        await store.put(key, "")
    with pytest.raises(InvalidRequest):
        await store.get(key)
    with pytest.raises(InvalidRequest):
        await store.list(key)


async def test_a_value_may_have_64_kib_and_no_more(store: StatusStore) -> None:
    await store.put("/big", "x" * MAX_VALUE)
    for value in ("x" * (MAX_VALUE + 1), "✓" * (MAX_VALUE // 2)):
        with pytest.raises(TooLarge):
            await store.put("/big", value)
    assert (await store.list("/big"))[0].value == "x" * MAX_VALUE


async def test_the_store_answers_a_ping(store: StatusStore) -> None:
    await store.ping()


# --- compare and set -----------------------------------------------------------


async def test_of_sixteen_who_create_a_key_at_once_one_wins(world: World) -> None:
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


async def test_sixteen_who_count_by_compare_and_set_lose_no_count(world: World) -> None:
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


async def test_put_if_knows_a_deleted_and_recreated_key_apart(store: StatusStore) -> None:
    first = await store.put("/a", "1")
    await store.delete("/a")
    assert await store.put_if("/a", "2", mod_revision=first) is None
    second = await store.put_if("/a", "2", mod_revision=0)
    assert second is not None
    assert await store.put_if("/a", "3", mod_revision=0) is None
    assert await store.put_if("/a", "3", mod_revision=first) is None
    assert await store.put_if("/a", "3", mod_revision=second) == second + 1


async def test_put_while_writes_only_under_its_guard(store: StatusStore) -> None:
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


async def test_a_watch_starts_with_what_is_there_and_goes_on_with_what_comes(store: StatusStore) -> None:
    await store.put("/jobs/b", "1")
    await store.put("/jobs/a", "2")
    await store.put("/other", "3")
    async with watching(store, "/jobs/") as seen:
        await until(lambda: len(seen) == 3)
        revision = await store.put("/jobs/a", "4")
        await store.put("/other", "5")
        await store.delete("/jobs/b")
        await store.delete("/jobs/b")
        await store.put_if("/jobs/c", "6", mod_revision=0)
        await store.put_if("/jobs/c", "7", mod_revision=0)
        await until(lambda: len(seen) == 6)
    assert [(change.kind, change.key) for change in seen] == [
        ("reset", ""),
        ("put", "/jobs/a"),
        ("put", "/jobs/b"),
        ("put", "/jobs/a"),
        ("delete", "/jobs/b"),
        ("put", "/jobs/c"),
    ]
    assert values(seen) == ["2", "1", "4", "6"]
    assert seen[3].entry is not None
    assert seen[3].entry.mod_revision == revision
    assert seen[4].entry is None


async def test_the_end_of_a_whole_prefix_is_seen_key_by_key(store: StatusStore) -> None:
    for number in range(5):
        await store.put(f"/jobs/x/{number}", "")
    async with watching(store, "/jobs/") as seen:
        await until(lambda: len(seen) == 6)
        await store.delete_prefix("/jobs/x/")
        await store.put("/jobs/last", "")
        await until(lambda: len(seen) == 12)
    assert [change.key for change in seen[6:]] == [*(f"/jobs/x/{number}" for number in range(5)), "/jobs/last"]


async def test_a_watch_that_starts_amid_writes_sees_each_once_and_in_order(world: World) -> None:
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
    for seen in results[1:]:
        assert seen == [str(number) for number in range(300)]


async def test_closing_the_store_ends_its_watches(world: World) -> None:
    store = world.another()
    changes = store.watch("/")
    assert (await anext(changes)).kind == "reset"
    waiting = asyncio.ensure_future(anext(changes, None))
    await until(lambda: asyncio.sleep(0, result=not waiting.done()))
    await store.close()
    assert await asyncio.wait_for(waiting, HANG_S) is None


# --- leases --------------------------------------------------------------------


async def test_a_revoked_lease_takes_its_keys_along_at_once(world: World) -> None:
    store, other = world.another(), world.another()
    lease = await store.lease(TTL_S)
    assert lease.alive
    await store.put("/members/a", "1", lease=lease)
    await store.put_if("/members/b", "1", mod_revision=0, lease=lease)
    await store.put("/members/c", "1", lease=lease)
    await store.put("/members/c", "2")  # lets go of the lease
    async with watching(other, "/members/") as seen:
        await until(lambda: len(seen) == 4)
        await lease.revoke()
        assert not lease.alive
        assert [entry.key for entry in await other.list("/members/")] == ["/members/c"]
        await asyncio.wait_for(lease.lost(), HANG_S)
        await until(lambda: len(seen) == 6)
    assert sorted(change.key for change in seen[4:]) == ["/members/a", "/members/b"]
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


async def test_a_lease_that_is_kept_outlives_its_ttl_and_an_abandoned_one_does_not(world: World) -> None:
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
