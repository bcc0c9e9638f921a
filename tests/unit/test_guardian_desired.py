"""Halt, resume and kill at every stage: a kill overrides failures, failures override a halt, a halt overrides run."""

from __future__ import annotations

import asyncio

import pytest

from services.core.domain.errors import IllegalTransition
from services.core.domain.job import PLATFORM, set_desired
from services.core.domain.status import Desired, Status
from services.core.use_cases.jobs import history, update
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane

pytestmark = pytest.mark.looptime(noop_cycles=0)
PENDING = ["QUEUED", "PENDING"]
RUNNING = WHOLE_LIFE[:4]


@pytest.fixture
async def plane(plane: ControlPlane) -> ControlPlane:
    await plane.start_lcm()
    return plane


# --- halt --------------------------------------------------------------------------


async def test_a_waiting_job_is_halted_at_once(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=100)
    job = await plane.set_desired(job_id, Desired.HALT)
    assert (job.status, job.observed_generation) == (Status.HALTED, job.generation)


async def test_an_admitted_job_is_halted_without_starting(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=2)
    await plane.reached(job_id, Status.PENDING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.start_pool()
    job = await plane.rested(job_id)
    assert await plane.path(job_id) == [*PENDING, "HALTING", "HALTED"]
    assert "before it had started" in job.state.message
    assert plane.cluster.done == []


async def test_a_job_halted_between_two_provisioning_steps_leaves_nothing(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    do = plane.cluster.hold("do")
    job_id = await plane.submit(learners=2)
    await plane.reached(job_id, Status.PENDING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.kill(pool)
    do.set()
    await asyncio.sleep(0)
    await plane.start_pool()
    await plane.rested(job_id)
    assert await plane.path(job_id) == [*PENDING, "HALTING", "HALTED"]
    assert await plane.leftovers() == []


async def test_a_job_halted_while_downloading_never_runs(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, download_s=100)
    await plane.reached(job_id, Status.DOWNLOADING)
    await plane.set_desired(job_id, Desired.HALT)
    job = await plane.rested(job_id, within_s=10)
    assert await plane.path(job_id) == [*PENDING, "DOWNLOADING", "HALTING", "HALTED"]
    assert (job.attempt.started, plane.helpers.stored) == (None, [])


@pytest.mark.parametrize("on_term", [0, 7, -15])
async def test_a_running_job_is_halted_whatever_its_exit_code_on_sigterm(plane: ControlPlane, on_term: int) -> None:
    await plane.start_pool()
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, run_s=None, on_term=on_term)
    await plane.running(job_id)
    desired = await plane.set_desired(job_id, Desired.HALT)
    job = await plane.reached(job_id, Status.HALTING)
    assert job.observed_generation == desired.generation
    job = await plane.rested(job_id, within_s=10)
    assert await plane.path(job_id) == [*RUNNING, "HALTING", "HALTED"]
    assert len(plane.helpers.stored) == 2


async def test_a_learner_that_ignores_sigterm_is_killed_after_grace(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(grace="20s")
    plane.helpers.fate(job_id, run_s=None, on_term=None, store_s=30)
    await plane.reached(job_id, Status.PROCESSING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.until(lambda _: plane.cluster.learner(job_id).exit is not None, job_id)
    end = plane.cluster.learner(job_id).exit
    assert end is not None
    assert (end.signal, end.stop_cause) == (9, "halt")
    assert (await plane.rested(job_id)).status is Status.HALTED


async def test_a_job_that_had_succeeded_before_the_halt_completes(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    job_id = await plane.submit(learners=2)
    await plane.reached(job_id, Status.PROCESSING)
    await plane.kill(pool)
    await asyncio.sleep(3)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.start_pool()
    await plane.rested(job_id)
    assert await plane.path(job_id) == WHOLE_LIFE


async def test_a_job_of_which_one_learner_had_succeeded_before_the_halt_is_halted(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, name="worker-1", run_s=None)
    await plane.until(lambda _: any(learner.exit for learner in plane.cluster.learners(job_id)), job_id)
    await plane.set_desired(job_id, Desired.HALT)
    assert (await plane.rested(job_id)).status is Status.HALTED


@pytest.mark.parametrize(("retries", "becomes"), [(0, Status.FAILED), (3, Status.HALTED)])
async def test_a_job_that_had_failed_before_the_halt_is_not_retried_and_is_halted_if_it_had_retries_left(
    plane: ControlPlane, retries: int, becomes: Status
) -> None:
    pool = await plane.start_pool()
    job_id = await plane.submit(retries={"max": retries})
    plane.helpers.fate(job_id, code=4)
    await plane.reached(job_id, Status.PROCESSING)
    await plane.kill(pool)
    await asyncio.sleep(3)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.start_pool()
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (becomes, 1)


async def test_a_job_that_loses_a_learner_during_the_halt_is_halted_and_can_be_resumed(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, attempt=1, run_s=None)
    await plane.until(lambda job: job.attempt.committed, job_id)
    await plane.running(job_id)
    await plane.kill(pool)
    plane.cluster.learner(job_id, "worker-0").end(lost=True)
    plane.cluster.drop(plane.cluster.learner(job_id, "worker-1"))
    await plane.set_desired(job_id, Desired.HALT)
    await plane.start_pool()
    await plane.rested(job_id)
    assert await plane.path(job_id) == [*RUNNING, "HALTING", "HALTED"]
    await plane.set_desired(job_id, Desired.RUN)
    assert (await plane.reached(job_id, Status.COMPLETED)).attempt.number == 2


async def test_a_job_in_back_off_is_halted_at_once(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(retries={"max": 3, "backoff": "1h"})
    plane.helpers.fate(job_id, code=4)
    await plane.until(lambda job: job.counters.retries == 1 and not job.holds, job_id)
    job = await plane.set_desired(job_id, Desired.HALT)
    assert job.status is Status.HALTED


async def test_a_job_halted_during_the_release_of_its_last_attempt_is_halted_after_it(plane: ControlPlane) -> None:
    await plane.start_pool()
    teardown = plane.cluster.hold("teardown")
    job_id = await plane.submit(retries={"max": 3, "backoff": "0s"})
    plane.helpers.fate(job_id, code=4)
    await plane.until(lambda job: job.status is Status.QUEUED and job.holds, job_id)
    job = await plane.set_desired(job_id, Desired.HALT)
    assert job.status is Status.QUEUED
    await asyncio.sleep(10)
    teardown.set()
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number, job.observed_generation) == (Status.HALTED, 1, job.generation)


async def test_a_halted_job_resumes_as_a_new_attempt_from_its_checkpoints(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, attempt=1, run_s=None)
    await plane.reached(job_id, Status.PROCESSING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.rested(job_id)
    await plane.set_desired(job_id, Desired.RUN)
    job = await plane.reached(job_id, Status.COMPLETED)
    assert await plane.path(job_id) == [*RUNNING, "HALTING", "HALTED", "RESUMED", *WHOLE_LIFE]
    assert job.attempt.number == 2
    assert plane.cluster.done[-1][1].checkpoint_attempts == (1,)
    assert job.observed_generation == job.generation


async def test_a_job_can_be_resumed_only_after_its_release(plane: ControlPlane) -> None:
    await plane.start_pool()
    teardown = plane.cluster.hold("teardown")
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=None)
    await plane.reached(job_id, Status.PROCESSING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.reached(job_id, Status.HALTED)
    with pytest.raises(IllegalTransition, match="still giving back"):
        await plane.set_desired(job_id, Desired.RUN)
    teardown.set()
    await plane.rested(job_id)
    await plane.set_desired(job_id, Desired.RUN)


# --- kill --------------------------------------------------------------------------


async def test_a_waiting_job_is_killed_at_once(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=100)
    assert (await plane.set_desired(job_id, Desired.KILL)).status is Status.KILLED


async def test_an_admitted_job_is_killed_without_starting(plane: ControlPlane) -> None:
    job_id = await plane.submit()
    await plane.reached(job_id, Status.PENDING)
    await plane.set_desired(job_id, Desired.KILL)
    await plane.start_pool()
    await plane.rested(job_id)
    assert await plane.path(job_id) == [*PENDING, "KILLED"]
    assert plane.cluster.done == []


async def test_a_downloading_job_is_killed(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, download_s=100)
    await plane.reached(job_id, Status.DOWNLOADING)
    await plane.set_desired(job_id, Desired.KILL)
    await plane.rested(job_id, within_s=5)
    assert await plane.path(job_id) == [*PENDING, "DOWNLOADING", "KILLED"]


async def test_a_running_job_is_killed_within_a_second_and_nothing_is_stored(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(learners=2, grace="1h")
    plane.helpers.fate(job_id, run_s=None, on_term=None, store_s=None)
    await plane.reached(job_id, Status.PROCESSING)
    desired = await plane.set_desired(job_id, Desired.KILL)
    job = await plane.rested(job_id, within_s=1)
    assert (job.status, job.state.reason) == (Status.KILLED, "Killed")
    assert job.observed_generation == desired.generation
    assert plane.helpers.stored == []


async def test_a_kill_overrides_a_halt_under_way(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(grace="1h")
    plane.helpers.fate(job_id, run_s=None, on_term=None)
    await plane.reached(job_id, Status.PROCESSING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.reached(job_id, Status.HALTING)
    await plane.set_desired(job_id, Desired.KILL)
    await plane.rested(job_id, within_s=1)
    assert await plane.path(job_id) == [*RUNNING, "HALTING", "KILLED"]


async def test_a_kill_ends_the_storing_of_a_halted_job(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=None, store_s=None)
    await plane.reached(job_id, Status.PROCESSING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.until(lambda job: job.verdict is not None, job_id)
    await plane.set_desired(job_id, Desired.KILL)
    assert (await plane.rested(job_id, within_s=1)).status is Status.KILLED


async def test_a_kill_during_the_storing_of_a_failed_job_names_both_causes(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, code=3, store_s=None)
    await plane.reached(job_id, Status.STORING)
    await plane.set_desired(job_id, Desired.KILL)
    job = await plane.rested(job_id, within_s=1)
    assert (job.status, job.state.reason) == (Status.KILLED, "Killed")
    assert "exited with code 3" in job.state.message
    assert job.observed_generation == job.generation


async def test_a_kill_during_the_storing_of_a_failed_attempt_prevents_the_retry(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(retries={"max": 3, "backoff": "0s"})
    plane.helpers.fate(job_id, code=3, store_s=None)
    await plane.reached(job_id, Status.STORING)
    await plane.set_desired(job_id, Desired.KILL)
    job = await plane.rested(job_id, within_s=1)
    assert (job.status, job.attempt.number) == (Status.KILLED, 1)


async def test_a_job_that_has_succeeded_completes_in_spite_of_a_kill(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, store_s=3)
    await plane.reached(job_id, Status.STORING)
    await plane.set_desired(job_id, Desired.KILL)
    job = await plane.rested(job_id)
    assert job.status is Status.COMPLETED
    assert len(plane.helpers.stored) == 1


async def test_a_kill_ends_the_storing_of_a_job_that_has_succeeded_after_its_grace(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(grace="2s")
    plane.helpers.fate(job_id, store_s=None)
    await plane.reached(job_id, Status.STORING)
    await plane.set_desired(job_id, Desired.KILL)
    job = await plane.rested(job_id, within_s=3)
    assert (job.status, job.observed_generation) == (Status.COMPLETED, job.generation)
    assert job.state.message == "worker-0 did not store its results before its kill took effect"
    assert await plane.leftovers() == []


async def test_a_halt_during_the_storing_of_a_job_that_has_succeeded_keeps_its_results(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(grace="1s")
    plane.helpers.fate(job_id, store_s=8)
    await plane.reached(job_id, Status.STORING)
    await plane.set_desired(job_id, Desired.HALT)
    job = await plane.rested(job_id)
    assert (job.status, job.observed_generation) == (Status.COMPLETED, job.generation)
    assert len(plane.helpers.stored) == 1


async def test_a_halt_during_the_storing_of_a_failed_attempt_prevents_the_retry(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(retries={"max": 3, "backoff": "0s"})
    plane.helpers.fate(job_id, code=3, store_s=2)
    await plane.reached(job_id, Status.STORING)
    await plane.set_desired(job_id, Desired.HALT)
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.HALTED, 1)
    assert job.observed_generation == job.generation


async def test_a_queued_job_is_killed_during_the_release_of_its_last_attempt(plane: ControlPlane) -> None:
    await plane.start_pool()
    teardown = plane.cluster.hold("teardown")
    job_id = await plane.submit(retries={"max": 3, "backoff": "0s"})
    plane.helpers.fate(job_id, code=4)
    await plane.until(lambda job: job.status is Status.QUEUED and job.holds, job_id)
    assert (await plane.set_desired(job_id, Desired.KILL)).status is Status.QUEUED
    teardown.set()
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.KILLED, 1)
    assert await plane.leftovers() == []


# --- who requested it ----------------------------------------------------------------


@pytest.mark.parametrize(("desired", "to"), [(Desired.HALT, Status.HALTED), (Desired.KILL, Status.KILLED)])
@pytest.mark.parametrize("when", [Status.QUEUED, Status.PENDING, Status.PROCESSING])
async def test_the_history_names_the_user_who_halted_or_killed_the_job(
    plane: ControlPlane, when: Status, desired: Desired, to: Status
) -> None:
    job_id = await plane.submit(learners=100 if when is Status.QUEUED else 1)
    plane.helpers.fate(job_id, run_s=1_000)
    if when is Status.PROCESSING:
        await plane.start_pool()
    await plane.reached(job_id, when)
    await plane.set_desired(job_id, desired, by="eve")
    if when is Status.PENDING:
        await plane.start_pool()
    job = await plane.rested(job_id)
    [*_, last] = await history(plane.jobs, job)
    assert (last.to, last.actor) == (to, "user:eve")
    assert "owner" not in last.message
    if when is not Status.QUEUED:
        verb = "killed" if desired is Desired.KILL else "halted"
        assert last.message.startswith(f"{verb} by eve")


async def test_a_job_halted_by_the_stop_of_the_platform_says_so_and_is_halted_with_its_results(
    plane: ControlPlane,
) -> None:
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=1_000)
    await plane.start_pool()
    await plane.running(job_id)
    await update(
        plane.jobs, job_id, None, lambda job: set_desired(job, Desired.HALT, actor=PLATFORM, now=plane.clock.now_ms())
    )
    job = await plane.rested(job_id)
    assert (job.status, job.state.reason) == (Status.HALTED, "PlatformStopped")
    assert job.state.message == "halted by the stop of the platform"
    assert {event.actor for event in await history(plane.jobs, job) if event.to == "HALTED"} == {PLATFORM}


async def test_a_kill_by_another_user_after_a_halt_names_the_user_who_killed_the_job(plane: ControlPlane) -> None:
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=1_000, on_term=None)
    await plane.start_pool()
    await plane.running(job_id)
    await plane.set_desired(job_id, Desired.HALT, by="ada")
    await plane.reached(job_id, Status.HALTING)
    await plane.set_desired(job_id, Desired.KILL, by="eve")
    job = await plane.rested(job_id)
    actors = {event.to: event.actor for event in await history(plane.jobs, job)}
    assert (actors[Status.HALTING], actors[Status.KILLED]) == ("user:ada", "user:eve")
    assert job.state.message == "killed by eve"
