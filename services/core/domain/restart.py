"""Which learner of a running attempt is started again by itself, and which failures the others survive. Pure.

docs/adr/0023-restart-of-one-learner.md. ``on_failure`` of a role is for learners that fail by themselves, ``min`` for
learners that are lost: as long as ``min`` of the role are left the others go on, and a lost one comes back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from services.core.domain.failure import describe_failure, end_time, failed, is_infrastructure, may_retry
from services.core.domain.job import Job, Rerun
from services.core.domain.learner import LearnerStatus, learner_name
from services.core.domain.spec import JobSpec
from services.core.domain.status import PHASE_ORDER, Desired, Phase

NODE_LOST: Final = "NodeLost"
"""Reason of a learner whose machine the cluster does not reach: nothing proves that its processes have ended."""
AFTER_LOSS_MS: Final = 1_000
AFTER_LOSS_MOST_MS: Final = 10_000
"""First and longest back-off after a lost machine, in milliseconds: the loss is not the job's fault, so it is short."""
BACKOFF_MOST_MS: Final = 300_000
"""Longest back-off after a failure of the job itself, unless its owner sets a longer one."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The next learner to be started again."""

    learner: str
    reason: str
    message: str
    budgeted: bool
    """It counts against ``retries.max``."""


def back_off_ms(first_ms: int, times: int, most_ms: int) -> int:
    """Doubles from ``first_ms`` with each of the ``times`` up to ``most_ms``. A longer ``first_ms`` stays as it is."""
    doubled: int = first_ms * 2 ** min(times - 1, 20)
    return max(first_ms, min(doubled, most_ms))


def survivors(job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus]) -> dict[str, int]:
    """How many learners of a running attempt run or have succeeded, for each role with a ``min``.

    They are counted once for all failures: of a large gang whose machines are lost, all learners fail together.
    """
    return {
        name: sum(
            not _is_away(job, learner, learners.get(learner))
            for learner in (learner_name(name, index) for index in range(role.count))
        )
        for name, role in spec.roles.items()
        if role.min is not None
    }


def _is_away(job: Job, name: str, learner: LearnerStatus | None) -> bool:
    """Whether it has failed, or is being started again and does not run yet."""
    if learner is not None and failed(learner):
        return True
    runs = learner is not None and PHASE_ORDER[learner.phase] >= PHASE_ORDER[Phase.PROCESSING]
    return job.attempt.run_of(name) > 1 and not runs


def goes_on_without(job: Job, spec: JobSpec, left: Mapping[str, int], learner: LearnerStatus) -> bool:
    """Whether a running attempt goes on although this learner of it has failed. ``left``: see ``survivors``."""
    role = spec.roles[learner.role]
    enough = role.min is not None and left[learner.role] >= role.min
    if role.on_failure == "ignore":
        return enough or role.min is None
    if role.on_failure == "restart" and is_restartable(job, spec, learner):
        return True
    return enough and is_infrastructure(learner)


def is_restartable(job: Job, spec: JobSpec, learner: LearnerStatus) -> bool:
    """Whether a failed learner may be started again. While its machine is lost it may still run, so it may not."""
    role = spec.roles[learner.role]
    if is_infrastructure(learner):
        rejoins = role.on_failure == "restart-gang" and role.min is not None
        return learner.reason != NODE_LOST and (role.on_failure == "restart" or rejoins)
    return role.on_failure == "restart" and may_retry(job, spec, learner.exit)


def next_restart(job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus], *, now: int) -> Restart | None:
    """The learner that failed first of those that are to be started again now; None: there is none.

    A learner that failed by itself is started again once its helper has stored everything, or ``store_timeout`` is
    over. One at a time: each may use up a retry. ``now``: Unix ms.
    """
    if job.desired is not Desired.RUN or job.attempt.started is None:
        return None
    failures = [learner for learner in learners.values() if failed(learner) and is_restartable(job, spec, learner)]
    left = survivors(job, spec, learners) if failures else {}
    ready = [
        learner for learner in failures if goes_on_without(job, spec, left, learner) and _is_settled(spec, learner, now)
    ]
    first = min(ready, key=lambda learner: (end_time(learner, now), learner.rank), default=None)
    if first is None:
        return None
    return Restart(first.name, *describe_failure(first, spec), budgeted=not is_infrastructure(first))


def _is_settled(spec: JobSpec, learner: LearnerStatus, now: int) -> bool:
    lost = learner.exit is not None and learner.exit.lost
    return lost or learner.phase is Phase.STORED or now >= end_time(learner, now) + spec.store_timeout


def restarted(job: Job, spec: JobSpec, restart: Restart, *, now: int) -> Job:
    """The job with the decision, its count and its back-off. No effect on a job with a verdict. ``now``: Unix ms."""
    if job.verdict is not None:
        return job
    run = job.attempt.run_of(restart.learner) + 1
    retries = job.counters.retries + restart.budgeted
    if restart.budgeted:
        wait_ms = back_off_ms(spec.retries.backoff, retries, BACKOFF_MOST_MS)
        count = f" (retry {retries} of {spec.retries.max})"
    else:
        wait_ms, count = back_off_ms(AFTER_LOSS_MS, run - 1, AFTER_LOSS_MOST_MS), ""
    rerun = Rerun(
        run=run,
        time=now,
        not_before=now + wait_ms,
        reason=restart.reason,
        message=restart.message,
        budgeted=restart.budgeted,
    )
    message = f"{restart.message}; {restart.learner} alone is started again{count}"
    return replace(
        job,
        attempt=replace(job.attempt, reruns={**job.attempt.reruns, restart.learner: rerun}),
        counters=replace(job.counters, retries=retries),
        state=replace(job.state, reason=restart.reason, message=message),
        updated=now,
    )


def late_rerun(
    job: Job,
    spec: JobSpec,
    learners: Mapping[str, LearnerStatus],
    *,
    now: int,
    timeout_ms: float,
    hopeless: Collection[str] = (),
) -> str | None:
    """A learner that should run again, does not after ``timeout_ms``, and that its role cannot do without.

    None: there is none. ``now``: Unix ms. ``hopeless``: learners for which waiting does not help.
    """
    left = survivors(job, spec, learners) if job.attempt.reruns else {}
    for name, rerun in job.attempt.reruns.items():
        learner = learners.get(name)
        role = name.rpartition("-")[0]
        least = spec.roles[role].min
        spared = least is not None and left[role] >= least
        waits = _is_away(job, name, learner) and not (learner is not None and failed(learner))
        if waits and not spared and (name in hopeless or now > rerun.not_before + timeout_ms):
            return name
    return None


def as_running(job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus]) -> dict[str, LearnerStatus]:
    """``learners``, where a failed one that is started again counts as running: the job does not store yet."""
    return {
        name: _running(learner) if failed(learner) and is_restartable(job, spec, learner) else learner
        for name, learner in learners.items()
    }


def _running(learner: LearnerStatus) -> LearnerStatus:
    last = Phase.PROCESSING
    if Phase.PROCESSING.value not in learner.times:
        last = min(learner.phase, Phase.DOWNLOADING, key=PHASE_ORDER.__getitem__)
    times = {phase: time for phase, time in learner.times.items() if PHASE_ORDER[Phase(phase)] <= PHASE_ORDER[last]}
    return replace(learner, phase=last, times=times, exit=None, reason="", message="")
