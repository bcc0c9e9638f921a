"""Cases that simulated seeds have found: wrong clocks, machines that are lost during provisioning."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from services.core.domain.errors import NotFound
from services.core.domain.job import removed, set_desired
from services.core.domain.sizes import SIZES
from services.core.domain.spec import parse_spec
from services.core.domain.status import Desired, Status
from services.core.ports.cluster import Node
from services.lcm.scheduling.fifo import decide
from services.lcm.scheduling.placement import all_free, gang_of
from services.lcm.scheduling.policy import Waiter
from tests.documents import NOW, a_job, at_status
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane, VirtualClock

pytestmark = pytest.mark.looptime(noop_cycles=0)
HOUR_MS = 3_600_000


class WrongClock(VirtualClock):
    """A wall clock that is wrong by ``wrong_ms``; the boot-time clock is right."""

    wrong_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.wrong_ms


async def test_results_are_stored_although_the_wall_clock_jumps_an_hour_ahead(plane: ControlPlane) -> None:
    clock = plane.clock = WrongClock()
    await plane.start_lcm()
    await plane.start_pool()
    job_id = await plane.submit(store_timeout="1m")
    plane.helpers.fate(job_id, run_s=1, store_s=8)
    await plane.until(lambda job: job.verdict is not None, job_id)
    clock.wrong_ms = HOUR_MS
    job = await plane.rested(job_id)
    assert job.status is Status.COMPLETED
    assert plane.helpers.stored == [(job_id, 1, "worker-0")]


async def test_a_job_is_provisioned_although_the_life_cycle_managers_clock_is_an_hour_behind(
    plane: ControlPlane,
) -> None:
    right, plane.clock = plane.clock, WrongClock()
    plane.clock.wrong_ms = -HOUR_MS
    await plane.start_lcm()
    plane.clock = right
    await plane.start_pool()
    job_id = await plane.submit()
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)


def test_a_clock_that_was_an_hour_ahead_does_not_delay_a_retry_by_an_hour() -> None:
    far, near = NOW + HOUR_MS, NOW + 1_000
    jobs = [
        at_status(replace(a_job(), not_before=begun + 2_000), Status.PENDING, Status.QUEUED, now=begun)
        for begun in (far, near)
    ]
    machine = all_free([Node(name="local", cpus=16, memory=64 * 10**9, gpus=4)])
    queue = [Waiter.of(job, gang_of(parse_spec(job.spec), SIZES)) for job in jobs]
    first, second = decide(queue, free=machine, capacity=machine, now=NOW)
    assert first.placement is not None
    assert second.pending_reason == "BackOff"


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_gang_that_loses_its_machine_during_provisioning_gets_a_new_attempt(
    plane: ControlPlane, lost: int
) -> None:
    await plane.start_lcm()
    await plane.start_pool()
    job_id = await plane.submit(learners=2, retries={"backoff": "100ms"})
    gone = asyncio.create_task(_lose(plane, job_id, lost))
    job = await plane.rested(job_id, within_s=20)
    assert await gone
    assert (job.status, job.attempt.number, job.counters.restarts) == (Status.COMPLETED, 2, 1)
    assert (await plane.path(job_id))[-len(WHOLE_LIFE) :] == WHOLE_LIFE


async def _lose(plane: ControlPlane, job_id: str, many: int) -> bool:
    """Loses learners of the first attempt after they were reserved and before they are activated."""
    do = plane.cluster.hold("do")
    await plane.until(lambda job: job.guardian.holder != "", job_id)
    do.set()
    while not plane.cluster.learners(job_id):  # noqa: ASYNC110 - before the next step
        await asyncio.sleep(0)
    do.clear()
    for learner in plane.cluster.learners(job_id)[:many]:
        plane.cluster.drop(learner)
    do.set()
    return True


async def test_a_deleted_job_cannot_be_resumed() -> None:
    job = removed(at_status(a_job(), Status.HALTED), actor="user:ada", now=NOW)
    for desired in Desired:
        with pytest.raises(NotFound):
            set_desired(job, desired, actor="user:ada", now=NOW)
