"""The life of a job, from its submission to its release, as Dispatcher and Guardian lead it."""

from __future__ import annotations

import asyncio

import pytest

from services.core.domain.errors import InvalidRequest, NoSpace, QuotaExceeded, ResourceExhausted, Unavailable
from services.core.domain.outages import Outage
from services.core.domain.startup import Span, Step
from services.core.domain.status import Desired, Status
from services.core.use_cases.jobs import history
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane
from tests.testbed.memory.cluster import Blocked

pytestmark = pytest.mark.looptime(noop_cycles=0)
PENDING = ["QUEUED", "PENDING"]
RUNNING = WHOLE_LIFE[:4]


@pytest.fixture
async def plane(plane: ControlPlane) -> ControlPlane:
    await plane.start_lcm()
    await plane.start_pool()
    return plane


async def test_a_job_passes_every_status_once(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=2)
    job = await plane.rested(job_id)
    assert await plane.path(job_id) == WHOLE_LIFE
    assert (job.attempt.number, job.attempt.committed, job.counters.retries) == (1, True, 0)
    assert job.attempt.plan_digest.startswith("sha256:")
    assert job.summary["lines"] == 1
    assert sorted(plane.helpers.stored) == [(job_id, 1, "worker-0"), (job_id, 1, "worker-1")]
    assert await plane.leftovers() == []


async def test_hardware_is_free_within_a_second_after_the_last_result(plane: ControlPlane) -> None:
    job_id = await plane.submit()
    job = await plane.rested(job_id)
    at = {event.to: event.time for event in await history(plane.jobs, job)}
    assert job.released is not None
    # The helper stores for 0.2 s.
    assert job.released - at[Status.STORING] <= 1200


async def test_the_first_step_of_a_training_that_is_over_at_once_is_recorded(plane: ControlPlane) -> None:
    job_id = await plane.submit()
    first = Span(began=plane.clock.now_ms(), ended=plane.clock.now_ms() + 1)
    plane.helpers.fate(job_id, run_s=0, startup={Step.FIRST_STEP: first})
    assert Step.FIRST_STEP in (await plane.rested(job_id)).attempt.startup


async def test_jobs_are_completed_halted_and_killed_with_every_hint_lost(plane: ControlPlane) -> None:
    plane.hints.lost = True
    job_ids = [await plane.submit() for _ in range(3)]
    plane.helpers.fate(job_ids[1], run_s=None)
    plane.helpers.fate(job_ids[2], run_s=None)
    for job_id in job_ids[1:]:
        await plane.reached(job_id, Status.PROCESSING)
    await plane.set_desired(job_ids[1], Desired.HALT)
    await plane.set_desired(job_ids[2], Desired.KILL)
    ended = [(await plane.rested(job_id, within_s=20)).status for job_id in job_ids]
    assert ended == [Status.COMPLETED, Status.HALTED, Status.KILLED]
    assert plane.hints.dropped > 0
    assert await plane.leftovers() == []


# --- failures -----------------------------------------------------------------------


async def test_the_first_failure_is_the_cause_and_its_peers_are_stopped(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=3)
    plane.helpers.fate(job_id, run_s=None, store_s=5)
    plane.helpers.fate(job_id, name="worker-1", run_s=0.5, code=3)
    job = await plane.reached(job_id, Status.STORING)
    exits = {learner.name: learner.exit for learner in plane.cluster.learners(job_id)}
    assert {name: exit_.stop_cause for name, exit_ in exits.items() if exit_} == {
        "worker-0": "peer",
        "worker-1": "",
        "worker-2": "peer",
    }
    job = await plane.rested(job_id)
    assert await plane.path(job_id) == [*RUNNING, "STORING", "FAILED"]
    assert job.verdict is not None
    assert (job.state.reason, job.verdict.learner, job.verdict.exit_code) == ("ExitCode", "worker-1", 3)
    assert "rank 1" in job.state.message
    assert len(plane.helpers.stored) == 3


async def test_the_earliest_of_failures_observed_together_is_the_cause(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=3)
    for name, run_s, code in (("worker-0", 0.9, 5), ("worker-1", 0.7, 3), ("worker-2", 0.8, 4)):
        plane.helpers.fate(job_id, name=name, run_s=run_s, code=code)
    await plane.running(job_id)
    plane.cluster.go_away()
    plane.metrics.away = True
    await asyncio.sleep(3)
    plane.metrics.away = False
    plane.cluster.come_back()
    job = await plane.rested(job_id)
    assert job.verdict is not None
    assert (job.verdict.learner, job.verdict.exit_code) == ("worker-1", 3)


async def test_a_helper_that_cannot_fetch_fails_the_job_with_its_message(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, name="worker-0", fails=("DataStoreDenied", "no such folder: /data"))
    job = await plane.rested(job_id)
    assert (job.status, job.state.reason, job.state.message) == (
        Status.FAILED,
        "DataStoreDenied",
        "no such folder: /data",
    )
    assert await plane.path(job_id) == [*PENDING, "DOWNLOADING", "FAILED"]
    assert plane.helpers.stored == []


# --- retries -----------------------------------------------------------------------


async def test_retries_stop_at_their_budget_and_back_off_doubles(plane: ControlPlane) -> None:
    job_id = await plane.submit(retries={"max": 2, "backoff": "4s"})
    plane.helpers.fate(job_id, code=1)
    job = await plane.rested(job_id)
    failing = [*RUNNING[1:], "STORING"]
    assert await plane.path(job_id) == ["QUEUED", *failing, "QUEUED", *failing, "QUEUED", *failing, "FAILED"]
    assert (job.attempt.number, job.counters.retries, job.counters.restarts) == (3, 2, 0)
    events = await history(plane.jobs, job)
    queued = [event.time for event in events if event.to is Status.QUEUED][1:]
    admitted = [event.time for event in events if event.to is Status.PENDING][1:]
    waits = [(later - earlier) / 1000 for earlier, later in zip(queued, admitted, strict=True)]
    assert waits == [pytest.approx(4, abs=1.1), pytest.approx(8, abs=1.1)]
    assert "retry 1 of 2" in next(event.message for event in events if event.to is Status.QUEUED and event.attempt)


async def test_lost_learners_are_replaced_soon_and_cost_no_retry(plane: ControlPlane) -> None:
    job_id = await plane.submit(retries={"backoff": "1h"})
    for attempt in (1, 2, 3, 4, 5, 6):
        plane.helpers.fate(job_id, attempt=attempt, lost=True, run_s=0.1)
    job = await plane.rested(job_id, within_s=90)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 7)
    assert (job.counters.retries, job.counters.restarts, job.counters.rollbacks) == (0, 6, 0)


@pytest.mark.parametrize(("is_ending", "grace_ms"), [(True, 20_000), (False, 5_000)], ids=["evicted", "vanished"])
async def test_evicted_learner_and_its_peers_have_their_whole_grace_to_save_a_checkpoint(
    plane: ControlPlane,
    is_ending: bool,  # noqa: FBT001 - a parameter of the test
    grace_ms: int,
) -> None:
    """Before, they were killed after five seconds, although the cluster would have waited."""
    job_id = await plane.submit(learners=2, grace="20s")
    plane.helpers.fate(job_id, attempt=1, run_s=None)
    await plane.running(job_id)
    await plane.until(lambda job: job.attempt.committed, job_id)
    lost, peer = (plane.cluster.learner(job_id, name) for name in ("worker-0", "worker-1"))
    lost.is_ending = is_ending
    lost.end(lost=True)
    job = await plane.rested(job_id, within_s=90)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 2)
    assert peer.stop_grace_ms == grace_ms


@pytest.mark.parametrize("lost", [["worker-1"], ["worker-0", "worker-1"]])
async def test_learners_that_vanish_with_their_machine_are_lost(plane: ControlPlane, lost: list[str]) -> None:
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, attempt=1, run_s=None)
    await plane.running(job_id)
    await plane.until(lambda job: job.attempt.committed, job_id)
    for name in lost:
        plane.cluster.drop(plane.cluster.learner(job_id, name))
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number, job.counters.restarts) == (Status.COMPLETED, 2, 1)
    reasons = [event.reason for event in await history(plane.jobs, job) if event.to is Status.QUEUED]
    assert reasons == ["", "LearnerLost"]


async def test_a_retry_can_restore_checkpoints_of_all_earlier_attempts(plane: ControlPlane) -> None:
    job_id = await plane.submit(retries={"max": 2, "backoff": "10ms"})
    plane.helpers.fate(job_id, attempt=1, code=1)
    plane.helpers.fate(job_id, attempt=2, code=1)
    await plane.rested(job_id)
    assert [plan.checkpoint_attempts for step, plan in plane.cluster.done if step == "activate"] == [(), (1,), (2, 1)]


# --- provisioning ------------------------------------------------------------------


async def test_a_job_that_the_cluster_cannot_run_fails_with_the_clusters_reason(plane: ControlPlane) -> None:
    plane.cluster.refuse("learners", InvalidRequest("there is no uid left for it"), attempt=1)
    job_id = await plane.submit()
    job = await plane.rested(job_id)
    assert (job.status, job.state.reason, job.state.message) == (
        Status.FAILED,
        "InvalidRequest",
        "there is no uid left for it",
    )
    assert await plane.path(job_id) == [*PENDING, "FAILED"]
    assert await plane.leftovers() == []


async def test_an_attempt_that_cannot_be_provisioned_is_rolled_back_and_queued_again(plane: ControlPlane) -> None:
    plane.cluster.refuse("learners", NoSpace("the disk is full"), attempt=1)
    job_id = await plane.submit(learners=2, retries={"backoff": "2s"})
    job = await plane.until(lambda job: job.counters.restarts == 1 and not job.holds, job_id)
    assert (job.status, job.state.reason) == (Status.QUEUED, "NoSpace")
    assert plane.cluster.learners(job_id) == []
    job = await plane.rested(job_id)
    assert await plane.path(job_id) == [*PENDING, *WHOLE_LIFE]
    assert (job.counters.retries, job.counters.rollbacks) == (0, 0)


async def test_roll_backs_in_a_row_are_bounded(plane: ControlPlane) -> None:
    for attempt in range(1, 10):
        plane.cluster.refuse("reserve", ResourceExhausted("no port is free"), attempt=attempt)
    job_id = await plane.submit(retries={"backoff": "0s"})
    job = await plane.rested(job_id)
    assert (job.status, job.state.reason, job.attempt.number) == (Status.FAILED, "ResourceExhausted", 5)
    assert await plane.path(job_id) == [*PENDING * 5, "FAILED"]


@pytest.mark.slow
async def test_job_waits_out_a_full_disk_however_long_it_lasts_and_then_completes(plane: ControlPlane) -> None:
    for attempt in range(1, 13):
        plane.cluster.refuse("reserve", NoSpace("the disk is full"), attempt=attempt)
    job_id = await plane.submit()
    waiting = await plane.until(lambda job: job.counters.outages == 9 and not job.holds, job_id, within_s=600)
    assert (waiting.status, waiting.state.reason) == (Status.QUEUED, "NoSpace")
    assert 59_000 < waiting.not_before - waiting.state.since <= 60_000  # the longest pause: WEFT_OUTAGE_BACKOFF_S
    job = await plane.rested(job_id, within_s=3_600)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 13)
    assert (job.counters.retries, job.counters.restarts) == (0, 12)
    assert (job.counters.outages, job.counters.rollbacks) == (0, 0)


QUOTA = QuotaExceeded("the tenant's quota in the cluster is used up: requested: gpu=8, used: gpu=16, limited: gpu=16")


async def test_job_waits_as_long_as_other_jobs_of_its_tenant_use_the_quota_of_the_cluster(plane: ControlPlane) -> None:
    """It was FAILED after two and a half minutes."""
    other = await plane.submit()
    plane.helpers.fate(other, run_s=300)
    job_id = await plane.submit()
    for attempt in range(1, 9):
        plane.cluster.refuse("learners", QUOTA, attempt=attempt, job=job_id)
    waiting = await plane.until(lambda job: job.counters.outages == 6 and not job.holds, job_id, within_s=600)
    assert (waiting.status, waiting.state.reason, waiting.state.message) == (Status.QUEUED, "QuotaInUse", QUOTA.message)
    assert (await plane.job(other)).status is Status.PROCESSING
    job = await plane.rested(job_id, within_s=600)
    assert (job.status, job.attempt.number, job.counters.rollbacks) == (Status.COMPLETED, 9, 0)


async def test_gangs_that_took_the_quota_from_each_other_are_not_tried_again_in_the_same_moment(
    plane: ControlPlane,
) -> None:
    jobs = [await plane.submit() for _ in range(2)]
    for job_id in jobs:
        plane.cluster.refuse("learners", QUOTA, attempt=1, job=job_id)
    waits = [await plane.until(lambda job: job.counters.outages == 1 and not job.holds, job_id) for job_id in jobs]
    assert [waiting.state.reason for waiting in waits] == ["QuotaInUse"] * 2
    first, second = (waiting.not_before - waiting.state.since for waiting in waits)
    assert first != second
    assert all(500 <= pause_ms <= 1_000 for pause_ms in (first, second))


async def test_job_that_alone_is_more_than_the_quota_of_its_tenant_fails_after_some_tries(plane: ControlPlane) -> None:
    for attempt in range(1, 10):
        plane.cluster.refuse("learners", QUOTA, attempt=attempt)
    job = await plane.rested(await plane.submit(retries={"backoff": "0s"}))
    assert (job.status, job.state.reason, job.attempt.number) == (Status.FAILED, "QuotaExceeded", 5)


@pytest.mark.parametrize("reason", list(Outage))
async def test_job_whose_helper_reports_an_outage_is_tried_again_without_a_retry_budget(
    plane: ControlPlane, reason: Outage
) -> None:
    job_id = await plane.submit(learners=2, retries={"max": 0})
    for attempt in range(1, 8):
        plane.helpers.fate(job_id, name="worker-1", attempt=attempt, fails=(reason.value, "it does not answer"))
    waiting = await plane.until(lambda job: job.counters.outages == 3 and not job.holds, job_id)
    assert (waiting.state.reason, waiting.state.message) == (reason.value, "it does not answer; trying again")
    job = await plane.rested(job_id, within_s=600)
    assert (job.status, job.attempt.number, job.counters.retries, job.counters.outages) == (Status.COMPLETED, 8, 0, 0)


async def test_earlier_losses_do_not_count_as_roll_backs(plane: ControlPlane) -> None:
    job_id = await plane.submit(retries={"backoff": "0s"})
    for attempt in range(1, 6):
        plane.helpers.fate(job_id, attempt=attempt, lost=True, run_s=0.1)
    plane.cluster.refuse("reserve", NoSpace("the disk is full"), attempt=6)
    job = await plane.rested(job_id, within_s=120)
    assert (job.status, job.attempt.number, job.counters.restarts) == (Status.COMPLETED, 7, 6)


async def test_a_framework_of_the_library_is_named_in_the_plan(plane: ControlPlane) -> None:
    await plane.rested(await plane.submit(framework="jax"))
    assert plane.cluster.done[-1][1].framework.startswith("jax-")


async def test_a_job_whose_framework_was_removed_fails_and_names_it(plane: ControlPlane) -> None:
    job_id = await plane.submit(framework={"name": "abacus", "version": "1"})
    job = await plane.rested(job_id)
    assert (job.status, job.state.reason) == (Status.FAILED, "InvalidRequest")
    assert "abacus 1" in job.state.message


async def test_an_attempt_is_rolled_back_when_the_cluster_is_away_for_too_long(plane: ControlPlane) -> None:
    do = plane.cluster.hold("do")
    job_id = await plane.submit(retries={"backoff": "0s"})
    await plane.reached(job_id, Status.PENDING)
    plane.cluster.go_away()
    do.set()
    await asyncio.sleep(601)
    plane.cluster.come_back()
    job = await plane.until(lambda job: job.attempt.number == 2, job_id)
    events = await history(plane.jobs, job)
    assert [event.reason for event in events if event.to is Status.QUEUED] == ["", "ProvisionTimeout"]
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_attempt_that_the_cluster_refuses_for_too_long_is_rolled_back_with_the_clusters_words(
    plane: ControlPlane,
) -> None:
    """Nothing but the guardian's log said what was wrong, e.g. that a PriorityClass or a right was missing."""
    plane.cluster.refuse("learners", Unavailable("no PriorityClass with name fast was found"), attempt=1)
    job_id = await plane.submit(retries={"backoff": "0s"})
    job = await plane.until(lambda job: job.attempt.number == 2, job_id, within_s=620)
    undone = [event for event in await history(plane.jobs, job) if event.reason == "ProvisionTimeout"]
    assert [event.message.partition(" s: ")[2] for event in undone] == ["no PriorityClass with name fast was found"]
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_gang_of_which_one_image_is_missing_is_undone_at_once_and_queued_again(plane: ControlPlane) -> None:
    plane.cluster.blocked["worker-3", 1] = Blocked("ImagePullFailed", "x:1: not found; check it", for_good=True)
    job_id = await plane.submit(learners=4, retries={"backoff": "0s"})
    job = await plane.until(lambda job: job.attempt.number == 2, job_id, within_s=20)
    queued = [event for event in await history(plane.jobs, job) if event.to is Status.QUEUED]
    assert [event.reason for event in queued] == ["", "ImagePullFailed"]
    assert queued[-1].message == "learner worker-3 could not start: x:1: not found; check it"
    assert all(learner.attempt == 2 for learner in plane.cluster.learners(job_id))
    assert (await plane.rested(job_id)).status is Status.COMPLETED


@pytest.mark.slow
async def test_gang_that_stays_unscheduled_is_undone_after_the_timeout_with_the_reason(plane: ControlPlane) -> None:
    plane.cluster.blocked["worker-1", 1] = Blocked("Unschedulable", "2 Insufficient nvidia.com/gpu")
    job_id = await plane.submit(learners=2, retries={"backoff": "0s"})
    await plane.reached(job_id, Status.DOWNLOADING)
    await asyncio.sleep(590)
    job = await plane.job(job_id)
    assert (job.status, job.attempt.number, job.attempt.committed) == (Status.DOWNLOADING, 1, False)
    job = await plane.until(lambda job: job.attempt.number == 2, job_id, within_s=30)
    events = await history(plane.jobs, job)
    assert [event.reason for event in events if event.to is Status.QUEUED] == ["", "Unschedulable"]
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_attempt_that_was_blocked_for_a_while_commits_when_all_have_started(plane: ControlPlane) -> None:
    plane.cluster.blocked["worker-1", 1] = Blocked("MountFailed", "timed out waiting for the condition")
    job_id = await plane.submit(learners=2)
    await plane.reached(job_id, Status.DOWNLOADING)
    await asyncio.sleep(60)
    plane.cluster.blocked.clear()
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number, job.attempt.committed) == (Status.COMPLETED, 1, True)


async def test_an_attempt_continues_after_a_short_absence_of_the_cluster(plane: ControlPlane) -> None:
    plane.cluster.hold("do").set()
    job_id = await plane.submit()
    plane.cluster.go_away()
    await asyncio.sleep(100)
    plane.cluster.come_back()
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)


# --- time limits -------------------------------------------------------------------


async def test_a_job_is_stopped_at_max_runtime_and_its_results_are_stored(plane: ControlPlane) -> None:
    job_id = await plane.submit(max_runtime="7s", grace="2s")
    plane.helpers.fate(job_id, run_s=None, on_term=None)
    job = await plane.reached(job_id, Status.STORING)
    assert job.attempt.started is not None
    assert plane.cluster.learner(job_id).stop_cause == "deadline"
    job = await plane.rested(job_id)
    assert (job.status, job.state.reason) == (Status.FAILED, "DeadlineExceeded")
    assert job.attempt.started is not None
    assert job.finished is not None
    assert job.finished - job.attempt.started == pytest.approx(7000 + 2000 + 200, abs=150)
    assert len(plane.helpers.stored) == 1


async def test_max_runtime_counts_for_each_attempt_alone(plane: ControlPlane) -> None:
    job_id = await plane.submit(max_runtime="3s", retries={"max": 1, "backoff": "0s"})
    plane.helpers.fate(job_id, run_s=2)
    plane.helpers.fate(job_id, attempt=1, run_s=2, code=1)
    assert (await plane.rested(job_id)).status is Status.COMPLETED


async def test_a_job_fails_after_max_pending(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=100, max_pending="30s")
    job = await plane.rested(job_id)
    assert (job.status, job.state.reason) == (Status.FAILED, "Unschedulable")
    assert "max_pending (30s)" in job.state.message
    assert await plane.path(job_id) == ["QUEUED", "FAILED"]


async def test_a_job_ends_after_store_timeout_if_its_helper_never_stores(plane: ControlPlane) -> None:
    job_id = await plane.submit(store_timeout="20s", grace="1s")
    plane.helpers.fate(job_id, store_s=None)
    job = await plane.rested(job_id)
    assert job.status is Status.COMPLETED
    assert job.verdict is not None
    assert job.finished is not None
    assert job.finished - job.verdict.time == pytest.approx(21_000, abs=100)
    assert job.state.message == "worker-0 did not store its results in time (store_timeout)"


@pytest.mark.parametrize(("code", "status"), [(0, Status.COMPLETED), (3, Status.FAILED)])
async def test_the_message_names_results_that_could_not_be_stored(
    plane: ControlPlane, code: int, status: Status
) -> None:
    job_id = await plane.submit(learners=3)
    for name in ("worker-1", "worker-2"):
        plane.helpers.fate(job_id, name=name, code=0, unkept="2 files could not be stored, the first is x: full")
    plane.helpers.fate(job_id, name="worker-0", code=code, run_s=2)
    job = await plane.rested(job_id)
    assert job.status is status
    assert job.state.message.endswith("worker-1: 2 files could not be stored, the first is x: full (and 1 more)")
    assert (code == 3) == ("code 3" in job.state.message)


async def test_an_exit_code_is_known_although_the_helper_is_silent(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, silent=True, code=9)
    job = await plane.rested(job_id)
    assert (job.status, job.state.reason) == (Status.FAILED, "ExitCode")
    assert await plane.path(job_id) == [*RUNNING, "STORING", "FAILED"]


# --- metrics -----------------------------------------------------------------------


async def test_hardware_is_released_while_the_metrics_service_is_away(plane: ControlPlane) -> None:
    plane.summaries.away = True
    job_id = await plane.submit()
    job = await plane.rested(job_id)
    assert (job.status, dict(job.summary)) == (Status.COMPLETED, {})


async def test_hardware_is_released_while_the_metrics_service_hangs(plane: ControlPlane) -> None:
    plane.summaries.delay_s = 3600
    job_id = await plane.submit()
    job = await plane.rested(job_id, within_s=10)
    assert job.status is Status.COMPLETED


@pytest.mark.slow
async def test_learners_wait_while_the_metrics_service_is_away_and_nothing_is_rolled_back(plane: ControlPlane) -> None:
    plane.metrics.away = True
    job_id = await plane.submit()
    await asyncio.sleep(1000)
    job = await plane.job(job_id)
    assert (job.status, job.attempt.committed) == (Status.PENDING, True)
    plane.metrics.away = False
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.COMPLETED, 1)
