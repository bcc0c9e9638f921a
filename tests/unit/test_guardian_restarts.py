"""Learners that are started again alone, and gangs that go on without a lost learner: in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from services.core.domain.job import Job
from services.core.domain.status import Desired, Status
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane
from tests.testbed.memory.cluster import Blocked, MemoryLearner

pytestmark = pytest.mark.looptime(noop_cycles=0)
RETRIES = {"max": 2, "backoff": "1s"}


@pytest.fixture
async def plane(plane: ControlPlane) -> ControlPlane:
    await plane.start_lcm()
    return plane


def workers(on_failure: str = "restart", count: int = 2, **more: object) -> dict[str, object]:
    return {"worker": {"count": count, "on_failure": on_failure, **more}}


async def run_of(plane: ControlPlane, job_id: str, name: str, run: int, *, within_s: float = 60) -> MemoryLearner:
    """The learner, once its process runs in this run."""

    def runs(_: Job) -> bool:
        present = {learner.name: learner for learner in plane.cluster.learners(job_id)}
        return name in present and present[name].plan.run == run and present[name].state == "running"

    await plane.until(runs, job_id, within_s=within_s)
    return plane.cluster.learner(job_id, name)


async def test_a_failed_learner_is_started_again_alone_and_the_others_run_on(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers(), retries=RETRIES)
    plane.helpers.fate(job_id, run_s=20)
    plane.helpers.fate_of_run(job_id, 1, name="worker-1", run_s=2, code=3)
    await plane.running(job_id)
    other = plane.cluster.learner(job_id, "worker-0")
    await run_of(plane, job_id, "worker-1", 2, within_s=10)
    job = await plane.job(job_id)
    assert (job.status, job.attempt.number, job.counters.retries) == (Status.PROCESSING, 1, 1)
    assert "worker-1 alone is started again (retry 1 of 2)" in job.state.message
    assert (job.state.reason, job.attempt.reruns["worker-1"].reason) == ("ExitCode", "ExitCode")
    assert plane.cluster.learner(job_id, "worker-0") is other
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number, job.state.message) == (Status.COMPLETED, 1, "")
    assert await plane.path(job_id) == WHOLE_LIFE
    assert plane.starts.count((job_id, 1, "worker-0")) == 1
    assert plane.starts.count((job_id, 1, "worker-1")) == 2
    assert await plane.leftovers() == []


async def test_results_of_the_failed_run_are_stored_before_the_next_one_begins(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers(count=1), retries=RETRIES)
    plane.helpers.fate(job_id, run_s=5)
    plane.helpers.fate_of_run(job_id, 1, name="worker-0", run_s=1, code=1, store_s=7)
    await run_of(plane, job_id, "worker-0", 2)
    assert plane.helpers.stored == [(job_id, 1, "worker-0")]
    assert (await plane.job(job_id)).status is Status.PROCESSING
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_own_failures_use_up_the_retries_and_then_the_job_fails(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers(), retries=RETRIES)
    plane.helpers.fate(job_id, run_s=60)
    for run in (1, 2, 3):
        plane.helpers.fate_of_run(job_id, run, name="worker-0", run_s=1, code=7)
    job = await plane.rested(job_id)
    assert (job.status, job.state.reason, job.counters.retries, job.attempt.number) == (Status.FAILED, "ExitCode", 2, 1)
    assert job.verdict is not None
    assert (job.verdict.learner, job.verdict.exit_code) == ("worker-0", 7)
    assert plane.starts.count((job_id, 1, "worker-0")) == 3


async def test_an_exit_code_that_is_not_to_be_retried_fails_the_job(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers(), retries={**RETRIES, "on": ["exit:9"]})
    plane.helpers.fate(job_id, run_s=60)
    plane.helpers.fate_of_run(job_id, 1, name="worker-0", run_s=1, code=7)
    assert (await plane.rested(job_id)).status is Status.FAILED


async def test_a_lost_learner_is_started_again_without_using_a_retry(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers(), retries={"max": 0})
    plane.helpers.fate(job_id, run_s=10)
    plane.helpers.fate_of_run(job_id, 1, name="worker-1", run_s=1, lost=True)
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number, job.counters.retries) == (Status.COMPLETED, 1, 0)
    assert job.attempt.run_of("worker-1") == 2


async def test_a_learner_that_vanished_is_started_again(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers(), retries={"max": 0})
    plane.helpers.fate(job_id, run_s=10)
    await plane.running(job_id)
    plane.cluster.drop(plane.cluster.learner(job_id, "worker-1"))
    await run_of(plane, job_id, "worker-1", 2, within_s=10)
    plane.cluster.drop(plane.cluster.learner(job_id, "worker-1"))
    await run_of(plane, job_id, "worker-1", 3, within_s=10)
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)


async def test_survivors_go_on_without_a_lost_machine_and_the_lost_learner_rejoins(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers("restart-gang", count=3, min=2), retries={"max": 0})
    plane.helpers.fate(job_id, run_s=30)
    await plane.running(job_id)
    lost = plane.cluster.learner(job_id, "worker-2")
    lost.reason = "NodeLost"
    lost.end(lost=True)
    await asyncio.sleep(10)
    job = await plane.job(job_id)
    assert (job.status, job.attempt.number, dict(job.attempt.reruns)) == (Status.PROCESSING, 1, {})
    plane.cluster.drop(lost)  # its machine is back, and has ended it
    await run_of(plane, job_id, "worker-2", 2, within_s=10)
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)


async def test_fewer_survivors_than_min_are_a_new_attempt_without_using_a_retry(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers("restart-gang", count=3, min=2), retries={"max": 0})
    plane.helpers.fate(job_id, run_s=5)
    await plane.running(job_id)
    for name in ("worker-1", "worker-2"):
        learner = plane.cluster.learner(job_id, name)
        learner.reason = "NodeLost"
        learner.end(lost=True)
    job = await plane.until(lambda job: job.attempt.number == 2, job_id)
    assert (job.counters.retries, job.counters.restarts) == (0, 1)
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_a_job_completes_with_min_successes_if_the_others_are_lost(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers("restart-gang", count=3, min=2), retries={"max": 0})
    plane.helpers.fate(job_id, run_s=5)
    await plane.running(job_id)
    lost = plane.cluster.learner(job_id, "worker-2")
    lost.reason = "NodeLost"
    lost.end(lost=True)
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)


async def test_a_lost_machine_without_min_is_a_new_attempt_at_once(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers("restart"), retries={"max": 0})
    plane.helpers.fate(job_id, run_s=5)
    await plane.running(job_id)
    lost = plane.cluster.learner(job_id, "worker-1")
    lost.reason, lost.message = "NodeLost", "the cluster does not reach the node n1 any more"
    lost.end(lost=True)
    job = await plane.until(lambda job: job.attempt.number == 2, job_id, within_s=10)
    assert job.counters.retries == 0
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_ignored_failures_beyond_min_end_the_attempt(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers("ignore", count=3, min=2), retries={"max": 0})
    plane.helpers.fate(job_id, run_s=60)
    plane.helpers.fate_of_run(job_id, 1, name="worker-0", run_s=1, code=1)
    await plane.running(job_id)
    await asyncio.sleep(5)
    assert (await plane.job(job_id)).status is Status.PROCESSING
    plane.cluster.learner(job_id, "worker-1").end(4)
    job = await plane.rested(job_id)
    assert (job.status, job.state.reason) == (Status.FAILED, "ExitCode")


async def test_a_failed_gang_member_still_restarts_the_gang(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers("restart-gang", count=3, min=1), retries={"max": 1})
    plane.helpers.fate(job_id, run_s=5)
    plane.helpers.fate(job_id, name="worker-0", attempt=1, run_s=1, code=1)
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number, job.counters.retries) == (Status.COMPLETED, 2, 1)


async def test_another_guardian_carries_out_the_restart_that_was_decided(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    job_id = await plane.submit(roles=workers(), retries={"max": 2, "backoff": "8s"})
    plane.helpers.fate(job_id, run_s=40)
    plane.helpers.fate_of_run(job_id, 1, name="worker-1", run_s=1, code=3)
    await plane.until(lambda job: "worker-1" in job.attempt.reruns, job_id)
    await plane.kill(pool)
    await plane.start_pool(place="two")
    await run_of(plane, job_id, "worker-1", 2, within_s=20)
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number, job.counters.retries) == (Status.COMPLETED, 1, 1)
    assert plane.starts.count((job_id, 1, "worker-1")) == 2


async def test_a_restart_waits_for_a_cluster_that_is_away(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers(), retries=RETRIES)
    plane.helpers.fate(job_id, run_s=40)
    plane.helpers.fate_of_run(job_id, 1, name="worker-1", run_s=1, code=3)
    held = plane.cluster.hold("do")
    held.set()
    await plane.running(job_id)
    held.clear()
    await plane.until(lambda job: "worker-1" in job.attempt.reruns, job_id)
    plane.cluster.go_away()
    held.set()
    await asyncio.sleep(10)
    plane.cluster.come_back()
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_a_learner_that_cannot_be_started_again_ends_the_attempt(plane: ControlPlane) -> None:
    await plane.start_pool(provision_timeout_s=20)
    job_id = await plane.submit(roles=workers(), retries=RETRIES)
    plane.helpers.fate(job_id, run_s=10)
    plane.helpers.fate_of_run(job_id, 1, name="worker-1", run_s=1, code=3)
    plane.helpers.fate(job_id, name="worker-0", attempt=1, run_s=None)
    await plane.until(lambda job: "worker-1" in job.attempt.reruns, job_id)
    plane.cluster.blocked["worker-1", 1] = Blocked("Unschedulable", "0/1 nodes are available")
    job = await plane.until(lambda job: job.attempt.number == 2, job_id, within_s=60)
    assert job.counters.retries == 1
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_a_job_whose_attempt_is_gone_from_the_cluster_gets_a_new_attempt(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers(count=1), retries={"max": 0})
    plane.helpers.fate(job_id, run_s=5)
    await plane.running(job_id)
    plane.cluster.drop(plane.cluster.learner(job_id, "worker-0"))
    job = await plane.until(lambda job: job.attempt.number == 2, job_id, within_s=30)
    assert job.counters.retries == 0
    assert (await plane.rested(job_id)).status is Status.COMPLETED


@pytest.mark.parametrize("desired", [Desired.HALT, Desired.KILL])
async def test_a_job_that_is_to_end_starts_no_learner_again(plane: ControlPlane, desired: Desired) -> None:
    await plane.start_pool()
    job_id = await plane.submit(roles=workers(), retries={"max": 2, "backoff": "5s"})
    plane.helpers.fate(job_id, run_s=60)
    plane.helpers.fate_of_run(job_id, 1, name="worker-1", run_s=1, code=3)
    await plane.until(lambda job: "worker-1" in job.attempt.reruns, job_id)
    await plane.set_desired(job_id, desired)
    job = await plane.rested(job_id)
    assert job.status is {Desired.HALT: Status.HALTED, Desired.KILL: Status.KILLED}[desired]
    assert plane.starts.count((job_id, 1, "worker-1")) == 1
    assert await plane.leftovers() == []
