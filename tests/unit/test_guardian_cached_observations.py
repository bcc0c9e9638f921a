"""A Guardian observes a job that just trains without a read of the cluster, and decides on what it has read itself."""

from __future__ import annotations

import asyncio

import pytest

from services.core.domain.learner import Exit
from services.core.domain.status import Status
from services.guardian.observed_state import EMPTY
from tests.testbed.control_plane import ControlPlane

pytestmark = pytest.mark.looptime(noop_cycles=0)


@pytest.fixture
async def plane(plane: ControlPlane) -> ControlPlane:
    await plane.start_lcm()
    await plane.start_pool()
    return plane


@pytest.mark.slow
async def test_a_job_that_just_trains_is_not_read_from_the_cluster(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, run_s=600)
    await plane.running(job_id)
    await asyncio.sleep(30)
    before = plane.cluster.reads
    await asyncio.sleep(500)
    assert plane.cluster.reads == before
    job = await plane.rested(job_id, within_s=100)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)


async def test_a_learner_that_a_cached_observation_does_not_show_is_not_lost(plane: ControlPlane) -> None:
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=None)
    await plane.running(job_id)
    await asyncio.sleep(30)
    for _ in range(3):
        plane.cluster.observations[job_id] = EMPTY
        await asyncio.sleep(20)
    job = await plane.job(job_id)
    assert (job.status, job.attempt.number, job.verdict) == (Status.PROCESSING, 1, None)


async def test_a_job_that_succeeds_just_before_its_deadline_completes_although_no_event_came(
    plane: ControlPlane,
) -> None:
    job_id = await plane.submit(max_runtime="1m")
    plane.helpers.fate(job_id, run_s=None)
    await plane.running(job_id)
    await asyncio.sleep(50)
    plane.cluster.learner(job_id).exit = Exit(time=plane.clock.now_ms(), code=0)
    job = await plane.until(lambda job: job.verdict is not None, job_id)
    assert job.verdict is not None
    assert job.verdict.to is Status.COMPLETED


async def test_a_loss_that_the_cluster_reports_is_decided_at_once(plane: ControlPlane) -> None:
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=None)
    await plane.running(job_id)
    await asyncio.sleep(100)
    plane.cluster.drop(plane.cluster.learner(job_id))
    await plane.until(lambda job: job.attempt.number == 2 or job.status is Status.QUEUED, job_id, within_s=1)
