"""The failure of one learner: did it fail, through whose fault, and what do people read. Pure."""

from __future__ import annotations

import signal

from services.core.domain.job import Job
from services.core.domain.learner import Exit, LearnerStatus
from services.core.domain.outages import is_outage
from services.core.domain.spec import JobSpec
from services.core.domain.status import Phase
from services.core.domain.units import format_bytes


def succeeded(learner: LearnerStatus) -> bool:
    """Whether its process ended by itself with 0."""
    return learner.exit is not None and learner.exit.ok


def failed(learner: LearnerStatus) -> bool:
    """Whether it failed by itself: its process, or its helper before the process started."""
    return learner.helper_failed or (learner.exit is not None and learner.exit.natural and not learner.exit.ok)


def end_time(learner: LearnerStatus, now: int) -> int:
    """When its process ended or its helper failed, in Unix ms."""
    return learner.exit.time if learner.exit is not None else learner.times.get(Phase.STORED.value, now)


def is_infrastructure(learner: LearnerStatus) -> bool:
    """Whether the failure is no fault of the job: a lost machine, an outage. Such failures use up no retry."""
    return learner.exit.lost if learner.exit is not None else is_outage(learner.reason)


def may_retry(job: Job, spec: JobSpec, end: Exit | None) -> bool:
    """Whether ``retries`` of the spec allows another try after this end; None: the helper failed."""
    if job.counters.retries >= spec.retries.max:
        return False
    return not spec.retries.on or (end is not None and f"exit:{end.shell_code}" in spec.retries.on)


def describe_failure(learner: LearnerStatus, spec: JobSpec | None = None) -> tuple[str, str]:
    """Returns (reason: a stable word for machines, message: what happened and where to look).

    ``spec``: of its job; with it the message says which limit was reached.
    """
    if learner.reason:
        return learner.reason, learner.message or f"learner {learner.name} could not start"
    end = learner.exit
    if end is None or end.lost:
        return "LearnerLost", f"learner {learner.name} disappeared: its process and the parent process are gone"
    if end.oom:
        return "OOMKilled", f"learner {learner.name} ran out of memory{_memory_advice(learner, spec)}"
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


def _memory_advice(learner: LearnerStatus, spec: JobSpec | None) -> str:
    if spec is None or learner.role not in spec.roles:
        return "; raise resources.memory"
    limit = format_bytes(spec.role_resources(learner.role).memory)
    return f": it used more than its limit of {limit}; raise {spec.memory_field(learner.role)}"
