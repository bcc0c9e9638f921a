"""How an attempt ends: the verdict, decided from the observed state of its learners. Pure.

First cause wins: of several failed learners the one whose process ended first by itself is the reason. Learners that
were stopped because of that failure carry a stop cause and are never the reason.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping

from services.core.domain.job import Job, Verdict
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.outages import is_outage
from services.core.domain.spec import JobSpec
from services.core.domain.status import PHASE_ORDER, Desired, Phase, Status


def decide_verdict(job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus], *, now: int) -> Verdict | None:
    """Returns how the current attempt ends, or None while it goes on.

    ``learners``: the reports of the current attempt, by learner name; of some there may be none yet. ``now``: Unix ms.

    Order of precedence: a kill, success, a failure, different data, a halt. Success comes before failure: once all
    deciding roles have succeeded, the failure of another role must not train the job again.
    """
    if job.desired is Desired.KILL:
        return Verdict(to=Status.KILLED, reason="Killed", message=f"killed by {job.requester}", time=now)
    if _completed(spec, learners):
        return Verdict(to=Status.COMPLETED, reason="", message="", time=now)
    failed = _first_failure(job, spec, learners, now)
    if failed is not None:
        return failed
    if job.desired is Desired.RUN and (changed := _mixed_data(job, spec, learners, now)) is not None:
        return changed
    if job.desired is Desired.HALT and sum(_is_over(learner) for learner in learners.values()) == spec.learners:
        return Verdict(to=Status.HALTED, reason=job.halt_reason, message=f"halted by {job.requester}", time=now)
    return None


def _deciding_roles(spec: JobSpec) -> list[str]:
    """The roles whose success is the job's: those with ``decides``, else all."""
    marked = [name for name, role in spec.roles.items() if role.decides]
    return marked or list(spec.roles)


def _completed(spec: JobSpec, learners: Mapping[str, LearnerStatus]) -> bool:
    """Whether all deciding roles finished acceptably and at least one of their learners succeeded.

    A role finished acceptably when all its learners succeeded, or, with ``on_failure: ignore``, when all have ended.
    """
    roles = _deciding_roles(spec)
    deciding = [learner for learner in learners.values() if learner.role in roles]
    for role in roles:
        finished = _is_over if spec.roles[role].on_failure == "ignore" else _succeeded
        if sum(finished(learner) for learner in deciding if learner.role == role) < spec.roles[role].count:
            return False
    return any(_succeeded(learner) for learner in deciding)


def _all_deciding_failed(spec: JobSpec, learners: Mapping[str, LearnerStatus]) -> bool:
    """Whether every learner of the deciding roles failed. Then ignored failures count too: none can succeed."""
    roles = _deciding_roles(spec)
    failed = sum(learner.role in roles and _failed(learner) for learner in learners.values())
    return failed == sum(spec.roles[role].count for role in roles)


def _succeeded(learner: LearnerStatus) -> bool:
    return learner.exit is not None and learner.exit.ok


def _failed(learner: LearnerStatus) -> bool:
    """Whether it failed by itself: its process, or its helper before the process started."""
    return learner.helper_failed or (learner.exit is not None and learner.exit.natural and not learner.exit.ok)


def _ran(learner: LearnerStatus) -> bool:
    """Whether its process surely started. Of a lost learner without a report of PROCESSING that is not known."""
    if learner.helper_failed:
        return False
    reported = PHASE_ORDER[learner.phase] >= PHASE_ORDER[Phase.PROCESSING]
    return reported or (learner.exit is not None and not learner.exit.lost)


def _end_time(learner: LearnerStatus, now: int) -> int:
    """When its process ended or its helper failed, in Unix ms."""
    return learner.exit.time if learner.exit is not None else learner.times.get(Phase.STORED.value, now)


def _is_over(learner: LearnerStatus) -> bool:
    return learner.exit is not None or _failed(learner)


def _first_failure(job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus], now: int) -> Verdict | None:
    """Returns the verdict for the failure that came first, or None where no failure ends the attempt."""
    failures = [learner for learner in learners.values() if _failed(learner)]
    # All learners start together. Before that, a failed learner would keep the others waiting for ever, even where its
    # failure is ignored.
    before_start = job.desired is Desired.RUN and not any(_ran(learner) for learner in learners.values())
    fatal = [learner for learner in failures if before_start or spec.roles[learner.role].on_failure != "ignore"]
    if not fatal and not _all_deciding_failed(spec, learners):
        return None
    first = min(fatal or failures, key=lambda learner: (_end_time(learner, now), learner.rank))
    reason, message = describe_failure(first)
    end = first.exit
    infrastructure = end.lost if end is not None else is_outage(first.reason)
    retry = infrastructure or _may_retry(job, spec, end)
    if retry and job.desired is Desired.HALT:
        return None  # instead of another attempt the job becomes HALTED, and its owner may resume it
    if retry:
        message += "; trying again" if infrastructure else _trying_again(job, spec)
    return Verdict(
        to=Status.QUEUED if retry else Status.FAILED, reason=reason, message=message, time=now, learner=first.name,
        exit_code=end.code if end else None, signal=end.signal if end else None, budgeted=not infrastructure,
    )  # fmt: skip


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
    retry = _may_retry(job, spec, None)
    return Verdict(
        to=Status.QUEUED if retry else Status.FAILED, reason="DataChanged",
        message=message + (_trying_again(job, spec) if retry else ""), time=now, learner=other.name, budgeted=True,
    )  # fmt: skip


def _trying_again(job: Job, spec: JobSpec) -> str:
    """The end of the message of an attempt that is followed by another one, which counts against ``retries.max``."""
    return f"; trying again (retry {job.counters.retries + 1} of {spec.retries.max})"


def _may_retry(job: Job, spec: JobSpec, end: Exit | None) -> bool:
    """Whether ``retries`` of the spec allows another attempt after this end; None: the helper failed."""
    if job.counters.retries >= spec.retries.max:
        return False
    return not spec.retries.on or (end is not None and f"exit:{end.shell_code}" in spec.retries.on)


def describe_failure(learner: LearnerStatus) -> tuple[str, str]:
    """Returns (reason: a stable word for machines, message: what happened and where to look)."""
    if learner.reason:
        return learner.reason, learner.message or f"learner {learner.name} could not start"
    end = learner.exit
    if end is None or end.lost:
        return "LearnerLost", f"learner {learner.name} disappeared: its process and the parent process are gone"
    if end.oom:
        return "OOMKilled", f"learner {learner.name} ran out of memory; raise resources.memory"
    if end.disk_exceeded:
        return "DiskExceeded", (
            f"learner {learner.name} was ended: {end.disk_exceeded}, a bound that the operator has set; "
            "write less, or remove files while it trains"
        )
    if end.port_taken:
        return "PortTaken", f"learner {learner.name} was ended: {end.port_taken}; use the ports of its own variables"
    if end.signal is not None:
        try:
            name = signal.Signals(end.signal).name
        except ValueError:
            name = f"signal {end.signal}"
        return "Signalled", f"learner {learner.name} was ended by {name}; see its log (rank {learner.rank})"
    return "ExitCode", f"learner {learner.name} exited with code {end.code}; see its log (rank {learner.rank})"
