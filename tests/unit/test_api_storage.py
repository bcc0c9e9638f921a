"""What a tenant has stored is shown by kind, cheaply and honestly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.api.storage import Storage, StorageBound
from services.core.adapters.folder.objects import FolderObjectStore
from services.core.adapters.system_clock import SystemClock
from services.core.domain.errors import NoSpace, Unavailable
from tests.testbed.memory.records import MemoryRecordStore
from tests.testbed.tripwire import Tripwire
from tests.waiting import until


class LateClock(SystemClock):
    """A clock that a test sets forward."""

    late_s = 0.0

    def boottime(self) -> float:
        return super().boottime() + self.late_s


@pytest.fixture
async def objects(tmp_path: Path) -> FolderObjectStore:
    store = FolderObjectStore.make(tmp_path)
    for key, size in {
        "tenants/acme/code/aa": 5,
        "tenants/acme/jobs/j1/attempts/1/results/worker-0/model": 7,
        "tenants/acme/jobs/j1/attempts/2/results/worker-0/model": 11,
        "tenants/acme/jobs/j1/attempts/1/logs/learner-1/training-log.txt": 13,
        "tenants/acme/jobs/j2/attempts/1/checkpoints/0/x": 17,
        "tenants/acme/jobs/j2/attempts/1/strange": 19,
        "tenants/acme-2/code/aa": 1_000,
    }.items():
        await put(store, key, size)
    return store


async def put(store: FolderObjectStore, key: str, size: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * size

    await store.put(key, chunks())


async def test_a_tenants_bytes_are_shown_by_kind_and_without_other_tenants(objects: FolderObjectStore) -> None:
    usage = await Storage(objects, SystemClock()).of("acme")
    assert usage.size == {"code": 5, "results": 18, "logs": 13, "checkpoints": 17, "other": 19}
    assert (usage.objects, usage.complete) == (6, True)
    assert (await Storage(objects, SystemClock()).of("nobody")).size == {}


async def test_requests_share_a_measurement_for_a_minute(objects: FolderObjectStore) -> None:
    wire, clock = Tripwire(), LateClock()
    storage = Storage(wire.wrap(objects, "objects"), clock)
    await asyncio.gather(*[storage.of("acme") for _ in range(10)])
    assert wire.calls == ["objects.list"]
    await put(objects, "tenants/acme/code/bb", 100)
    clock.late_s = 59
    assert (await storage.of("acme")).objects == 6
    clock.late_s = 61
    assert (await storage.of("acme")).objects == 7


async def test_a_measurement_that_takes_too_long_says_so(
    objects: FolderObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.api.storage._PAGE", 2)
    clock = LateClock()

    async def later() -> None:
        clock.late_s += 11

    storage = Storage(Tripwire(at=0, what="act", act=later).wrap(objects, "objects"), clock)
    usage = await storage.of("acme")
    assert (usage.objects, usage.complete) == (2, False)


async def test_a_failed_measurement_is_tried_again_at_the_next_request(objects: FolderObjectStore) -> None:
    storage = Storage(Tripwire(at=0, what="cut").wrap(objects, "objects"), SystemClock())
    with pytest.raises(Unavailable):
        await storage.of("acme")
    assert (await storage.of("acme")).complete


async def test_a_client_that_leaves_does_not_end_the_measurement_of_others(objects: FolderObjectStore) -> None:
    wire = Tripwire(at=0, what="pause")
    storage = Storage(wire.wrap(objects, "objects"), SystemClock())
    leaving, staying = asyncio.create_task(storage.of("acme")), asyncio.create_task(storage.of("acme"))
    await wire.tripped.wait()
    leaving.cancel()
    await asyncio.wait({leaving})
    wire.resume()
    assert (await staying).objects == 6


@pytest.mark.parametrize(("at", "name"), [(1, "a"), (0, "b")], ids=["behind what is listed", "before it"])
async def test_code_that_is_stored_while_the_tenants_bytes_are_counted_is_counted_once(
    objects: FolderObjectStore, monkeypatch: pytest.MonkeyPatch, at: int, name: str
) -> None:
    """It was not: of a tenant with many objects the bound could be exceeded by all that came during each count."""
    monkeypatch.setattr("services.api.storage._PAGE", 2)

    clock = SystemClock()

    async def store_code() -> None:
        began = clock.now_ms()
        await until(lambda: clock.now_ms() > began + 1)
        await put(objects, f"tenants/acme/code/{name}", 1_000)
        await bound.add("acme", 1_000)

    wire = Tripwire(at=at, what="act", act=store_code)
    bound = StorageBound(wire.wrap(objects, "objects"), MemoryRecordStore(), clock, most_bytes=1_050, count_s=3600)
    await bound.check("acme")
    await bound.counted()
    with pytest.raises(NoSpace, match="stores 1072 bytes"):
        await bound.check("acme")
    await bound.close()
