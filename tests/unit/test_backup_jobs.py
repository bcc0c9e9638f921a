"""A job on the platform it is restored on: nothing of it runs, and what its owner wants goes on to hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.core.domain.job import (
    PLATFORM,
    Claim,
    Job,
    Verdict,
    admitted,
    advanced,
    check_replace,
    moved,
    new_job,
    set_desired,
)
from services.core.domain.status import ADMITTED, RESTING, Desired, Status
from services.local.backup.jobs import as_restored

NOW = 5_000
SAVED = 4_000
"""When the backup was made, Unix ms."""
MESSAGE = "from the backup of yesterday"


def queued() -> Job:
    return new_job(
        job_id="j1", tenant="t", user="u", spec={}, code_digest="", idem="j1", idem_digest="", trace="", now=1_000
    )


def running(status: Status = Status.PROCESSING) -> Job:
    job = admitted(queued(), placement={"worker-0": "here"}, dispatcher_term=3, now=2_000)
    job = replace(job, guardian=Claim(term=2, nonce="n", holder="m1"))
    if status is Status.HALTING:
        job = advanced(
            set_desired(job, Desired.HALT, actor="user:u", now=2_500), Status.PROCESSING, actor="g", now=2_500
        )
        return moved(job, Status.HALTING, actor="guardian", now=2_600)
    return advanced(job, status, actor="guardian", now=2_500)


def judged(job: Job, to: Status) -> Job:
    return replace(job, verdict=Verdict(to=to, reason="Why", message="because", time=3_000))


def restored(job: Job, *, halted: bool = False) -> Job:
    return as_restored(job, halted=halted, now=NOW, saved=SAVED, message=MESSAGE)


@pytest.mark.parametrize("status", [Status.PENDING, Status.DOWNLOADING, Status.PROCESSING, Status.STORING])
def test_running_job_is_queued_again_with_the_reason_in_its_history(status: Status) -> None:
    before = running(status)
    job = restored(before)
    assert (job.status, job.holds, job.guardian.holder) == (Status.QUEUED, False, "")
    assert (job.attempt.number, job.counters.restarts, job.counters.retries) == (1, 1, 0)
    event = job.history_tail[-1]
    assert (event.from_status, event.to, event.actor, event.reason) == (status, Status.QUEUED, "restore", "Restored")
    assert "yesterday" in event.message
    assert "attempt 1" in event.message
    assert admitted(job, placement={}, dispatcher_term=4, now=NOW).attempt.number == 2


def test_hardware_that_a_job_held_at_the_backup_counts_until_then_and_not_until_the_restore() -> None:
    assert restored(running()).released == SAVED
    late = replace(running(), updated=SAVED + 5)  # its document was saved later than the backup began
    assert restored(late).released == SAVED + 5


def test_queued_job_is_restored_unchanged() -> None:
    assert restored(queued()) == queued()


@pytest.mark.parametrize("to", [Status.COMPLETED, Status.FAILED, Status.KILLED])
def test_ended_job_is_restored_as_released(to: Status) -> None:
    ended = moved(running(Status.STORING), to, actor="guardian", now=3_000)
    job = restored(ended)
    assert job.holds is False
    assert replace(job, released=None, guardian=ended.guardian, updated=ended.updated) == ended


@pytest.mark.parametrize("to", [Status.FAILED, Status.KILLED, Status.HALTED])
def test_final_verdict_is_kept(to: Status) -> None:
    job = restored(judged(running(), to))
    assert (job.status, job.holds) == (to, False)
    assert job.history_tail[-1].reason == "Why"
    assert "because" in job.history_tail[-1].message


def test_success_with_results_not_yet_stored_runs_again() -> None:
    assert restored(judged(running(Status.STORING), Status.COMPLETED)).status is Status.QUEUED


def test_job_to_be_killed_or_halted_does_not_run_again() -> None:
    killed = set_desired(running(), Desired.KILL, actor="user:u", now=3_000)
    assert restored(killed).status is Status.KILLED
    halted = set_desired(running(), Desired.HALT, actor="user:u", now=3_000)
    assert restored(halted).status is Status.HALTED
    assert restored(running(Status.HALTING)).status is Status.HALTED


@pytest.mark.parametrize("before", [queued(), running(), judged(running(), Status.QUEUED)], ids=lambda j: j.status)
def test_halted_restore_queues_no_job(before: Job) -> None:
    job = restored(before, halted=True)
    assert (job.status, job.desired, job.at_rest) == (Status.HALTED, Desired.HALT, True)
    assert "resume" in job.history_tail[-1].message
    assert set_desired(job, Desired.RUN, actor="user:u", now=NOW).status is Status.QUEUED


def test_job_that_the_stop_of_the_platform_halted_is_queued_by_the_next_start_unless_the_restore_is_halted() -> None:
    stopped = set_desired(queued(), Desired.HALT, actor=PLATFORM, now=3_000)
    assert (stopped.state.status, stopped.halt_reason) == (Status.HALTED, "PlatformStopped")
    assert restored(stopped).halted_by_platform
    assert not restored(stopped, halted=True).halted_by_platform


@pytest.mark.parametrize("halt", ["", "halted"])
@pytest.mark.parametrize("desired", list(Desired))
@pytest.mark.parametrize("to", [None, *sorted(RESTING), Status.QUEUED])
@pytest.mark.parametrize("status", sorted(ADMITTED | {Status.QUEUED}))
def test_status_machine_allows_every_restored_status(
    status: Status, to: Status | None, desired: Desired, halt: str
) -> None:
    job = queued() if status is Status.QUEUED else running(status)
    if desired is not Desired.RUN:
        job = replace(job, desired=desired, generation=job.generation + 1)
    if to is not None:
        job = judged(job, to)
    now = restored(job, halted=bool(halt))
    check_replace(job, now)
    assert not now.holds
    assert now.status in RESTING | {Status.QUEUED}
    if desired is Desired.KILL:
        assert now.status is Status.KILLED if job.holds else now.status in {Status.QUEUED, Status.HALTED}
