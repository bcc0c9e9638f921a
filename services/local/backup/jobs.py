"""What becomes of a job when it is restored on another platform: pure.

Nothing of it runs there, whatever its document says. So an attempt that was under way is over, and the job waits for
another one, which resumes from the checkpoints it had stored: what its owner wanted goes on to hold. Only where its
attempt's end was decided already, and needed nothing more from its learners, that end stands. A job that had succeeded
but had not stored everything yet runs again: its results may not be in the backup.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from services.core.domain.job import Job, moved, released
from services.core.domain.status import ADMITTED, Desired, Status

ACTOR: Final = "restore"
REASON: Final = "Restored"
_STANDS: Final = frozenset({Status.FAILED, Status.KILLED, Status.HALTED})


def as_restored(job: Job, *, halted: bool, now: int, message: str) -> Job:
    """The job as it is on the new platform. ``halted``: whatever waits there waits for its owner to resume it."""
    if job.status in ADMITTED:
        job = _over(job, now=now, message=message)
    if job.holds:
        job = released(job, now=now)
    if halted and job.status is Status.QUEUED:
        job = replace(job, desired=Desired.HALT, generation=job.generation + 1)
        job = moved(job, Status.HALTED, actor=ACTOR, now=now, reason=REASON, message=f"{message}; resume it to go on")
        job = replace(job, observed_generation=job.generation)
    return job


def _over(job: Job, *, now: int, message: str) -> Job:
    """The job without the attempt that was under way."""
    verdict = job.verdict
    to = Status.QUEUED
    if job.desired is Desired.KILL:
        to = Status.KILLED
    elif verdict is not None and verdict.to in _STANDS:
        to = verdict.to
    elif job.desired is Desired.HALT or job.status is Status.HALTING:
        to = Status.HALTED
    if to is Status.QUEUED:
        message = f"{message}; attempt {job.attempt.number} was under way there, and goes on from what it had stored"
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
