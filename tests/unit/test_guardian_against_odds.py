"""What the simulation of seeds brought to light: clocks that are wrong, machines that go while a gang is being made."""

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
from services.lcm.scheduling import fifo
from services.lcm.scheduling.placement import all_free, gang_of
from tests.documents import NOW, a_job, at_status
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane, VirtualClock

pytestmark = pytest.mark.looptime(noop_cycles=0)
HOUR_MS = 3_600_000


class WrongClock(VirtualClock):
    """A wall clock that is wrong; boot time is what it is."""

    wrong_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.wrong_ms


async def test_results_are_waited_for_although_the_wall_clock_jumps_an_hour_ahead(plane: ControlPlane) -> None:
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


def test_a_retry_does_not_wait_an_hour_because_a_clock_was_wrong_by_one() -> None:
    far, near = NOW + HOUR_MS, NOW + 1_000
    jobs = [
        at_status(replace(a_job(), not_before=begun + 2_000), Status.PENDING, Status.QUEUED, now=begun)
        for begun in (far, near)
    ]
    machine = all_free([Node(name="local", cpus=16, memory=64 * 10**9, gpus=4)])
    queue = [fifo.Waiter.of(job, gang_of(parse_spec(job.spec), SIZES)) for job in jobs]
    first, second = fifo.decide(queue, free=machine, capacity=machine, now=NOW)
    assert first.placement is not None
    assert second.pending_reason == "BackOff"


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_gang_whose_machine_goes_while_it_is_made_is_made_anew(plane: ControlPlane, lost: int) -> None:
    await plane.start_lcm()
    await plane.start_pool()
    job_id = await plane.submit(learners=2, retries={"backoff": "100ms"})
    gone = asyncio.create_task(_lose(plane, job_id, lost))
    job = await plane.rested(job_id, within_s=20)
    assert await gone
    assert (job.status, job.attempt.number, job.counters.restarts) == (Status.COMPLETED, 2, 1)
    assert (await plane.path(job_id))[-len(WHOLE_LIFE) :] == WHOLE_LIFE


async def _lose(plane: ControlPlane, job_id: str, many: int) -> bool:
    """Once the first attempt is reserved, before any of it was let go."""
    gate = plane.cluster.hold("do")
    await plane.until(lambda job: job.guardian.holder != "", job_id)
    gate.set()
    while not plane.cluster.learners(job_id):  # noqa: ASYNC110 - at once, before the next step
        await asyncio.sleep(0)
    gate.clear()
    for learner in plane.cluster.learners(job_id)[:many]:
        plane.cluster.drop(learner)
    gate.set()
    return True


async def test_a_deleted_job_cannot_be_brought_back_by_a_resume_that_comes_too_late() -> None:
    job = removed(at_status(a_job(), Status.HALTED), now=NOW)
    for wish in Desired:
        with pytest.raises(NotFound):
            set_desired(job, wish, actor="user:ada", now=NOW)
