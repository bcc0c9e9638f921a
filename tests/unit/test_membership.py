"""Who is alive: one lease per process, given back at once by a restart, taken anew when it is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.core.runtime.membership import Membership, members
from services.core.runtime.settings import Settings
from tests.testbed.control_plane import VirtualClock
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.testbed.tripwire import Tripwire

pytestmark = pytest.mark.looptime(noop_cycles=0)


@pytest.fixture
def status() -> MemoryStatusStore:
    return MemoryStatusStore(clock=lambda: asyncio.get_running_loop().time())


async def joined(status: MemoryStatusStore, home: Path, clock: VirtualClock) -> Membership:
    one = Membership("guardian", status, clock, Settings(home=home))
    await one.start()
    return one


async def test_who_joins_is_seen_and_who_leaves_is_not(status: MemoryStatusStore, tmp_path: Path) -> None:
    clock = VirtualClock()
    one, other = await joined(status, tmp_path / "a", clock), await joined(status, tmp_path / "b", clock)
    assert await members(status, "guardian") == {one.id, other.id}
    assert await members(status, "lcm") == frozenset()
    await one.leave()
    assert await members(status, "guardian") == {other.id}
    await other.leave()


async def test_a_restarted_process_ends_its_former_lease_at_once(status: MemoryStatusStore, tmp_path: Path) -> None:
    clock = VirtualClock()
    dead, successor = await joined(status, tmp_path, clock), await joined(status, tmp_path, clock)
    assert await members(status, "guardian") == {successor.id}
    await dead.leave()
    await successor.leave()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"lease": "x"}', "{}"])
async def test_a_former_lease_that_cannot_be_read_is_left_to_run_out(
    status: MemoryStatusStore, tmp_path: Path, text: str
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "guardian.lease.json").write_text(text)
    one = await joined(status, tmp_path, VirtualClock())
    assert await members(status, "guardian") == {one.id}
    await one.leave()


async def test_a_member_whose_lease_was_lost_joins_again_as_the_same(status: MemoryStatusStore, tmp_path: Path) -> None:
    one = await joined(status, tmp_path, VirtualClock())
    first = one.lease
    status.forget()
    await asyncio.sleep(1)
    assert await members(status, "guardian") == {one.id}
    assert one.lease is not None
    assert one.lease.alive
    assert one.lease is not first
    await one.leave()


async def test_an_etcd_that_is_away_is_waited_for_and_complained_about_once(
    status: MemoryStatusStore, tmp_path: Path
) -> None:
    status.go_away()
    with capture_logs() as logs:
        one = await joined(status, tmp_path, VirtualClock())
        await asyncio.sleep(60)
        assert one.lease is None
        status.come_back()
        await asyncio.sleep(1)
    assert await members(status, "guardian") == {one.id}
    assert [line["event"] for line in logs] == ["member.cannot_join", "member.joined"]
    await one.leave()


async def test_a_lease_without_its_key_is_not_kept(status: MemoryStatusStore, tmp_path: Path) -> None:
    wire = Tripwire(at=("status.put", 1), what="cut")
    one = Membership("guardian", wire.wrap(status, "status"), VirtualClock(), Settings(home=tmp_path))
    await one.start()
    await asyncio.sleep(1)
    assert await members(status, "guardian") == {one.id}
    assert len(status._leases) == 1
    await one.leave()


async def test_a_folder_that_cannot_be_written_costs_the_next_process_time_only(
    status: MemoryStatusStore, tmp_path: Path
) -> None:
    (tmp_path / "run").write_text("not a folder")
    one = await joined(status, tmp_path, VirtualClock())
    assert await members(status, "guardian") == {one.id}
    await one.leave()


async def test_who_never_started_may_leave(status: MemoryStatusStore, tmp_path: Path) -> None:
    await Membership("guardian", status, VirtualClock(), Settings(home=tmp_path)).leave()
