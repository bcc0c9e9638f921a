"""A value in etcd that contradicts the cluster's own record of an exit has no effect, and is counted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from services.core.domain.codec import dump
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.status import Phase, Status
from services.core.domain.status_keys import learner_key
from services.core.ports.cluster import LearnerProcess, Observation
from services.guardian import observed_state
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane, Process

pytestmark = pytest.mark.looptime(noop_cycles=0)
RANKS = {"worker-0": 0}
RUNNING = LearnerProcess(name="worker-0", attempt=1, state="running", run=1, pid=1, started=3)


def forged(now: int = 5, **fields: object) -> LearnerStatus:
    """A report of a success, later than all that the helper will ever send."""
    status = LearnerStatus(
        name="worker-0",
        role="worker",
        rank=0,
        attempt=1,
        seq=10**9,
        phase=Phase.STORED,
        times={phase.value: now for phase in Phase},
        exit=Exit(time=now, code=0),
    )
    return replace(status, **fields)  # type: ignore[arg-type]


async def put(plane: ControlPlane, job_id: str, status: LearnerStatus) -> None:
    await plane.status.put(learner_key(job_id, status.name), json.dumps(dump(status)))


def contradicted(process: Process) -> float:
    return process.service._instrumentation.contradicted._value.get()  # type: ignore[no-any-return]


async def test_forged_exit_in_etcd_does_not_end_a_running_job(plane: ControlPlane) -> None:
    await plane.start_lcm()
    pool = await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=30)
    await plane.running(job_id)
    await put(plane, job_id, forged())
    await plane.until(lambda _: contradicted(pool) == 1, job_id)
    job = await plane.until(lambda _: plane.cluster.learner(job_id).exit is not None, job_id)
    assert (job.status, job.verdict) == (Status.PROCESSING, None)
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)
    assert await plane.path(job_id) == WHOLE_LIFE
    assert plane.helpers.stored == [(job_id, 1, "worker-0")]
    assert contradicted(pool) == 1


async def test_forged_success_does_not_change_a_recorded_exit_code(plane: ControlPlane) -> None:
    await plane.start_lcm()
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=2, code=3)
    await plane.running(job_id)
    await put(plane, job_id, forged())
    job = await plane.rested(job_id)
    assert job.verdict is not None
    assert (job.status, job.verdict.reason, job.verdict.exit_code) == (Status.FAILED, "ExitCode", 3)


async def test_forged_report_of_storing_does_not_cost_the_results(plane: ControlPlane) -> None:
    await plane.start_lcm()
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=2, store_s=20)
    await plane.reached(job_id, Status.STORING)
    await put(plane, job_id, forged())
    job = await plane.rested(job_id)
    assert job.status is Status.COMPLETED
    assert plane.helpers.stored == [(job_id, 1, "worker-0")]


async def test_forged_failure_of_a_helper_does_not_fail_a_running_job(plane: ControlPlane) -> None:
    await plane.start_lcm()
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=10)
    await plane.running(job_id)
    await put(plane, job_id, forged(exit=None, reason="DataStoreDenied", message="forged"))
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)


def merged(report: LearnerStatus, process: LearnerProcess | None) -> LearnerStatus:
    observed = Observation(learners=[process] if process else [], attempts=[1])
    return observed_state.merge(RANKS, 1, {"worker-0": report}, observed)["worker-0"]


def test_a_forged_exit_of_a_learner_that_waits_leaves_it_waiting() -> None:
    learner = merged(forged(), LearnerProcess(name="worker-0", attempt=1, state="waiting"))
    assert (learner.phase, learner.exit) == (Phase.READY, None)
    assert set(learner.times) == {"WAITING", "DOWNLOADING", "READY"}


def test_a_forged_reason_does_not_replace_the_recorded_exit() -> None:
    record = replace(RUNNING, state="exited", exit=Exit(time=4, code=3))
    learner = merged(forged(reason="DataStoreDenied", message="forged"), record)
    assert (learner.exit, learner.reason, learner.message) == (record.exit, "", "")


def test_times_of_unknown_phases_in_a_forged_report_are_dropped() -> None:
    assert set(merged(forged(times={"NO": 1, "READY": 2}), RUNNING).times) == {"READY", "PROCESSING"}


@pytest.mark.parametrize(
    "process",
    [
        None,
        replace(RUNNING, readable=False),
        replace(RUNNING, state="exited", exit=Exit(time=4, lost=True)),
        replace(RUNNING, state="exited", exit=Exit(time=4, lost=True), readable=False),
    ],
    ids=["gone", "damaged", "lost", "damaged and lost"],
)
def test_where_the_cluster_has_no_record_of_an_exit_the_report_counts(process: LearnerProcess | None) -> None:
    report = forged()
    assert merged(report, process).exit == report.exit
    observed = Observation(learners=[process] if process else [], attempts=[1])
    assert observed_state.contradicted(1, {"worker-0": report}, observed) == []
