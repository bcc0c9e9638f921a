"""Membership: one lease per process, revoked by the next process, replaced when it is lost."""

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
    membership = Membership("guardian", status, clock, Settings(home=home))
    await membership.start()
    return membership


async def test_members_are_those_that_joined_and_have_not_left(status: MemoryStatusStore, tmp_path: Path) -> None:
    clock = VirtualClock()
    first, second = await joined(status, tmp_path / "a", clock), await joined(status, tmp_path / "b", clock)
    assert await members(status, "guardian") == {first.id, second.id}
    assert await members(status, "lcm") == frozenset()
    await first.leave()
    assert await members(status, "guardian") == {second.id}
    await second.leave()


async def test_a_restarted_process_revokes_its_predecessor_s_lease_at_once(
    status: MemoryStatusStore, tmp_path: Path
) -> None:
    clock = VirtualClock()
    dead, successor = await joined(status, tmp_path, clock), await joined(status, tmp_path, clock)
    assert await members(status, "guardian") == {successor.id}
    await dead.leave()
    await successor.leave()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"lease": "x"}', "{}", '{"lease": Infinity}', pytest.param("[" * 100_000, id="deep")]
)
async def test_an_unreadable_file_of_the_predecessor_s_lease_is_ignored(
    status: MemoryStatusStore, tmp_path: Path, text: str
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "guardian.lease.json").write_text(text)
    membership = await joined(status, tmp_path, VirtualClock())
    assert await members(status, "guardian") == {membership.id}
    await membership.leave()


async def test_a_member_that_lost_its_lease_joins_again_under_the_same_id(
    status: MemoryStatusStore, tmp_path: Path
) -> None:
    membership = await joined(status, tmp_path, VirtualClock())
    lost = membership.lease
    status.forget()
    await asyncio.sleep(1)
    assert await members(status, "guardian") == {membership.id}
    assert membership.lease is not None
    assert membership.lease.alive
    assert membership.lease is not lost
    await membership.leave()


async def test_a_member_joins_when_etcd_comes_back_and_logs_its_absence_once(
    status: MemoryStatusStore, tmp_path: Path
) -> None:
    status.go_away()
    with capture_logs() as logs:
        membership = await joined(status, tmp_path, VirtualClock())
        await asyncio.sleep(60)
        assert membership.lease is None
        status.come_back()
        await asyncio.sleep(1)
    assert await members(status, "guardian") == {membership.id}
    assert [line["event"] for line in logs] == ["member.join_failed", "member.joined"]
    await membership.leave()


async def test_a_lease_whose_key_could_not_be_written_is_revoked(status: MemoryStatusStore, tmp_path: Path) -> None:
    wire = Tripwire(at=("status.put", 1), what="cut")
    membership = Membership("guardian", wire.wrap(status, "status"), VirtualClock(), Settings(home=tmp_path))
    await membership.start()
    await asyncio.sleep(1)
    assert await members(status, "guardian") == {membership.id}
    assert len(status._leases) == 1
    await membership.leave()


async def test_a_member_joins_although_its_lease_file_cannot_be_written(
    status: MemoryStatusStore, tmp_path: Path
) -> None:
    (tmp_path / "run").write_text("not a folder")
    membership = await joined(status, tmp_path, VirtualClock())
    assert await members(status, "guardian") == {membership.id}
    await membership.leave()


async def test_a_membership_that_was_not_started_can_be_left(status: MemoryStatusStore, tmp_path: Path) -> None:
    await Membership("guardian", status, VirtualClock(), Settings(home=tmp_path)).leave()
