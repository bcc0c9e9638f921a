"""The observed state of learners, and pure functions that decide the job's status and verdict from it.

First cause wins: of several failed learners the one whose process ended first by itself is the reason. Learners that
were stopped because of that failure carry a stop cause and are never the reason.
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
    """Returns ``<role>-<index>``, e.g. ``worker-0``; ``index`` counts from 0 within the role."""
    return f"{role}-{index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a learner's process ended. Exactly one of ``code`` and ``signal`` is set, unless it was ``lost``."""

    time: int
    """Unix ms."""
    code: int | None = None
    signal: int | None = None
    stop_cause: str = ""
    """halt | kill | peer | deadline: why the platform stopped it. Empty: it ended by itself."""
    lost: bool = False
    """It disappeared with its parent process or its machine, so its exit code is unknown."""
    oom: bool = False
    """It was killed for lack of memory."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def natural(self) -> bool:
        """Whether it ended by itself, without a stop by the platform."""
        return not self.stop_cause

    @property
    def ok(self) -> bool:
        """Whether it succeeded by itself. An exit with 0 after a stop by the platform is no success."""
        return self.natural and self.code == 0 and not self.lost

    @property
    def shell_code(self) -> int | None:
        """The exit code as a shell reports it: 128 + signal after a signal, e.g. 137 for SIGKILL."""
        return self.code if self.signal is None else 128 + self.signal


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerStatus:
    """A helper's report of its learner: the value of ``/jobs/<id>/learners/<name>`` in the status store.

    (attempt, seq) rises with each report. A report with a lower pair than the stored one is refused.
    """

    name: str
    """``<role>-<index>``, e.g. ``worker-0``."""
    role: str
    rank: int
    """Global rank, from 0: WEFT_RANK."""
    attempt: int
    seq: int
    phase: Phase
    times: Mapping[str, int] = field(default_factory=dict)
    """Phase -> when it was entered, Unix ms."""
    exit: Exit | None = None
    """How the learner's process ended; None: it has not, or it never started."""
    reason: str = ""
    """Set where the helper failed: DataStoreDenied, EnvironmentFailed, CodeInvalid, NoSpace, ...; else empty."""
    message: str = ""
    """The failure of the helper, for people."""
    env_digest: str = ""
    data_digest: str = ""
    schema: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def helper_failed(self) -> bool:
        """Whether its helper failed before the process ran. Its phase is STORED although it only downloaded."""
        return bool(self.reason) and self.exit is None


def job_status(learners: Iterable[LearnerStatus], expected: int) -> Status:
    """Returns the status of a job from the phases of its learners: PENDING, DOWNLOADING, PROCESSING or STORING.

    PROCESSING once the first process runs; STORING once all learners store or have stored. ``expected``: how many
    learners the job has; of some there may be no report yet.
    """
    phases = [Phase.DOWNLOADING if learner.helper_failed else learner.phase for learner in learners]
    if not phases or all(phase is Phase.WAITING for phase in phases):
        return Status.PENDING
    if len(phases) == expected and all(PHASE_ORDER[phase] >= PHASE_ORDER[Phase.STORING] for phase in phases):
        return Status.STORING
    if any(PHASE_ORDER[phase] >= PHASE_ORDER[Phase.PROCESSING] for phase in phases):
        return Status.PROCESSING
    return Status.DOWNLOADING


def step_times(learners: Iterable[LearnerStatus]) -> dict[Status, int]:
    """Returns when the job entered each status, in Unix ms; statuses that no learner has reached are left out.

    DOWNLOADING and PROCESSING begin with the first learner, STORING with the last.
    """
    learners = list(learners)

    def times(phase: Phase) -> list[int]:
        return [learner.times[phase.value] for learner in learners if phase.value in learner.times]

    steps = {Status(phase.value): min(times(phase)) for phase in (Phase.DOWNLOADING, Phase.PROCESSING) if times(phase)}
    return steps | ({Status.STORING: max(times(Phase.STORING))} if times(Phase.STORING) else {})


def decide_verdict(job: Job, spec: JobSpec, learners: Mapping[str, LearnerStatus], *, now: int) -> Verdict | None:
    """Returns how the current attempt ends, or None while it goes on.

    ``learners``: the reports of the current attempt, by learner name; of some there may be none yet. ``now``: Unix ms.

    Order of precedence: a kill, then success, then a failure, then a halt. Success comes before failure: once all
    deciding roles have succeeded, the failure of another role must not train the job again.
    """
    if job.desired is Desired.KILL:
        return Verdict(to=Status.KILLED, reason="Killed", message="killed by its owner", time=now)
    if _completed(spec, learners):
        return Verdict(to=Status.COMPLETED, reason="", message="", time=now)
    failed = _first_failure(job, spec, learners, now)
    if failed is not None:
        return failed
    if job.desired is Desired.HALT and sum(_is_over(learner) for learner in learners.values()) == spec.learners:
        return Verdict(to=Status.HALTED, reason="Halted", message="halted by its owner", time=now)
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
    infrastructure = end is not None and end.lost
    retry = infrastructure or _may_retry(job, spec, end)
    if retry and job.desired is Desired.HALT:
        return None  # instead of another attempt the job becomes HALTED, and its owner may resume it
    if retry:
        left = "" if infrastructure else f" (retry {job.counters.retries + 1} of {spec.retries.max})"
        message = f"{message}; trying again{left}"
    return Verdict(
        to=Status.QUEUED if retry else Status.FAILED, reason=reason, message=message, time=now, learner=first.name,
        exit_code=end.code if end else None, signal=end.signal if end else None, budgeted=not infrastructure,
    )  # fmt: skip


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
    if end.signal is not None:
        try:
            name = signal.Signals(end.signal).name
        except ValueError:
            name = f"signal {end.signal}"
        return "Signalled", f"learner {learner.name} was ended by {name}; see its log (rank {learner.rank})"
    return "ExitCode", f"learner {learner.name} exited with code {end.code}; see its log (rank {learner.rank})"
