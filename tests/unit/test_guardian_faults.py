"""Faults of Guardians and of what they depend on: take-over, stale fences, loss of etcd's data, malformed documents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.core.domain.codec import dump
from services.core.domain.errors import Conflict, NoSpace, StaleFence
from services.core.domain.job import Verdict
from services.core.domain.learner import LearnerStatus
from services.core.domain.status import Desired, Phase, Status
from services.core.domain.status_keys import attempt_key, guardian_key
from services.core.use_cases.jobs import history
from services.guardian.claim import claim
from services.guardian.pool import Pool
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane
from tests.testbed.tripwire import Tripwire

pytestmark = pytest.mark.looptime(noop_cycles=0)
PENDING = ["QUEUED", "PENDING"]
RUNNING = WHOLE_LIFE[:4]
TTL_S = 3.0


@pytest.fixture
async def plane(plane: ControlPlane) -> ControlPlane:
    await plane.start_lcm()
    return plane


def untouched(plane: ControlPlane, job_id: str) -> bool:
    """True if its learners of the first attempt run, were started once, and were not stopped."""
    learners = plane.cluster.learners(job_id)
    return bool(learners) and all(
        (learner.attempt, learner.runs, learner.state, learner.stop_cause) == (1, 1, "running", "")
        for learner in learners
    )


# --- take-over ---------------------------------------------------------------------


async def test_a_restarted_process_claims_its_jobs_within_a_second_and_a_half(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, run_s=None)
    await plane.running(job_id)
    before = await plane.reached(job_id, Status.PROCESSING)
    await plane.kill(pool)
    await plane.start_pool()
    job = await plane.until(lambda job: job.guardian.holder != before.guardian.holder, job_id, within_s=1.5)
    assert job.guardian.term == before.guardian.term + 1
    await asyncio.sleep(20)
    assert untouched(plane, job_id)


async def test_another_process_takes_over_when_the_holder_was_killed(plane: ControlPlane) -> None:
    pool = await plane.start_pool(place="one")
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, run_s=6)
    before = await plane.running(job_id)
    await plane.start_pool(place="two")
    await plane.kill(pool)
    job = await plane.until(lambda job: job.guardian.holder != before.guardian.holder, job_id, within_s=TTL_S + 1)
    assert untouched(plane, job_id)
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)
    assert await plane.path(job_id) == WHOLE_LIFE


async def test_a_holder_that_lost_its_lease_leaves_the_job_to_its_successor(plane: ControlPlane) -> None:
    # It does not get its next lease at once, so the other process has time to claim the job.
    first = await plane.start_pool(Tripwire(at=("status.lease", 2), what="cut"), place="one")
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=30)
    before = await plane.running(job_id)
    second = await plane.start_pool(place="two")
    await asyncio.sleep(1)
    assert first.membership.lease is not None
    plane.status.pause(first.membership.lease.id)
    job = await plane.until(lambda job: job.guardian.holder != before.guardian.holder, job_id, within_s=TTL_S + 1)
    assert job.guardian.holder == second.membership.id
    await asyncio.sleep(2)
    # It has a new lease by now, and leaves the job to its new holder.
    assert first.membership.lease.alive
    assert untouched(plane, job_id)
    assert (await plane.job(job_id)).guardian == job.guardian
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_calls_of_a_superseded_guardian_are_refused_by_the_cluster(plane: ControlPlane) -> None:
    old = await plane.start_pool(place="one")
    plane.cluster.hold("observe").set()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=10)
    before = await plane.running(job_id)
    old_plan = plane.cluster.done[-1][1]
    await plane.kill(old)
    await plane.start_pool(place="two")
    await plane.until(lambda job: job.guardian.term > before.guardian.term, job_id)
    # A running job's new Guardian raises the cluster's fence only with its first effect.
    await plane.set_desired(job_id, Desired.HALT)
    await plane.until(lambda job: job.status is Status.HALTING, job_id)
    with pytest.raises(StaleFence):
        await plane.cluster.do("activate", old_plan)
    with pytest.raises(StaleFence):
        await plane.cluster.stop(job_id, attempt=1, term=1, generation=1, cause="kill", grace_ms=0)
    with pytest.raises(StaleFence):
        await plane.cluster.teardown(job_id, attempt=1, term=1)
    await plane.rested(job_id)


async def test_processes_share_the_work_up_to_their_limits(plane: ControlPlane) -> None:
    await plane.start_pool(place="one", max_guardians=1)
    await plane.start_pool(place="two", max_guardians=1)
    job_ids = [await plane.submit() for _ in range(2)]
    for job_id in job_ids:
        plane.helpers.fate(job_id, run_s=5)
    holders = {(await plane.running(job_id)).guardian.holder for job_id in job_ids}
    assert len(holders) == 2
    third = await plane.submit()
    await asyncio.sleep(3)
    assert (await plane.job(third)).guardian.holder == ""
    assert (await plane.rested(third)).status is Status.COMPLETED


async def test_learners_run_on_when_their_guardian_process_is_stopped(plane: ControlPlane) -> None:
    pool = await plane.start_pool(place="one")
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=5)
    await plane.running(job_id)
    await plane.stop(pool)
    assert untouched(plane, job_id)
    await plane.start_pool(place="two")
    assert (await plane.rested(job_id)).attempt.number == 1


async def test_a_long_outage_of_the_control_plane_rolls_nothing_back(plane: ControlPlane) -> None:
    wire = Tripwire(at=("cluster.do", 3), when="after")
    pool = await plane.start_pool(wire)
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, run_s=1000)
    await wire.dead.wait()
    await plane.kill(pool)
    await asyncio.sleep(700)
    assert not (await plane.job(job_id)).attempt.committed
    await plane.start_pool()
    job = await plane.until(lambda job: job.attempt.committed, job_id)
    assert (job.status, job.attempt.number) == (Status.PROCESSING, 1)
    assert untouched(plane, job_id)


async def test_half_provisioned_jobs_are_taken_over_first(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    running = await plane.submit()
    plane.helpers.fate(running, run_s=None)
    await plane.until(lambda job: job.attempt.committed, running)
    plane.cluster.hold("do")
    pending = await plane.submit()
    await plane.until(lambda job: job.guardian.holder != "", pending)
    await plane.kill(pool)
    with capture_logs() as logs:
        await plane.start_pool()
        await plane.until(lambda job: job.guardian.term == 2, running)
    claimed = [line["job"] for line in logs if line["event"] == "job.claimed"]
    assert claimed == [pending, running]
    plane.cluster.hold("do").set()


# --- the claim ---------------------------------------------------------------------


async def test_a_claim_that_fails_on_the_document_leaves_no_key(plane: ControlPlane) -> None:
    process = await plane.start_pool(max_guardians=1)
    await plane.until(lambda _: process.membership.lease is not None, await plane.submit())
    job_id = await plane.submit()
    read = await plane.reached(job_id, Status.PENDING)
    await plane.jobs.replace(read, replace(read, updated=read.updated + 1))
    pool, lease = process.service, process.membership.lease
    assert isinstance(pool, Pool)
    assert lease is not None
    assert await claim(pool._ports, read, member="m1", lease=lease, live=frozenset({"m1"})) is None
    assert await plane.status.get(guardian_key(job_id)) is None


@pytest.mark.parametrize(("holder", "taken"), [("m2", False), ("m3", True), ("m1", True)])
async def test_a_job_whose_holder_is_alive_cannot_be_claimed(plane: ControlPlane, holder: str, taken: bool) -> None:  # noqa: FBT001
    process = await plane.start_pool(max_guardians=1)
    await plane.until(lambda _: process.membership.lease is not None, await plane.submit())
    plane.helpers.fate(job_id := await plane.submit())
    job, lease = await plane.reached(job_id, Status.PENDING), process.membership.lease
    assert lease is not None
    await plane.status.put(guardian_key(job_id), json.dumps({"holder": holder}))
    claimed = await claim(process.service._ports, job, member="m1", lease=lease, live=frozenset({"m1", "m2"}))
    assert (claimed is not None) is taken


async def test_a_malformed_guardian_key_does_not_prevent_a_claim(plane: ControlPlane) -> None:
    await plane.status.put(guardian_key(job_id := await plane.submit()), "[" * 5000)
    await plane.start_pool()
    assert (await plane.rested(job_id)).status is Status.COMPLETED


# --- etcd --------------------------------------------------------------------------


async def test_learners_survive_the_loss_of_all_etcd_data(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, run_s=20)
    before = await plane.reached(job_id, Status.PROCESSING)
    await plane.running(job_id)
    plane.status.forget()
    await asyncio.sleep(10)
    entry = await plane.status.get(attempt_key(job_id))
    assert entry is not None
    assert json.loads(entry.value) == {"attempt": 1, "learners": 2}
    assert len(await plane.status.list(f"/jobs/{job_id}/learners/")) == 2
    assert untouched(plane, job_id)
    assert (await plane.job(job_id)).attempt == before.attempt
    await plane.rested(job_id)
    assert await plane.path(job_id) == WHOLE_LIFE


async def test_learners_run_on_while_etcd_is_away(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=5)
    await plane.running(job_id)
    plane.status.go_away()
    await asyncio.sleep(100)
    assert plane.cluster.learner(job_id).exit is not None
    assert (await plane.job(job_id)).status in {Status.PROCESSING, Status.STORING}
    plane.status.come_back()
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)
    assert await plane.path(job_id) == WHOLE_LIFE


async def test_a_job_is_killed_although_etcd_is_away(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=None)
    await plane.running(job_id)
    plane.status.go_away()
    plane.hints.lost = True
    await plane.set_desired(job_id, Desired.KILL)
    await plane.reached(job_id, Status.KILLED, within_s=3)
    assert plane.cluster.learners(job_id) == []
    plane.status.come_back()
    await plane.rested(job_id)


async def test_stored_results_are_known_after_the_loss_of_etcd_guardian_and_helper(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    job_id = await plane.submit(store_timeout="1h")
    await plane.running(job_id)
    await plane.kill(pool)
    await plane.until(lambda _: plane.cluster.learner(job_id).stored, job_id)
    plane.status.forget()
    await plane.start_pool()
    await plane.rested(job_id, within_s=5)
    assert await plane.path(job_id) == WHOLE_LIFE


async def test_a_helpers_failure_is_known_after_the_loss_of_etcd_and_guardian(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, name="worker-1", fails=("DataStoreDenied", "no such folder"), download_s=1)
    await plane.reached(job_id, Status.DOWNLOADING)
    await plane.kill(pool)
    await plane.until(lambda _: plane.cluster.learner(job_id, "worker-1").stored, job_id)
    plane.status.forget()
    await plane.start_pool()
    job = await plane.rested(job_id, within_s=10)
    assert (job.status, job.state.reason, job.state.message) == (Status.FAILED, "DataStoreDenied", "no such folder")


async def test_a_malformed_attempt_key_is_overwritten(plane: ControlPlane) -> None:
    await plane.start_pool()
    do = plane.cluster.hold("do")
    job_id = await plane.submit()
    await plane.reached(job_id, Status.PENDING)
    await plane.status.put(attempt_key(job_id), "{")
    do.set()
    assert (await plane.rested(job_id)).status is Status.COMPLETED


# --- malformed data ----------------------------------------------------------------


async def test_a_document_that_cannot_be_read_harms_its_own_job_only(plane: ControlPlane) -> None:
    await plane.start_pool()
    malformed, healthy = await plane.submit(), await plane.submit()
    plane.helpers.fate(malformed, run_s=None)
    await plane.running(malformed)
    good = await plane.job(malformed)
    plane.jobs.plant(malformed, '{"schema": 1, "id": 7}')
    with capture_logs() as logs:
        assert (await plane.rested(healthy)).status is Status.COMPLETED
        await asyncio.sleep(60)
    assert plane.cluster.learner(malformed).state == "running"
    delays = [line["delay_s"] for line in logs if line["event"] == "guardian.reconcile_failed"]
    assert len(delays) > 10
    assert all(2.5 <= delay <= 5 for delay in delays[5:]), "the back-off has reached its longest pause"
    plane.jobs.plant(malformed, json.dumps(dump(good)))
    await plane.set_desired(malformed, Desired.KILL)
    assert (await plane.rested(malformed)).status is Status.KILLED


async def test_a_guardian_that_crashes_is_restarted_with_back_off(plane: ControlPlane) -> None:
    await plane.start_pool()
    malformed = await plane.submit()
    plane.summaries.broken.add(malformed)
    with capture_logs() as logs:
        await asyncio.sleep(120)
        healthy = await plane.submit()
        assert (await plane.rested(healthy)).status is Status.COMPLETED
    crashes = sum(line["event"] == "guardian.crashed" for line in logs)
    # Back-off of 0, 1, 2, 4, 8, 16, 32, 60 ... s, each times 0.5 to 1.
    assert 8 <= crashes <= 11
    assert (await plane.job(malformed)).status is Status.STORING
    plane.summaries.broken.clear()
    assert (await plane.rested(malformed)).status is Status.COMPLETED
    assert await plane.path(malformed) == WHOLE_LIFE


async def test_a_guardian_ends_when_its_job_document_is_gone(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=None)
    await plane.running(job_id)
    await plane.jobs.delete(job_id)
    await asyncio.sleep(6)
    assert pool.service._guardians == {}


async def with_spec(plane: ControlPlane, job_id: str, spec: object) -> None:
    job = await plane.job(job_id)
    await plane.jobs.replace(job, replace(job, spec=spec))  # type: ignore[arg-type]


async def test_a_running_job_whose_spec_becomes_unreadable_fails_as_misconfigured(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, run_s=None)
    await plane.running(job_id)
    await plane.kill(pool)
    await with_spec(plane, job_id, {"name": 7})
    await plane.start_pool()
    job = await plane.rested(job_id)
    assert (job.status, job.state.reason) == (Status.FAILED, "Misconfigured")
    assert len(plane.helpers.stored) == 2
    assert await plane.leftovers() == []


async def test_a_job_with_an_unreadable_spec_can_be_killed(plane: ControlPlane) -> None:
    job_id = await plane.submit()
    await plane.reached(job_id, Status.PENDING)
    await with_spec(plane, job_id, {"name": 7})
    await plane.set_desired(job_id, Desired.KILL)
    await plane.start_pool()
    assert (await plane.rested(job_id)).status is Status.KILLED


async def test_reports_of_wrong_names_or_roles_are_ignored(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=5)
    await plane.running(job_id)
    for name, role in (("worker-0", "chief"), ("chief-0", "chief"), ("worker-9", "worker")):
        lie = LearnerStatus(name=name, role=role, rank=0, attempt=1, seq=10**6, phase=Phase.STORED, reason="Lie")
        await plane.status.put(f"/jobs/{job_id}/learners/{name}", json.dumps(dump(lie)))
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_a_guardian_refused_by_the_cluster_as_stale_claims_a_new_term(plane: ControlPlane) -> None:
    # As after a restore: the cluster has seen a higher term than the document has.
    pool = await plane.start_pool(max_guardians=1)
    blocker = await plane.submit()
    plane.helpers.fate(blocker, run_s=3)
    await plane.running(blocker)
    job_id = await plane.submit()
    await plane.cluster.stop(job_id, attempt=1, term=3, generation=1, cause="kill", grace_ms=0)
    job = await plane.rested(job_id)
    assert (job.status, job.guardian.term) == (Status.COMPLETED, 3)
    assert pool.service._guardians == {}


async def test_a_failed_claim_of_one_job_does_not_prevent_others(plane: ControlPlane) -> None:
    jobs = [await plane.submit() for _ in range(2)]
    for job_id in jobs:
        await plane.reached(job_id, Status.PENDING)
    # The store refuses every change of this document: its tail is ahead of its count.
    job = await plane.job(jobs[0])
    plane.jobs.plant(jobs[0], json.dumps({**dump(job), "history_seq": 0}))
    await plane.start_pool()
    assert (await plane.rested(jobs[1])).status is Status.COMPLETED


async def test_a_watch_that_fails_is_started_again(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    starts = [0]

    async def follow() -> None:
        starts[0] += 1
        if starts[0] < 3:
            raise Conflict("the watch broke")
        await asyncio.Event().wait()

    task = asyncio.create_task(pool.service._repeat(follow))
    await asyncio.sleep(5)
    task.cancel()
    assert starts == [3]


async def test_the_view_forgets_jobs_that_two_sweeps_did_not_find(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    await asyncio.sleep(1)
    await plane.status.put("/jobs/jstranger/attempt", '{"attempt": 3, "learners": 1}')
    await asyncio.sleep(0.1)
    assert pool.service.view.announced("jstranger") == 3
    await asyncio.sleep(3)
    assert pool.service.view.announced("jstranger") == 0


async def test_the_view_keeps_a_new_attempt_that_is_announced_while_a_sweep_reads_the_jobs(plane: ControlPlane) -> None:
    """The sweep removed it, and the watch did not bring it again: a Guardian that took the job over had no report."""
    wire, has_come = Tripwire(when="after", what="act"), asyncio.Event()
    pool = await plane.start_pool(wire)
    await asyncio.sleep(1)
    await plane.status.put("/jobs/jstranger/attempt", '{"attempt": 1, "learners": 1}')

    async def announce_again() -> None:
        await plane.status.put("/jobs/jstranger/attempt", '{"attempt": 2, "learners": 1}')
        await asyncio.sleep(0.01)
        assert pool.service.view.announced("jstranger") == 2
        has_come.set()

    wire.act = announce_again
    wire.at = ("jobs.find", wire.calls.count("jobs.find") + 2)
    await has_come.wait()
    await asyncio.sleep(0.1)
    assert pool.service.view.announced("jstranger") == 2


# --- races: another process writes between a read and a write ----------------------------


async def withdraw(plane: ControlPlane, job_id: str) -> None:
    """Withdraws the admission, as the dispatcher does."""
    job = await plane.job(job_id)
    verdict = Verdict(to=Status.QUEUED, reason="AdmissionWithdrawn", message="", time=plane.clock.now_ms())
    await plane.jobs.replace(job, replace(job, verdict=verdict))


async def raced(plane: ControlPlane, at: tuple[str, int], act: Callable[[str], Awaitable[object]], **spec: Any) -> str:
    """A job to which ``act`` happens just before this call of the guardian process."""
    observe = plane.cluster.hold("observe")
    job_id = await plane.submit(retries={"backoff": "10ms"}, **spec)
    await plane.reached(job_id, Status.PENDING)
    observe.set()
    await plane.start_pool(Tripwire(at=at, what="act", act=lambda: act(job_id)))
    return job_id


async def test_the_first_of_two_verdicts_is_kept(plane: ControlPlane) -> None:
    plane.cluster.refuse("reserve", NoSpace("full"), attempt=1)
    job_id = await raced(plane, ("jobs.replace", 2), partial(withdraw, plane))
    job = await plane.rested(job_id)
    reasons = [event.reason for event in await history(plane.jobs, job) if event.to is Status.QUEUED]
    assert (job.status, reasons) == (Status.COMPLETED, ["", "AdmissionWithdrawn"])


async def test_an_admission_withdrawn_during_provisioning_is_undone(plane: ControlPlane) -> None:
    job_id = await raced(plane, ("jobs.replace", 3), partial(withdraw, plane))
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 2)
    assert await plane.path(job_id) == [*PENDING, *WHOLE_LIFE]


async def test_a_job_whose_admission_is_withdrawn_during_a_halt_is_halted(plane: ControlPlane) -> None:
    job_id = await plane.submit()
    await plane.reached(job_id, Status.PENDING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.start_pool(Tripwire(at=("jobs.replace", 2), what="act", act=lambda: withdraw(plane, job_id)))
    job = await plane.rested(job_id)
    assert await plane.path(job_id) == [*PENDING, "QUEUED", "HALTED"]
    assert job.observed_generation == job.generation


async def test_a_lost_race_for_the_guardian_key_is_retried(plane: ControlPlane) -> None:
    async def faster(job_id: str) -> None:
        await plane.status.put(guardian_key(job_id), json.dumps({"holder": "m-gone"}))

    job_id = await raced(plane, ("status.put_if", 1), faster)
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_a_lost_race_for_the_attempt_key_is_retried(plane: ControlPlane) -> None:
    async def interfere(job_id: str) -> None:
        await plane.status.put(attempt_key(job_id), "{}")

    job_id = await raced(plane, ("status.put_if", 2), interfere)
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_learners_that_start_slowly_are_not_provisioned_again(plane: ControlPlane) -> None:
    # As if the cluster reports late: the pods exist and do not run yet.
    await plane.start_pool()
    plane.cluster.hides_activation = True
    plane.metrics.away = True
    job_id = await plane.submit()
    await asyncio.sleep(30)
    assert [step for step, _ in plane.cluster.done] == list(plane.cluster.steps())
    assert not (await plane.job(job_id)).attempt.committed
    plane.cluster.hides_activation = plane.metrics.away = False
    assert (await plane.rested(job_id)).attempt.number == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fate", "at"), [({"download_s": None}, "DOWNLOADING"), ({"silent": True, "download_s": None}, "silent")]
)
async def test_a_job_that_never_starts_fails_with_the_phases_of_its_learners(
    plane: ControlPlane, fate: dict[str, Any], at: str
) -> None:
    await plane.start_pool(start_timeout_s=600)
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, **fate)
    job = await plane.rested(job_id, within_s=700)
    assert (job.status, job.state.reason, job.attempt.number) == (Status.FAILED, "StartTimeout", 1)
    assert f"its learners are {at}" in job.state.message
    assert await plane.leftovers() == []
