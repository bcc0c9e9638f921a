"""Halt, resume and kill, at every stage: kill beats facts of failure, facts beat halt, halt beats run."""

from __future__ import annotations

import asyncio

import pytest

from services.core.domain.errors import IllegalTransition
from services.core.domain.status import Desired, Status
from tests.testbed.control_plane import WHOLE_LIFE, ControlPlane

pytestmark = pytest.mark.looptime(noop_cycles=0)
PENDING = ["QUEUED", "PENDING"]
RUNNING = WHOLE_LIFE[:4]


@pytest.fixture
async def plane(plane: ControlPlane) -> ControlPlane:
    await plane.start_lcm()
    return plane


# --- halt --------------------------------------------------------------------------


async def test_a_job_that_waits_is_halted_at_once(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=100)
    job = await plane.set_desired(job_id, Desired.HALT)
    assert (job.status, job.observed_generation) == (Status.HALTED, job.generation)


async def test_a_job_that_was_admitted_and_never_started_is_halted_without_starting(plane: ControlPlane) -> None:
    job_id = await plane.submit(learners=2)
    await plane.reached(job_id, Status.PENDING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.start_pool()
    job = await plane.rested(job_id)
    assert await plane.path(job_id) == [*PENDING, "HALTING", "HALTED"]
    assert "before it had started" in job.state.message
    assert plane.cluster.done == []


async def test_halted_between_two_steps_what_there_is_goes(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    gate = plane.cluster.hold("do")
    job_id = await plane.submit(learners=2)
    await plane.reached(job_id, Status.PENDING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.kill(pool)
    gate.set()
    await asyncio.sleep(0)
    await plane.start_pool()
    await plane.rested(job_id)
    assert await plane.path(job_id) == [*PENDING, "HALTING", "HALTED"]
    assert await plane.leftovers() == []


async def test_halted_while_it_fetches_it_never_runs(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, download_s=100)
    await plane.reached(job_id, Status.DOWNLOADING)
    await plane.set_desired(job_id, Desired.HALT)
    job = await plane.rested(job_id, within_s=10)
    assert await plane.path(job_id) == [*PENDING, "DOWNLOADING", "HALTING", "HALTED"]
    assert (job.attempt.started, plane.helpers.stored) == (None, [])


@pytest.mark.parametrize("on_term", [0, 7, -15])
async def test_halted_while_it_runs_however_it_answers_the_request(plane: ControlPlane, on_term: int) -> None:
    await plane.start_pool()
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, run_s=None, on_term=on_term)
    await plane.running(job_id)
    with_applied_key = await plane.set_desired(job_id, Desired.HALT)
    job = await plane.reached(job_id, Status.HALTING)
    assert job.observed_generation == with_applied_key.generation
    job = await plane.rested(job_id, within_s=10)
    assert await plane.path(job_id) == [*RUNNING, "HALTING", "HALTED"]
    assert len(plane.helpers.stored) == 2


async def test_who_does_not_stop_is_killed_after_its_grace(plane: ControlPlane) -> None:
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


async def test_who_had_succeeded_before_the_halt_has_completed(plane: ControlPlane) -> None:
    pool = await plane.start_pool()
    job_id = await plane.submit(learners=2)
    await plane.reached(job_id, Status.PROCESSING)
    await plane.kill(pool)
    await asyncio.sleep(3)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.start_pool()
    await plane.rested(job_id)
    assert await plane.path(job_id) == WHOLE_LIFE


async def test_who_had_succeeded_only_in_part_is_halted(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(learners=2)
    plane.helpers.fate(job_id, name="worker-1", run_s=None)
    await plane.until(lambda _: any(one.exit for one in plane.cluster.learners(job_id)), job_id)
    await plane.set_desired(job_id, Desired.HALT)
    assert (await plane.rested(job_id)).status is Status.HALTED


@pytest.mark.parametrize(("retries", "becomes"), [(0, Status.FAILED), (3, Status.HALTED)])
async def test_who_had_failed_before_the_halt_is_not_tried_again_and_may_be_resumed_where_he_would_have_been(
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


async def test_who_lost_a_learner_while_it_was_halted_is_halted_and_may_resume(plane: ControlPlane) -> None:
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


async def test_halted_while_it_waits_for_its_next_attempt(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(retries={"max": 3, "backoff": "1h"})
    plane.helpers.fate(job_id, code=4)
    await plane.until(lambda job: job.counters.retries == 1 and not job.holds, job_id)
    job = await plane.set_desired(job_id, Desired.HALT)
    assert job.status is Status.HALTED


async def test_halted_while_its_last_attempt_is_still_given_back(plane: ControlPlane) -> None:
    await plane.start_pool()
    gate = plane.cluster.hold("teardown")
    job_id = await plane.submit(retries={"max": 3, "backoff": "0s"})
    plane.helpers.fate(job_id, code=4)
    await plane.until(lambda job: job.status is Status.QUEUED and job.holds, job_id)
    job = await plane.set_desired(job_id, Desired.HALT)
    assert job.status is Status.QUEUED
    await asyncio.sleep(10)
    gate.set()
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


async def test_a_job_resumes_only_when_its_hardware_is_given_back(plane: ControlPlane) -> None:
    await plane.start_pool()
    gate = plane.cluster.hold("teardown")
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=None)
    await plane.reached(job_id, Status.PROCESSING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.reached(job_id, Status.HALTED)
    with pytest.raises(IllegalTransition, match="still giving back"):
        await plane.set_desired(job_id, Desired.RUN)
    gate.set()
    await plane.rested(job_id)
    await plane.set_desired(job_id, Desired.RUN)


# --- kill --------------------------------------------------------------------------


async def test_a_job_that_waits_is_killed_at_once(plane: ControlPlane) -> None:
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


async def test_killed_while_it_fetches(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, download_s=100)
    await plane.reached(job_id, Status.DOWNLOADING)
    await plane.set_desired(job_id, Desired.KILL)
    await plane.rested(job_id, within_s=5)
    assert await plane.path(job_id) == [*PENDING, "DOWNLOADING", "KILLED"]


async def test_killed_while_it_runs_it_is_gone_at_once_and_nothing_is_stored(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(learners=2, grace="1h")
    plane.helpers.fate(job_id, run_s=None, on_term=None, store_s=None)
    await plane.reached(job_id, Status.PROCESSING)
    with_applied_key = await plane.set_desired(job_id, Desired.KILL)
    job = await plane.rested(job_id, within_s=1)
    assert (job.status, job.state.reason) == (Status.KILLED, "Killed")
    assert job.observed_generation == with_applied_key.generation
    assert plane.helpers.stored == []


async def test_a_kill_ends_a_halt_that_takes_its_time(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(grace="1h")
    plane.helpers.fate(job_id, run_s=None, on_term=None)
    await plane.reached(job_id, Status.PROCESSING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.reached(job_id, Status.HALTING)
    await plane.set_desired(job_id, Desired.KILL)
    await plane.rested(job_id, within_s=1)
    assert await plane.path(job_id) == [*RUNNING, "HALTING", "KILLED"]


async def test_a_kill_ends_the_storing_of_what_was_halted(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, run_s=None, store_s=None)
    await plane.reached(job_id, Status.PROCESSING)
    await plane.set_desired(job_id, Desired.HALT)
    await plane.until(lambda job: job.verdict is not None, job_id)
    await plane.set_desired(job_id, Desired.KILL)
    assert (await plane.rested(job_id, within_s=1)).status is Status.KILLED


async def test_killed_while_a_failed_job_is_stored_it_says_both(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, code=3, store_s=None)
    await plane.reached(job_id, Status.STORING)
    await plane.set_desired(job_id, Desired.KILL)
    job = await plane.rested(job_id, within_s=1)
    assert (job.status, job.state.reason) == (Status.KILLED, "Killed")
    assert "exited with code 3" in job.state.message
    assert job.observed_generation == job.generation


async def test_killed_while_a_failed_attempt_is_stored_there_is_no_other(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit(retries={"max": 3, "backoff": "0s"})
    plane.helpers.fate(job_id, code=3, store_s=None)
    await plane.reached(job_id, Status.STORING)
    await plane.set_desired(job_id, Desired.KILL)
    job = await plane.rested(job_id, within_s=1)
    assert (job.status, job.attempt.number) == (Status.KILLED, 1)


async def test_a_job_that_has_succeeded_is_not_killed_any_more(plane: ControlPlane) -> None:
    await plane.start_pool()
    job_id = await plane.submit()
    plane.helpers.fate(job_id, store_s=3)
    await plane.reached(job_id, Status.STORING)
    await plane.set_desired(job_id, Desired.KILL)
    job = await plane.rested(job_id)
    assert job.status is Status.COMPLETED
    assert len(plane.helpers.stored) == 1


async def test_killed_while_queued_and_still_giving_back_its_last_attempt(plane: ControlPlane) -> None:
    await plane.start_pool()
    gate = plane.cluster.hold("teardown")
    job_id = await plane.submit(retries={"max": 3, "backoff": "0s"})
    plane.helpers.fate(job_id, code=4)
    await plane.until(lambda job: job.status is Status.QUEUED and job.holds, job_id)
    assert (await plane.set_desired(job_id, Desired.KILL)).status is Status.QUEUED
    gate.set()
    job = await plane.rested(job_id)
    assert (job.status, job.attempt.number) == (Status.KILLED, 1)
    assert await plane.leftovers() == []
