"""What a status store on etcd does when etcd, or the way to it, fails: nothing is lost, nothing is seen twice."""

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
from services.core.ports.status_store import Change
from tests.testbed.etcd import Etcd
from tests.testbed.go import SERVERS, GoBuilt
from tests.testbed.proxy import proxied
from tests.testbed.server import free_port
from tests.waiting import HANG_S, tries_within, until

T = TypeVar("T")
TTL_S = 2.0
LONG_TTL_S = 5.0
SILENCE_S = 0.3


@pytest.fixture(params=["installed", "3.6"])
def own_etcd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Etcd]:
    """One that the test may kill, not started yet: of the version that is installed, and of the newest."""
    if request.param == "3.6":
        go_built: GoBuilt = request.getfixturevalue("go_built")
        monkeypatch.setenv("ETCD_BIN", str(go_built("etcd", SERVERS / "etcd")))
        assert launcher.etcd_version(launcher.find_etcd())[:2] == (3, 6)
    server = Etcd(tmp_path)
    yield server
    server.kill()


@asynccontextmanager
async def connected(address: str, prefix: str = "/weft", **options: float) -> AsyncGenerator[EtcdStatusStore, None]:
    store = EtcdStatusStore(address, prefix=prefix, **options)  # type: ignore[arg-type]
    try:
        yield store
    finally:
        await store.close()


class Watcher:
    """Applies what it sees, as every reader of a watch does."""

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
    """As callers do it: an etcd that is back is found half a second later, at the next try to connect."""
    answers: list[T] = []

    async def answered() -> bool:
        with suppress(Unavailable):
            answers.append(await call())
        return bool(answers)

    await until(answered)
    return answers[0]


def expected(last: int) -> dict[str, str]:
    return {f"/jobs/{number:04}": str(number) for number in range(last)}


async def compact(address: str) -> None:
    """Forgets all history up to now."""
    connection = Connection(address, credentials=Credentials(), timeout_s=HANG_S)
    now = (await connection.call(connection.kv.Range, rpc_pb2.RangeRequest(key=b"x"))).header.revision
    await connection.call(connection.kv.Compact, rpc_pb2.CompactionRequest(revision=now))
    await connection.close()


# --- etcd dies -----------------------------------------------------------------


async def test_a_watch_sees_each_change_once_over_kills_of_etcd(own_etcd: Etcd) -> None:
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


async def test_a_wiped_etcd_makes_watchers_forget_what_is_gone(own_etcd: Etcd) -> None:
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
    ids=["it is another cluster that has got further", "it is the same cluster whose revision fell"],
)
async def test_a_wiped_etcd_is_known_by(own_etcd: Etcd, cluster: str, written: int) -> None:
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


async def test_a_watcher_whose_history_was_compacted_lists_again(etcd: Etcd, etcd_prefix: str) -> None:
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


# --- the way to it fails -------------------------------------------------------


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


async def test_a_watch_that_cannot_connect_does_not_spin(etcd: Etcd, etcd_prefix: str) -> None:
    async with proxied(etcd.address) as proxy, connected(proxy.address, etcd_prefix) as store, watching(store):
        proxy.cut()
        before, since = proxy.connections, time.monotonic()
        # The watch tries 5 to 7 times in the first two seconds, and gRPC twice a second for the calls.
        await until(lambda: time.monotonic() - since > 2 and proxy.connections - before >= 5)
        assert proxy.connections - before <= 7.5 * (time.monotonic() - since)


async def test_a_connection_that_went_silent_is_noticed_and_replaced(etcd: Etcd, etcd_prefix: str) -> None:
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
        assert lease.alive, "its keep-alives have found a new connection, too"


async def test_a_silent_watch_on_a_healthy_connection_stays(etcd: Etcd, etcd_prefix: str) -> None:
    asked, silence_s = 3, 0.5  # within which etcd has to answer
    async with proxied(etcd.address) as proxy, connected(proxy.address, etcd_prefix, silence_s=silence_s) as store:
        async with watching(store) as watcher:
            await until(lambda: proxy.connections == 2)
            since = time.monotonic()
            await until(lambda: time.monotonic() - since > asked * 2 * silence_s)
            await store.put("/jobs/0000", "0")
            await until(lambda: watcher.known == expected(1))
        assert proxy.connections == 2


# --- etcd hangs ----------------------------------------------------------------


async def test_a_lease_is_lost_by_its_own_deadline_while_etcd_hangs(own_etcd: Etcd) -> None:
    own_etcd.start()
    await own_etcd.ready()
    async with connected(own_etcd.address, timeout_s=0.5) as store:
        still = False
        for stopwatch in tries_within(TTL_S + 1):  # one keep-alive may be answered before it hangs
            with stopwatch:
                lease = await store.lease(TTL_S)
                own_etcd.pause()
                try:
                    with pytest.raises(Unavailable):
                        await store.get("/members/a")
                    still = lease.alive
                    await asyncio.wait_for(lease.lost(), HANG_S)
                    assert not lease.alive
                    await lease.revoke()
                finally:
                    own_etcd.resume()
        assert still


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


async def test_a_clock_that_jumped_with_a_sleeping_machine_ends_the_lease(etcd: Etcd, etcd_prefix: str) -> None:
    now = 100.0
    clock: Callable[[], float] = lambda: now  # noqa: E731
    store = EtcdStatusStore(etcd.address, prefix=etcd_prefix, clock=clock)
    lease = await store.lease(TTL_S)
    assert lease.alive
    now += TTL_S + 1
    assert not lease.alive
    await asyncio.wait_for(lease.lost(), HANG_S)
    await store.close()


async def test_without_an_etcd_every_call_says_so() -> None:
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


# --- who may -------------------------------------------------------------------


async def test_a_user_whose_token_etcd_forgot_asks_for_another(own_etcd: Etcd) -> None:
    own_etcd.start()
    await own_etcd.ready()
    admin = Connection(own_etcd.address, credentials=Credentials(), timeout_s=HANG_S)
    await admin.call(admin.auth.UserAdd, rpc_pb2.AuthUserAddRequest(name="root", password="right"))
    await admin.call(admin.auth.RoleAdd, rpc_pb2.AuthRoleAddRequest(name="root"))
    await admin.call(admin.auth.UserGrantRole, rpc_pb2.AuthUserGrantRoleRequest(user="root", role="root"))
    await admin.call(admin.auth.AuthEnable, rpc_pb2.AuthEnableRequest())
    await admin.close()
    for user, password in (("", ""), ("root", "wrong"), ("nobody", "right")):
        stranger = EtcdStatusStore(own_etcd.address, credentials=Credentials(user=user, password=password))
        with pytest.raises(Unauthenticated):
            await stranger.put("/a", "1")
        await stranger.close()
    store = EtcdStatusStore(own_etcd.address, credentials=Credentials(user="root", password="right"))
    async with watching(store) as watcher:
        lease = await store.lease(60)
        await write(store, 0, 5)
        await until(lambda: watcher.known == expected(5))
        own_etcd.kill()  # its tokens are in its memory only
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
