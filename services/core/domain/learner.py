"""Learners as the Guardian sees them, and the pure decision what their state means for the job.

First cause wins: of several failed learners the one that ended first by itself names the reason; those that were
stopped because of it carry a stop mark and explain nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from services.core.domain.job import Job, Verdict
from services.core.domain.status import PHASE_ORDER, Desired, Phase, Status

if TYPE_CHECKING:
    # Helpers import this module at every learner's start, and must not wait for pydantic.
    from services.core.domain.spec import JobSpec


def learner_name(role: str, index: int) -> str:
    """``worker-0``: the role and the place within the role."""
    return f"{role}-{index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a learner's process ended. Exactly one of ``code`` and ``signal`` is set, unless it was ``lost``."""

    time: int
    code: int | None = None
    signal: int | None = None
    stop_cause: str = ""
    """halt | kill | peer | deadline: it was told to stop before it ended. Empty: it ended by itself."""
    lost: bool = False
    """It vanished with its parent or its machine; nobody saw it end."""
    oom: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def natural(self) -> bool:
        return not self.stop_cause

    @property
    def ok(self) -> bool:
        """It succeeded by itself. A learner that exits 0 because it was told to stop has only obeyed."""
        return self.natural and self.code == 0 and not self.lost

    @property
    def shell_code(self) -> int | None:
        """The code as a shell would show it, and as people write it: 137 is SIGKILL."""
        return self.code if self.signal is None else 128 + self.signal


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerStatus:
    """What a helper reports: the value of ``/jobs/<id>/learners/<name>``. Guarded by rising (attempt, seq)."""

    name: str
    role: str
    rank: int
    """Global, from 0: WEFT_RANK."""
    attempt: int
    seq: int
    phase: Phase
    times: Mapping[str, int] = field(default_factory=dict)
    """Phase -> when it was entered, Unix ms."""
    exit: Exit | None = None
    reason: str = ""
    """Set where the helper itself failed: DataStoreDenied, EnvironmentFailed, CodeInvalid, NoSpace, ..."""
    message: str = ""
    env_digest: str = ""
    data_digest: str = ""
    schema: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def helper_failed(self) -> bool:
        """Its helper failed before its process ran: it is STORED, and yet it never got beyond fetching."""
        return bool(self.reason) and self.exit is None


def job_status(learners: Iterable[LearnerStatus], expected: int) -> Status:
    """The job's place on its path: that of its slowest learner; PROCESSING as soon as the first process runs."""
    phases = [Phase.DOWNLOADING if one.helper_failed else one.phase for one in learners]
    if not phases or all(phase is Phase.WAITING for phase in phases):
        return Status.PENDING
    if len(phases) == expected and all(PHASE_ORDER[phase] >= PHASE_ORDER[Phase.STORING] for phase in phases):
        return Status.STORING
    if any(PHASE_ORDER[phase] >= PHASE_ORDER[Phase.PROCESSING] for phase in phases):
        return Status.PROCESSING
    return Status.DOWNLOADING


def step_times(learners: Iterable[LearnerStatus]) -> dict[Status, int]:
    """When the job entered each step: the first learner to begin it, the last to leave for STORING."""
    learners = list(learners)

    def seen(phase: Phase) -> list[int]:
        return [learner.times[phase.value] for learner in learners if phase.value in learner.times]

    out = {Status(phase.value): min(seen(phase)) for phase in (Phase.DOWNLOADING, Phase.PROCESSING) if seen(phase)}
    return out | ({Status.STORING: max(seen(Phase.STORING))} if seen(Phase.STORING) else {})


def decide_verdict(job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus], *, now: int) -> Verdict | None:
    """How the attempt ends, or None while it goes on. Kill > facts > halt > run.

    ``learners`` holds those of the current attempt, by name. Success comes before failure: once all who decide have
    succeeded, nobody else's end can make the job train again.
    """
    if job.desired is Desired.KILL:
        return Verdict(to=Status.KILLED, reason="Killed", message="killed by its owner", time=now)
    if _completed(spec, learners):
        return Verdict(to=Status.COMPLETED, reason="", message="", time=now)
    failed = _first_failure(job, spec, learners, now)
    if failed is not None:
        return failed
    if job.desired is Desired.HALT and sum(_is_over(one) for one in learners.values()) == spec.learners:
        return Verdict(to=Status.HALTED, reason="Halted", message="halted by its owner", time=now)
    return None


def _deciding(spec: JobSpec) -> list[str]:
    named = [name for name, role in spec.roles.items() if role.decides]
    return named or list(spec.roles)


def _completed(spec: JobSpec, learners: Mapping[str, LearnerStatus]) -> bool:
    """Of those who decide, all whose failure counts have succeeded; the others have ended, and somebody succeeded."""
    deciding = _deciding(spec)
    theirs = [one for one in learners.values() if one.role in deciding]
    for role in deciding:
        ended = _is_over if spec.roles[role].on_failure == "ignore" else _succeeded
        if sum(ended(one) for one in theirs if one.role == role) < spec.roles[role].count:
            return False
    return any(_succeeded(one) for one in theirs)


def _hopeless(spec: JobSpec, learners: Mapping[str, LearnerStatus]) -> bool:
    """All who decide have failed: an ignored failure counts once nobody is left who could succeed."""
    deciding = _deciding(spec)
    failed = sum(one.role in deciding and _failed(one) for one in learners.values())
    return failed == sum(spec.roles[role].count for role in deciding)


def _succeeded(one: LearnerStatus) -> bool:
    return one.exit is not None and one.exit.ok


def _failed(one: LearnerStatus) -> bool:
    """By itself: its process, or its helper before there was one."""
    return one.helper_failed or (one.exit is not None and one.exit.natural and not one.exit.ok)


def _ran(one: LearnerStatus) -> bool:
    """Its process was started: that of one which was merely lost perhaps not."""
    if one.helper_failed:
        return False
    return PHASE_ORDER[one.phase] >= PHASE_ORDER[Phase.PROCESSING] or (one.exit is not None and not one.exit.lost)


def _ended(one: LearnerStatus, now: int) -> int:
    """When its process ended, or its helper gave up."""
    return one.exit.time if one.exit is not None else one.times.get(Phase.STORED.value, now)


def _is_over(one: LearnerStatus) -> bool:
    return one.exit is not None or _failed(one)


def _first_failure(job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus], now: int) -> Verdict | None:
    failures = [one for one in learners.values() if _failed(one)]
    # A start is everybody's: before it, whoever fails keeps the others waiting for ever, ignored or not.
    together = job.desired is Desired.RUN and not any(_ran(one) for one in learners.values())
    fatal = [one for one in failures if together or spec.roles[one.role].on_failure != "ignore"]
    if not fatal and not _hopeless(spec, learners):
        return None
    first = min(fatal or failures, key=lambda one: (_ended(one, now), one.rank))
    reason, message = describe_failure(first)
    end = first.exit
    infrastructure = end is not None and end.lost
    retry = infrastructure or _in_budget(job, spec, end)
    if retry and job.desired is Desired.HALT:
        return None  # it would have been tried again: halted instead, its owner may resume it
    if retry:
        left = "" if infrastructure else f" (retry {job.counters.retries + 1} of {spec.retries.max})"
        message = f"{message}; trying again{left}"
    return Verdict(
        to=Status.QUEUED if retry else Status.FAILED, reason=reason, message=message, time=now, learner=first.name,
        exit_code=end.code if end else None, signal=end.signal if end else None, budgeted=not infrastructure,
    )  # fmt: skip


def _in_budget(job: Job, spec: JobSpec, end: Exit | None) -> bool:
    if job.counters.retries >= spec.retries.max:
        return False
    return not spec.retries.on or (end is not None and f"exit:{end.shell_code}" in spec.retries.on)


def describe_failure(one: LearnerStatus) -> tuple[str, str]:
    """A stable reason and a sentence that says what to look at."""
    if one.reason:
        return one.reason, one.message or f"learner {one.name} could not start"
    end = one.exit
    if end is None or end.lost:
        return "LearnerLost", f"learner {one.name} vanished: its process and its parent are gone"
    if end.oom:
        return "OOMKilled", f"learner {one.name} ran out of memory; ask for more with resources.memory"
    if end.signal is not None:
        try:
            name = signal.Signals(end.signal).name
        except ValueError:
            name = f"signal {end.signal}"
        return "Signalled", f"learner {one.name} was ended by {name}; its log says more (rank {one.rank})"
    return "ExitCode", f"learner {one.name} exited with code {end.code}; its log says more (rank {one.rank})"
