"""Failures of etcd and of the network: a StatusStore on etcd loses no change and delivers none twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from services.core.adapters.etcd import launcher
from services.core.adapters.etcd.connection import Connection, Credentials
from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.errors import Unauthenticated, Unavailable
from services.core.gen.weft.etcd import rpc_pb2
from services.core.ports.status_store import Change, Lease
from tests.testbed.etcd import Etcd
from tests.testbed.go import SERVERS, GoBuilt
from tests.testbed.proxy import proxied
from tests.testbed.server import free_port
from tests.waiting import HANG_S, tries_within, until

T = TypeVar("T")
TTL_S = 2.0
LONG_TTL_S = 8.0
SILENCE_S = 0.3


@pytest.fixture(params=["installed", "3.6"])
def own_etcd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Etcd]:
    """An etcd that the test may kill, not started yet: the installed version, and the newest."""
    if request.param == "3.6":
        go_built: GoBuilt = request.getfixturevalue("go_built")
        monkeypatch.setenv("ETCD_BIN", str(go_built("etcd", SERVERS / "etcd")))
        assert launcher.etcd_version(launcher.find_etcd())[:2] == (3, 6)
    server = Etcd(tmp_path)
    yield server
    server.kill()


@asynccontextmanager
async def connected(
    address: str, prefix: str = "/weft", *, timeout_s: float = HANG_S, **options: float
) -> AsyncGenerator[EtcdStatusStore, None]:
    store = EtcdStatusStore(address, prefix=prefix, timeout_s=timeout_s, **options)  # type: ignore[arg-type]
    try:
        yield store
    finally:
        await store.close()


class Watcher:
    """Applies the changes of a watch, as all its readers do."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.known: dict[str, str] = {}

    @property
    def resets(self) -> int:
        return sum(change.kind == "reset" for change in self.changes)

    @property
    def revisions(self) -> list[int]:
        return [change.entry.mod_revision for change in self.changes if change.entry is not None]

    async def watch(self, store: EtcdStatusStore) -> None:
        async with aclosing(store.watch("/jobs/")) as changes:
            async for change in changes:
                self.changes.append(change)
                if change.kind == "reset":
                    self.known.clear()
                elif change.entry is not None:
                    self.known[change.key] = change.entry.value
                else:
                    del self.known[change.key]


@asynccontextmanager
async def watching(store: EtcdStatusStore) -> AsyncGenerator[Watcher, None]:
    watcher = Watcher()
    task = asyncio.create_task(watcher.watch(store))
    try:
        await until(lambda: watcher.changes)
        yield watcher
    finally:
        task.cancel()
        await asyncio.wait({task})


async def write(store: EtcdStatusStore, first: int, last: int) -> None:
    for number in range(first, last):
        await store.put(f"/jobs/{number:04}", str(number))


async def again(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats the call as callers do: the connection finds a restarted etcd only after up to half a second."""
    results: list[T] = []

    async def succeeded() -> bool:
        with suppress(Unavailable):
            results.append(await call())
        return bool(results)

    await until(succeeded)
    return results[0]


def expected(last: int) -> dict[str, str]:
    return {f"/jobs/{number:04}": str(number) for number in range(last)}


async def compact(address: str) -> None:
    """Compacts all history up to now."""
    connection = Connection(address, credentials=Credentials(), timeout_s=HANG_S)
    now = (await connection.call(connection.kv.Range, rpc_pb2.RangeRequest(key=b"x"))).header.revision
    await connection.call(connection.kv.Compact, rpc_pb2.CompactionRequest(revision=now))
    await connection.close()


# --- etcd dies -----------------------------------------------------------------


async def test_a_watch_delivers_each_change_once_over_kills_of_etcd(own_etcd: Etcd) -> None:
    own_etcd.start()
    await own_etcd.ready()
    async with connected(own_etcd.address) as store, watching(store) as watcher:
        for round_ in range(3):
            await write(store, 100 * round_, 100 * round_ + 50)
            own_etcd.kill()
            with pytest.raises(Unavailable):
                await store.put("/jobs/none", "")
            own_etcd.start()
            await own_etcd.ready()
            async with connected(own_etcd.address) as other:
                await write(other, 100 * round_ + 50, 100 * round_ + 100)
            await again(store.ping)
        await until(lambda: watcher.known == expected(300))
        assert watcher.resets == 1
        assert len(watcher.revisions) == 300
        assert watcher.revisions == sorted(set(watcher.revisions))


async def test_watchers_of_a_wiped_etcd_drop_what_is_gone(own_etcd: Etcd) -> None:
    own_etcd.start_empty()
    await own_etcd.ready()
    async with connected(own_etcd.address) as store, watching(store) as watcher:
        await write(store, 0, 20)
        lease = await store.lease(TTL_S)
        await until(lambda: len(watcher.known) == 20)
        own_etcd.kill()
        own_etcd.start_empty()
        await own_etcd.ready()
        await until(lambda: watcher.resets == 2)
        assert await again(lambda: store.list("/")) == []
        await write(store, 0, 5)
        await until(lambda: watcher.known == expected(5))
        await asyncio.wait_for(lease.lost(), HANG_S)
        assert not lease.alive


@pytest.mark.parametrize(
    ("cluster", "written"),
    [("second", 60), ("first", 5)],
    ids=["by another cluster id", "by a lower revision"],
)
async def test_a_wiped_etcd_is_recognised(own_etcd: Etcd, cluster: str, written: int) -> None:
    own_etcd.start(cluster="first")
    await own_etcd.ready()
    async with proxied(own_etcd.address) as proxy, connected(proxy.address) as store, watching(store) as watcher:
        await write(store, 0, 20)
        await until(lambda: len(watcher.known) == 20)
        proxy.cut()
        own_etcd.kill()
        own_etcd.empty()
        own_etcd.start(cluster=cluster)
        await own_etcd.ready()
        async with connected(own_etcd.address) as other:
            await write(other, 0, written)
        proxy.mend()
        await until(lambda: watcher.known == expected(written))
        assert watcher.resets == 2
        await again(store.ping)
        await write(store, written, written + 20)
        await until(lambda: watcher.known == expected(written + 20))


async def test_a_watch_lists_again_after_compaction(etcd: Etcd, etcd_prefix: str) -> None:
    async with (
        proxied(etcd.address) as proxy,
        connected(proxy.address, etcd_prefix) as store,
        connected(etcd.address, etcd_prefix) as other,
        watching(store) as watcher,
    ):
        await write(other, 0, 10)
        await until(lambda: watcher.known == expected(10))
        proxy.cut()
        await other.delete("/jobs/0000")
        await write(other, 10, 20)
        await compact(etcd.address)
        await other.put("/jobs/0001", "last")
        proxy.mend()
        final = {**expected(20), "/jobs/0001": "last"}
        del final["/jobs/0000"]
        await until(lambda: watcher.known == final)
        assert watcher.resets == 2


# --- the network fails -------------------------------------------------------


async def test_a_watch_resumes_over_broken_connections(etcd: Etcd, etcd_prefix: str) -> None:
    async with (
        proxied(etcd.address) as proxy,
        connected(proxy.address, etcd_prefix) as store,
        connected(etcd.address, etcd_prefix) as other,
        watching(store) as watcher,
    ):
        for round_ in range(10):
            writing = asyncio.create_task(write(other, 100 * round_, 100 * round_ + 100))
            await until(lambda: len(watcher.known) > 100 * round_ + 20)  # noqa: B023 - called in this round only
            proxy.cut()
            await writing
            proxy.mend()
        await until(lambda: watcher.known == expected(1000))
        assert watcher.resets == 1
        assert watcher.revisions == sorted(set(watcher.revisions))


async def test_a_watch_without_connection_does_not_spin(etcd: Etcd, etcd_prefix: str) -> None:
    async with proxied(etcd.address) as proxy, connected(proxy.address, etcd_prefix) as store, watching(store):
        proxy.cut()
        before, since = proxy.connections, time.monotonic()
        # The watch tries 5 to 7 times in the first two seconds, and gRPC twice a second for the calls.
        await until(lambda: time.monotonic() - since > 2 and proxy.connections - before >= 5)
        assert proxy.connections - before <= 7.5 * (time.monotonic() - since)


async def test_a_silent_connection_is_replaced(etcd: Etcd, etcd_prefix: str) -> None:
    async with (
        proxied(etcd.address) as proxy,
        connected(proxy.address, etcd_prefix, silence_s=SILENCE_S) as store,
        connected(etcd.address, etcd_prefix) as other,
        watching(store) as watcher,
    ):
        await write(other, 0, 10)
        await until(lambda: len(watcher.known) == 10)
        lease = await store.lease(LONG_TTL_S)
        await until(lambda: proxy.connections >= 3)  # calls, watch, lease: each has its own
        written, frozen = 10, time.monotonic()
        for stopwatch in tries_within(4 * SILENCE_S + 1):
            proxy.freeze()
            with stopwatch:
                await write(other, written, written + 10)
                written += 10
                await until(lambda: watcher.known == expected(written))  # noqa: B023 - in this round only
        assert watcher.resets == 1
        await until(lambda: time.monotonic() - frozen > LONG_TTL_S)
        assert lease.alive, "its keep-alives use a new connection, too"


async def test_an_idle_watch_keeps_its_healthy_connection(etcd: Etcd, etcd_prefix: str) -> None:
    progress_requests, silence_s = 3, 0.5  # within which etcd has to answer

    async def keeps_its_connection() -> bool:
        async with proxied(etcd.address) as proxy, connected(proxy.address, etcd_prefix, silence_s=silence_s) as store:
            async with watching(store) as watcher:
                await until(lambda: proxy.connections >= 2)
                since = time.monotonic()
                await until(lambda: time.monotonic() - since > progress_requests * 2 * silence_s)
                await store.put("/jobs/0000", "0")
                await until(lambda: watcher.known == expected(1))
            return proxy.connections == 2

    # A stall of the machine for half a second is such a silence, too; a fault replaces the connection every time.
    await until(keeps_its_connection)


# --- etcd hangs ----------------------------------------------------------------


async def lease_and_time(store: EtcdStatusStore) -> tuple[Lease, float]:
    """A lease, and when it was requested, on the monotonic clock."""
    requested = time.monotonic()
    return await store.lease(TTL_S), requested


async def test_a_lease_is_lost_at_its_deadline_while_etcd_hangs(own_etcd: Etcd) -> None:
    own_etcd.start()
    await own_etcd.ready()
    async with connected(own_etcd.address, timeout_s=0.5) as store:
        for stopwatch in tries_within(TTL_S + 1):  # one keep-alive may be answered before it hangs
            with stopwatch:
                lease, began = await again(lambda: lease_and_time(store))  # half a second is short when it was paused
                own_etcd.pause()
                try:
                    with pytest.raises(Unavailable):
                        await store.get("/members/a")
                    assert lease.alive or time.monotonic() - began >= TTL_S
                    await asyncio.wait_for(lease.lost(), HANG_S)
                    assert not lease.alive
                    await lease.revoke()
                finally:
                    own_etcd.resume()


async def test_a_lease_survives_a_restart_of_etcd_within_its_ttl(own_etcd: Etcd) -> None:
    own_etcd.start()
    await own_etcd.ready()
    async with connected(own_etcd.address) as store:
        lease = await store.lease(60)
        await store.put("/members/a", "1", lease=lease)
        own_etcd.kill()
        own_etcd.start()
        await own_etcd.ready()
        assert lease.alive
        assert await again(lambda: store.get("/members/a")) is not None


async def test_a_lease_is_lost_after_the_machine_slept_past_its_deadline(etcd: Etcd, etcd_prefix: str) -> None:
    now = 100.0
    clock: Callable[[], float] = lambda: now  # noqa: E731
    store = EtcdStatusStore(etcd.address, prefix=etcd_prefix, clock=clock, timeout_s=HANG_S)
    lease = await store.lease(TTL_S)
    assert lease.alive
    now += TTL_S + 1
    assert not lease.alive
    await asyncio.wait_for(lease.lost(), HANG_S)
    await store.close()


async def test_every_call_raises_unavailable_without_etcd() -> None:
    async with connected(f"127.0.0.1:{free_port()}") as store:
        for call in (
            store.ping(),
            store.get("/a"),
            store.list("/a"),
            store.put("/a", ""),
            store.put_if("/a", "", mod_revision=0),
            store.put_while("/a", "", guard_key="/b", guard_value="", mod_revision=0),
            store.delete("/a"),
            store.delete_prefix("/a"),
            store.lease(TTL_S),
            store.revoke_id(1),
        ):
            with pytest.raises(Unavailable, match="does not answer"):
                await call


# --- users -------------------------------------------------------------------


async def test_a_token_that_etcd_lost_is_renewed(own_etcd: Etcd) -> None:
    own_etcd.start()
    await own_etcd.ready()
    admin = Connection(own_etcd.address, credentials=Credentials(), timeout_s=HANG_S)
    await admin.call(admin.auth.UserAdd, rpc_pb2.AuthUserAddRequest(name="root", password="right"))
    await admin.call(admin.auth.RoleAdd, rpc_pb2.AuthRoleAddRequest(name="root"))
    await admin.call(admin.auth.UserGrantRole, rpc_pb2.AuthUserGrantRoleRequest(user="root", role="root"))
    await admin.call(admin.auth.AuthEnable, rpc_pb2.AuthEnableRequest())
    await admin.close()
    for user, password in (("", ""), ("root", "wrong"), ("nobody", "right")):
        stranger = EtcdStatusStore(
            own_etcd.address, credentials=Credentials(user=user, password=password), timeout_s=HANG_S
        )
        with pytest.raises(Unauthenticated):
            await stranger.put("/a", "1")
        await stranger.close()
    store = EtcdStatusStore(own_etcd.address, credentials=Credentials(user="root", password="right"), timeout_s=HANG_S)
    async with watching(store) as watcher:
        lease = await store.lease(60)
        await write(store, 0, 5)
        await until(lambda: watcher.known == expected(5))
        own_etcd.kill()  # its tokens are in memory only
        own_etcd.start()
        await own_etcd.ready()
        await asyncio.gather(*(again(partial(store.put, f"/jobs/{n:04}", str(n))) for n in range(5, 10)))
        await until(lambda: watcher.known == expected(10))
        assert watcher.resets == 1
        assert lease.alive
        await store.put("/members/a", "1", lease=lease)
        await lease.revoke()
        assert await store.get("/members/a") is None
    await store.close()


# --- another program writes to etcd --------------------------------------------


async def write_bytes(address: str, key: bytes, value: bytes) -> None:
    connection = Connection(address, credentials=Credentials(), timeout_s=HANG_S)
    await connection.call(connection.kv.Put, rpc_pb2.PutRequest(key=key, value=value))
    await connection.close()


async def test_a_key_that_is_not_utf_8_is_malformed_and_the_others_are_not(etcd: Etcd, etcd_prefix: str) -> None:
    async with connected(etcd.address, etcd_prefix) as store, watching(store) as watcher:
        await write_bytes(etcd.address, f"{etcd_prefix}/jobs/j1/learners/".encode() + b"\xff\x00\xc3", b"{}")
        await store.put("/jobs/0000", "0")
        bad = "/jobs/j1/learners/\\xff\x00\\xc3"
        await until(lambda: watcher.known == {bad: "{}", "/jobs/0000": "0"})
        listed = {entry.key: entry.malformed for entry in await store.list("/jobs/")}
        assert listed == {bad: "the key is not UTF-8", "/jobs/0000": ""}
        assert await store.delete_prefix("/jobs/j1/") == 1
        await until(lambda: watcher.known == expected(1))


async def test_values_larger_than_a_message_stop_neither_a_list_nor_a_watch(etcd: Etcd, etcd_prefix: str) -> None:
    limit = 3 * 2**20
    async with (
        proxied(etcd.address) as proxy,
        connected(proxy.address, etcd_prefix, max_message=limit) as store,
        connected(etcd.address, etcd_prefix) as other,
        watching(store) as watcher,
    ):
        proxy.cut()
        for number in range(6):  # the watch catches up on them in one message
            await write_bytes(etcd.address, f"{etcd_prefix}/jobs/large-{number}".encode(), b"x" * 2**20)
        await write(other, 0, 10)
        proxy.mend()
        large = {f"/jobs/large-{number}": "" for number in range(6)}
        await until(lambda: watcher.known == expected(10) | large)
        assert len(await again(lambda: store.list("/jobs/"))) == 16
        await write(other, 10, 20)
        await until(lambda: watcher.known == expected(20) | large)
