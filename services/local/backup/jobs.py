"""The state of a job after it is restored on another platform: pure.

No learner of it runs there, whatever its document says. A running attempt is therefore ended and the job is queued for
another one, which resumes from its stored checkpoints; ``desired`` still holds. A verdict that needs nothing more from
the learners (FAILED, KILLED, HALTED) is kept. A job that had succeeded but had not stored all results runs again,
because its results may be missing from the backup.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from services.core.domain.job import Job, moved, released
from services.core.domain.status import ADMITTED, Desired, Status

ACTOR: Final = "restore"
REASON: Final = "Restored"
_KEPT_VERDICTS: Final = frozenset({Status.FAILED, Status.KILLED, Status.HALTED})


def as_restored(job: Job, *, halted: bool, now: int, saved: int, message: str) -> Job:
    """The job as it is on the new platform. With ``halted``, jobs that would be queued are halted instead.

    ``saved``: Unix ms of the backup. What the job held counts until then, not until its restore months later.
    """
    held_until = min(now, max(saved, job.updated))
    if job.status in ADMITTED:
        job = _without_attempt(job, now=now, message=message)
    if job.holds:
        job = replace(released(job, now=now), released=held_until)
    if halted and job.status is Status.QUEUED:
        job = replace(job, desired=Desired.HALT, desired_by=ACTOR, generation=job.generation + 1)
        job = moved(
            job, Status.HALTED, actor=ACTOR, now=now, reason=REASON, message=f"{message}; resume it to continue"
        )
        job = replace(job, observed_generation=job.generation)
    if halted and job.halted_by_platform:
        job = replace(job, desired_by=ACTOR)  # the next `weft up` must not queue it again
    return job


def _without_attempt(job: Job, *, now: int, message: str) -> Job:
    """The job after the end of the attempt that was running."""
    verdict = job.verdict
    to = Status.QUEUED
    if job.desired is Desired.KILL:
        to = Status.KILLED
    elif verdict is not None and verdict.to in _KEPT_VERDICTS:
        to = verdict.to
    elif job.desired is Desired.HALT or job.status is Status.HALTING:
        to = Status.HALTED
    if to is Status.QUEUED:
        message = (
            f"{message}; attempt {job.attempt.number} was running there: the next one resumes from its checkpoints"
        )
        counters = replace(job.counters, restarts=job.counters.restarts + 1)
        job = moved(job, to, actor=ACTOR, now=now, reason=REASON, message=message)
        return replace(job, counters=counters, verdict=None, not_before=0)
    if verdict is not None and verdict.to is to:
        reason, message = verdict.reason, f"{verdict.message} ({message})" if verdict.message else message
    else:
        reason = REASON
    if to is Status.HALTED and job.status is not Status.HALTING:
        job = moved(job, Status.HALTING, actor=ACTOR, now=now, reason=reason)
    job = moved(job, to, actor=ACTOR, now=now, reason=reason, message=message)
    return replace(job, observed_generation=job.generation)
