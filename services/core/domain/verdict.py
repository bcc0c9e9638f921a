"""How an attempt ends: the verdict, decided from the observed state of its learners. Pure.

First cause wins: of several failed learners the one whose process ended first by itself is the reason. Learners that
were stopped because of that failure carry a stop cause and are never the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.core.domain.failure import (
    describe_failure,
    end_time,
    failed,
    is_infrastructure,
    may_retry,
    succeeded,
)
from services.core.domain.job import Job, Verdict
from services.core.domain.learner import LearnerStatus
from services.core.domain.restart import NODE_LOST, goes_on_without, is_restartable, survivors
from services.core.domain.spec import JobSpec, Role
from services.core.domain.status import PHASE_ORDER, Desired, Phase, Status


def decide_verdict(job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus], *, now: int) -> Verdict | None:
    """Returns how the current attempt ends, or None while it goes on.

    ``learners``: the reports of the current attempt, by learner name; of some there may be none yet. ``now``: Unix ms.

    Order of precedence: a kill, success, a failure, different data, a halt. Success comes before failure: once all
    deciding roles have succeeded, the failure of another role must not train the job again.
    """
    if job.desired is Desired.KILL:
        return Verdict(to=Status.KILLED, reason="Killed", message=f"killed by {job.requester}", time=now)
    left = survivors(job, spec, learners)
    if _completed(spec, learners, left):
        return Verdict(to=Status.COMPLETED, reason="", message="", time=now)
    failure = _first_failure(job, spec, learners, left, now)
    if failure is not None:
        return failure
    if job.desired is Desired.RUN and (changed := _mixed_data(job, spec, learners, now)) is not None:
        return changed
    if job.desired is Desired.HALT and sum(_is_over(learner) for learner in learners.values()) == spec.learners:
        return Verdict(to=Status.HALTED, reason=job.halt_reason, message=f"halted by {job.requester}", time=now)
    return None


def verdict_of_lost_node(
    job: Job, verdict: Verdict, learners: Mapping[str, LearnerStatus], *, now: int
) -> Verdict | None:
    """Returns what replaces the verdict of a learner's own failure, if the node of a sibling was lost; else None.

    The siblings of a lost learner fail within a moment, and the cluster needs some seconds to know of the loss. Such a
    failure is a consequence: it ends no job and uses up no retry. ``learners``: as for ``decide_verdict``, once all
    that can store have stored.
    """
    if job.desired is not Desired.RUN or not verdict.budgeted:
        return None
    lost = [learner for learner in learners.values() if learner.reason == NODE_LOST and learner.name != verdict.learner]
    if not lost:
        return None
    first = min(lost, key=lambda learner: learner.rank)
    reason, message = describe_failure(first)
    message += f"; {verdict.learner} failed after it ({verdict.reason}); trying again"
    return Verdict(to=Status.QUEUED, reason=reason, message=message, time=now, learner=first.name)


def _deciding_roles(spec: JobSpec) -> frozenset[str]:
    """The roles whose success is the job's: those with ``decides``, else all."""
    marked = frozenset(name for name, role in spec.roles.items() if role.decides)
    return marked or frozenset(spec.roles)


def _completed(spec: JobSpec, learners: Mapping[str, LearnerStatus], left: Mapping[str, int]) -> bool:
    """Whether all deciding roles finished acceptably and at least one of their learners succeeded."""
    of_roles: dict[str, list[LearnerStatus]] = {name: [] for name in _deciding_roles(spec)}
    for learner in learners.values():
        if learner.role in of_roles:
            of_roles[learner.role].append(learner)
    if not all(_finished(spec.roles[name], of_role, left.get(name, 0)) for name, of_role in of_roles.items()):
        return False
    return any(succeeded(learner) for of_role in of_roles.values() for learner in of_role)


def _finished(role: Role, of_role: Sequence[LearnerStatus], left: int) -> bool:
    """Whether a role finished acceptably: all its learners succeeded, or all that can be expected.

    With ``on_failure: ignore`` all have ended. With ``min`` so many succeeded, and the others were lost. ``left``: the
    survivors of a role with ``min``.
    """
    if role.on_failure == "ignore":
        return sum(_is_over(learner) for learner in of_role) >= role.count
    good = sum(succeeded(learner) for learner in of_role)
    if role.min is None:
        return good >= role.count
    by_own_fault = any(failed(learner) and not is_infrastructure(learner) for learner in of_role)
    return good >= role.min and good == left and not by_own_fault


def _all_deciding_failed(job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus]) -> bool:
    """Whether every learner of the deciding roles failed. Then ignored failures count too: none can succeed."""
    roles = _deciding_roles(spec)
    failures = sum(
        learner.role in roles and failed(learner) and not is_restartable(job, spec, learner)
        for learner in learners.values()
    )
    return failures == sum(spec.roles[role].count for role in roles)


def _ran(learner: LearnerStatus) -> bool:
    """Whether its process surely started. Of a lost learner without a report of PROCESSING that is not known."""
    if learner.helper_failed:
        return False
    reported = PHASE_ORDER[learner.phase] >= PHASE_ORDER[Phase.PROCESSING]
    return reported or (learner.exit is not None and not learner.exit.lost)


def _is_over(learner: LearnerStatus) -> bool:
    return learner.exit is not None or failed(learner)


def _first_failure(
    job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus], left: Mapping[str, int], now: int
) -> Verdict | None:
    """Returns the verdict for the failure that came first, or None where no failure ends the attempt."""
    failures = [learner for learner in learners.values() if failed(learner)]
    # All learners start together. Before that, a failed learner would keep the others waiting for ever, even where its
    # failure is ignored.
    has_run = bool(job.attempt.reruns) or any(_ran(learner) for learner in learners.values())
    before_start = job.desired is Desired.RUN and not has_run
    fatal = [learner for learner in failures if before_start or not goes_on_without(job, spec, left, learner)]
    if not fatal and not _all_deciding_failed(job, spec, learners):
        return None
    first = min(fatal or failures, key=lambda learner: (end_time(learner, now), learner.rank))
    reason, message = describe_failure(first, spec)
    end = first.exit
    infrastructure = is_infrastructure(first)
    retry = infrastructure or may_retry(job, spec, end)
    if retry and job.desired is Desired.HALT:
        return None  # instead of another attempt the job becomes HALTED, and its owner may resume it
    if retry:
        message += "; trying again" if infrastructure else _trying_again(job, spec)
    return Verdict(
        to=Status.QUEUED if retry else Status.FAILED,
        reason=reason,
        message=message,
        time=now,
        learner=first.name,
        exit_code=end.code if end else None,
        signal=end.signal if end else None,
        budgeted=not infrastructure,
    )


def _mixed_data(job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus], now: int) -> Verdict | None:
    """Returns the verdict for learners that fetched different versions of the data, on different nodes.

    On one node their helpers compare the versions themselves.
    """
    fetched = sorted(
        (learner for learner in learners.values() if learner.data_digest), key=lambda learner: learner.rank
    )
    other = next((learner for learner in fetched if learner.data_digest != fetched[0].data_digest), None)
    if other is None:
        return None
    message = (
        f"learners {fetched[0].name} and {other.name} fetched different versions of the data, which changed "
        "meanwhile; a gang must not train on two"
    )
    retry = may_retry(job, spec, None)
    return Verdict(
        to=Status.QUEUED if retry else Status.FAILED,
        reason="DataChanged",
        message=message + (_trying_again(job, spec) if retry else ""),
        time=now,
        learner=other.name,
        budgeted=True,
    )


def _trying_again(job: Job, spec: JobSpec) -> str:
    """The end of the message of an attempt that is followed by another one, which counts against ``retries.max``."""
    return f"; trying again (retry {job.counters.retries + 1} of {spec.retries.max})"
