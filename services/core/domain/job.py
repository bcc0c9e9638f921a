"""The job document and the pure functions that change it (architecture.md, law 1).

The document is the only place where the state of a job is decided. Each function takes a job and returns the changed
job. The store makes the change durable by compare-and-set on ``rev``. Every store calls ``check_replace`` before it
writes: it refuses illegal transitions, gaps in the history and fences that fall, whatever the caller does.

An event of the history and its change are one write, because events are inside the document: ``history_tail`` holds
those that may not be in the history collection yet, and ``trimmed`` drops those that are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from services.core.domain.checkpoint import StoredCheckpoint
from services.core.domain.errors import Conflict, IllegalTransition, NotFound
from services.core.domain.held_time import HeldPeriod, with_period
from services.core.domain.startup import Span
from services.core.domain.status import RESTING, TERMINAL, Desired, Status, allowed

SCHEMA: Final = 1
KEPT_APPLIED_KEYS: Final = 16
"""How many ``applied_keys`` a document keeps; each takes about 100 bytes."""
PLATFORM: Final = "platform"
"""The actor of what `weft down` and `weft up` change. Actors that are users begin with ``user:``."""
_PATH: Final = (Status.PENDING, Status.DOWNLOADING, Status.PROCESSING, Status.STORING)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The status of a job and its reason."""

    status: Status
    since: int
    """Unix ms of the last change of status."""
    reason: str = ""
    """For machines: a stable word in CamelCase, e.g. ExitCode; empty: none."""
    message: str = ""
    """For people."""
    pending_reason: str = ""
    """Why a QUEUED job waits: a ``PendingReason``; else empty."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """The latest decision to start one learner again within its attempt (docs/adr/0023-restart-of-one-learner.md)."""

    run: int
    """The run that it starts: 2 or more."""
    time: int
    """Unix ms of the decision."""
    not_before: int
    """Unix ms: it is not started before (back-off)."""
    reason: str
    """How the run before ended: a stable word, e.g. ExitCode."""
    message: str
    """The same for people."""
    budgeted: bool = False
    """It counts against ``retries.max``."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt to run the job. All that its learners write carries its number."""

    number: int = 0
    """Counts from 1; 0: the job was never admitted."""
    queued: int | None = None
    """Unix ms since when the job had waited for its admission; None: an older version admitted it."""
    admitted: int | None = None
    """Unix ms of the admission."""
    started: int | None = None
    """Unix ms of the start of the first learner's process; ``max_runtime`` counts from here."""
    startup: Mapping[str, Span] = field(default_factory=dict)
    """Step of its start-up (``startup.OBSERVED``) -> when it began and ended, as far as it is known."""
    placement: Mapping[str, str] = field(default_factory=dict)
    """Learner (``worker-0``) -> node: the dispatcher's choice, then where the cluster has bound the learner. This is
    charged."""
    committed: bool = False
    """Every learner is provisioned. A committed attempt is not rolled back for slow provisioning."""
    plan_digest: str = ""
    env_digest: str = ""
    """Digest of the environment or image that the learners run in."""
    data_digest: str = ""
    """Digest of the data that the learners fetched."""
    direction: str = "forward"
    """forward | undo | stop."""
    reruns: Mapping[str, Rerun] = field(default_factory=dict)
    """Learner -> its latest restart. A learner without one is in run 1."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def run_of(self, learner: str) -> int:
        """The number of the run that the learner is in, or is being started in."""
        rerun = self.reruns.get(learner)
        return rerun.run if rerun is not None else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right of one Guardian to change the job. Each update checks ``term`` and ``nonce``."""

    term: int = 0
    """Never falls; each claim adds 1."""
    nonce: str = ""
    """Random, new with each claim: two claims can have the same term after a lost race."""
    holder: str = ""
    """Member id of the guardian process; empty: not claimed."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How the attempt ends: by the first cause. Durable before anything is stopped.

    A later kill replaces it, and so does the loss of a sibling's node that caused the failure.
    """

    to: Status
    """COMPLETED, FAILED, KILLED, HALTED, or QUEUED for another attempt."""
    reason: str
    message: str
    time: int
    """Unix ms of the decision."""
    learner: str = ""
    """The learner that caused a failure; empty: none."""
    exit_code: int | None = None
    signal: int | None = None
    budgeted: bool = False
    """The attempt failed through the job's own fault, so another attempt counts against ``retries.max``."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change of status in a job's history. Unique by (job, seq); never changes."""

    seq: int
    """Counts from 1 within the job, without gap."""
    time: int
    """Unix ms; never before that of the previous event."""
    actor: str
    """``user:<name>``, ``lcm``, ``guardian``."""
    generation: int
    """The job's generation at that time."""
    from_status: Status | None
    """None for the submission."""
    to: Status
    attempt: int = 0
    reason: str = ""
    message: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """How the earlier attempts of a job ended."""

    retries: int = 0
    """Attempts, and runs of single learners, that failed through the job's own fault. Limited by ``retries.max``."""
    restarts: int = 0
    """Attempts that the platform ended (node lost, roll-back). Not limited."""
    preemptions: int = 0
    rollbacks: int = 0
    """Attempts in a row that could not be provisioned; 0 again after one that could."""
    outages: int = 0
    """Attempts in a row that an outage ended before a process ran; 0 again once a process has run."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedKey:
    """The idempotency key of a change of ``desired`` that was applied. It makes a repeated request have no effect."""

    key: str
    """``<tenant>/<user>/<Idempotency-Key>``."""
    time: int
    """Unix ms of the change."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job document. Times are Unix milliseconds. A store replaces it as a whole."""

    id: str
    tenant: str
    user: str
    """The user who submitted it."""
    spec: Mapping[str, Any]
    """As ``services.core.domain.spec.dump_spec`` returns it."""
    code_digest: str
    """``sha256:<hex>`` of the code archive; empty: no code."""
    idem: str
    """Unique key of the submission: ``<tenant>/<user>/<Idempotency-Key>``, or the job id where no key was sent."""
    idem_digest: str
    """Digest of the submission. A repeated key with another digest is IdempotencyMismatch."""
    state: State
    created: int
    updated: int
    schema: int = SCHEMA
    rev: int = 1
    """Revision, set by the store; each replace adds 1."""
    desired: Desired = Desired.RUN
    """The state that its users want."""
    desired_by: str = ""
    """The actor of the latest change of ``desired``; empty: none yet."""
    generation: int = 1
    """Each change of ``desired`` adds 1."""
    observed_generation: int = 0
    """The generation that the platform has carried out last."""
    applied_keys: tuple[AppliedKey, ...] = ()
    """The keys of the latest changes of ``desired``, oldest first; at most ``KEPT_APPLIED_KEYS``."""
    attempt: Attempt = Attempt()
    dispatcher_term: int = 0
    """Term of the dispatcher that admitted the current attempt, or confirmed its admission."""
    not_before: int = 0
    """The job is not admitted before this time (back-off between retries)."""
    guardian: Claim = Claim()
    verdict: Verdict | None = None
    """How the current attempt ends; None: undecided."""
    released: int | None = None
    """When all that the attempt held was gone. Quota, resume, delete and re-admission test this, never the status."""
    held_before: tuple[HeldPeriod, ...] = ()
    """When its earlier attempts held hardware; without those that an older version admitted again."""
    counters: Counters = Counters()
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Latest metrics and progress, copied from the metrics service with the verdict."""
    checkpoint: StoredCheckpoint | None = None
    """The newest that a learner of any attempt has stored; None: there is none."""
    history_seq: int = 0
    """``seq`` of the last event."""
    history_tail: tuple[Event, ...] = ()
    """The last events, oldest first, up to ``history_seq``."""
    trace: str = ""
    """W3C traceparent of the submission."""
    finished: int | None = None
    """When it became COMPLETED, FAILED or KILLED."""
    deleted: int | None = None
    """When it was deleted: it is hidden from lists. This cannot be undone."""
    deleted_by: str = ""
    """``user:<name>`` who deleted it; empty: not deleted, or deleted by an older version."""
    erased: int | None = None
    """When its objects, logs and metrics had been removed after its deletion. Document and history stay."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        return self.state.status

    @property
    def holds(self) -> bool:
        """Whether the current attempt may still hold hardware."""
        return self.attempt.number > 0 and self.released is None

    @property
    def at_rest(self) -> bool:
        """Whether nothing of the job runs, holds hardware or will start by itself. Only such a job can be deleted."""
        return self.status in RESTING and not self.holds

    @property
    def live(self) -> bool:
        """Whether a service may still have to act on the job: it is not at rest. Every store indexes it.

        The queries of each second read live jobs only, so the number of jobs at rest costs them nothing.
        """
        return not self.at_rest

    @property
    def actor_of_desired(self) -> str:
        """The actor of events that carry out ``desired``: the user who changed it last; ``guardian`` where unknown."""
        return self.desired_by or "guardian"

    @property
    def requester(self) -> str:
        """The origin of the last change of ``desired``, for messages: ``ada``; ``its owner`` where unknown."""
        if self.desired_by == PLATFORM:
            return "the stop of the platform"
        return self.desired_by.removeprefix("user:") or "its owner"

    @property
    def halted_by_platform(self) -> bool:
        """Whether the stop of the platform halted it: the next start of the platform queues it again."""
        return self.desired is Desired.HALT and self.desired_by == PLATFORM

    @property
    def stopped(self) -> bool:
        """HALTED by the stop of the platform. Every store indexes it: a start reads no other jobs."""
        return self.status is Status.HALTED and self.halted_by_platform

    @property
    def halt_reason(self) -> str:
        """The reason of a halt that is desired: a stable word."""
        return "PlatformStopped" if self.halted_by_platform else "Halted"

    def was_applied(self, key: str, *, since: int) -> bool:
        """Whether ``applied_keys`` has this key with a time after ``since`` (Unix ms)."""
        return any(applied.key == key and applied.time > since for applied in self.applied_keys)


def new_job(
    *,
    job_id: str,
    tenant: str,
    user: str,
    spec: Mapping[str, Any],
    code_digest: str,
    idem: str,
    idem_digest: str,
    trace: str,
    now: int,
) -> Job:
    """Returns a job as it is submitted: QUEUED, with its first event. For the parameters see ``Job``."""
    event = Event(seq=1, time=now, actor=f"user:{user}", generation=1, from_status=None, to=Status.QUEUED)
    return Job(
        id=job_id,
        tenant=tenant,
        user=user,
        spec=spec,
        code_digest=code_digest,
        idem=idem,
        idem_digest=idem_digest,
        state=State(status=Status.QUEUED, since=now),
        created=now,
        updated=now,
        history_seq=1,
        history_tail=(event,),
        trace=trace,
    )


def moved(job: Job, to: Status, *, actor: str, now: int, reason: str = "", message: str = "") -> Job:
    """Returns the job in status ``to``, with the event of the change.

    Raises IllegalTransition where the status machine does not allow it. The event's time is never before the previous
    one's, even if ``now`` is.
    """
    if not allowed(job.status, to):
        raise IllegalTransition(f"job {job.id} is {job.status} and cannot become {to}")
    event = Event(
        seq=job.history_seq + 1,
        time=max(now, job.state.since),
        actor=actor,
        generation=job.generation,
        from_status=job.status,
        to=to,
        attempt=job.attempt.number,
        reason=reason,
        message=message,
    )
    return replace(
        job,
        state=State(status=to, since=event.time, reason=reason, message=message),
        history_seq=event.seq,
        history_tail=(*job.history_tail, event),
        finished=event.time if to in TERMINAL else job.finished,
        updated=now,
    )


def advanced(job: Job, to: Status, *, actor: str, now: int, times: Mapping[Status, int] | None = None) -> Job:
    """Returns the job advanced along PENDING -> DOWNLOADING -> PROCESSING -> STORING, with one event for each step.

    ``times``: when the learners entered each step, in Unix ms, where known; a later time than ``now`` counts as
    ``now``. Returns the same job where it is at or beyond ``to``, or where either status is not on this path.
    """
    if job.status not in _PATH or to not in _PATH:
        return job
    steps = _PATH[_PATH.index(job.status) + 1 : _PATH.index(to) + 1]
    for step in steps:
        job = moved(job, step, actor=actor, now=min((times or {}).get(step, now), now))
    return replace(job, updated=now) if steps else job


def admitted(job: Job, *, placement: Mapping[str, str], dispatcher_term: int, now: int) -> Job:
    """Returns the QUEUED job as PENDING, with a new attempt. Only the dispatcher calls this.

    ``placement``: learner -> node. Raises IllegalTransition for another status.
    """
    attempt = Attempt(number=job.attempt.number + 1, queued=job.state.since, admitted=now, placement=placement)
    held_before = job.held_before
    if job.attempt.admitted is not None and job.released is not None:
        held_before = with_period(held_before, job.attempt.admitted, job.released)
    job = replace(
        job,
        attempt=attempt,
        held_before=held_before,
        dispatcher_term=dispatcher_term,
        verdict=None,
        released=None,
        guardian=replace(job.guardian, holder="", nonce=""),
    )
    return moved(job, Status.PENDING, actor="lcm", now=now)


def set_desired(job: Job, desired: Desired, *, actor: str, now: int) -> Job:
    """Returns the job with another ``desired`` state, its ``actor`` (``user:<name>``) and the next generation.

    A job that holds no hardware gets the desired status at once. For another one its Guardian applies it. Kill wins
    over halt: a halt after a kill, like a repeated request, returns the same job. A user's halt of a job that the stop
    of the platform halts, or has halted, becomes the user's: the next start of the platform does not queue it again.

    Raises NotFound for a deleted job. Raises IllegalTransition for a job that has ended, and for a resume of a job
    that is not HALTED or still holds hardware.
    """
    if job.deleted is not None:
        raise NotFound(f"there is no job {job.id}")
    if job.status in TERMINAL:
        if desired is Desired.KILL and job.status is Status.KILLED:
            return job
        raise IllegalTransition(f"job {job.id} has ended ({job.status}); nothing can be changed any more")
    if desired is Desired.RUN:
        if job.status is not Status.HALTED:
            raise IllegalTransition(f"only a HALTED job can be resumed; job {job.id} is {job.status}")
        if job.holds:
            raise IllegalTransition(f"job {job.id} is still giving back its hardware; resume it again in a moment")
    elif desired is Desired.HALT and job.halted_by_platform and actor != PLATFORM:
        return replace(job, desired_by=actor, updated=now)
    elif job.desired is desired or (job.desired is Desired.KILL and desired is Desired.HALT):
        return job
    elif desired is Desired.HALT and job.status is Status.HALTED:
        return job
    job = replace(job, desired=desired, desired_by=actor, generation=job.generation + 1, updated=now)
    if desired is Desired.RUN:
        job = moved(moved(job, Status.RESUMED, actor=actor, now=now), Status.QUEUED, actor=actor, now=now)
        return replace(job, observed_generation=job.generation, not_before=0)
    return apply_desired(job, now=now)


def with_applied_key(job: Job, key: str, *, now: int) -> tuple[Job, tuple[AppliedKey, ...]]:
    """Returns the job with ``key`` as its latest applied key, and the oldest keys that were dropped to make room."""
    cut = max(0, len(job.applied_keys) + 1 - KEPT_APPLIED_KEYS)
    return replace(job, applied_keys=(*job.applied_keys[cut:], AppliedKey(key=key, time=now))), job.applied_keys[:cut]


def apply_desired(job: Job, *, now: int) -> Job:
    """Returns a QUEUED or HALTED job without hardware in the status that is desired; any other unchanged."""
    if job.holds or job.status not in {Status.QUEUED, Status.HALTED}:
        return job
    goals = {
        Desired.HALT: (Status.HALTED, job.halt_reason, f"halted by {job.requester}"),
        Desired.KILL: (Status.KILLED, "Killed", f"killed by {job.requester}"),
    }
    if job.desired not in goals or goals[job.desired][0] is job.status:
        return job
    goal, reason, message = goals[job.desired]
    job = moved(job, goal, actor=job.actor_of_desired, now=now, reason=reason, message=message)
    return replace(job, observed_generation=job.generation)


def released(job: Job, *, now: int) -> Job:
    """Returns the job without its claim, after all that its attempt held is gone. The last write of a Guardian."""
    job = replace(job, released=now, guardian=replace(job.guardian, holder="", nonce=""), updated=now)
    return apply_desired(job, now=now)


def removed(job: Job, *, actor: str, now: int) -> Job:
    """Returns the job marked as deleted: hidden from lists, its data to be erased. Raises Conflict unless ``at_rest``.

    ``actor``: ``user:<name>`` who deletes it.
    """
    if not job.at_rest:
        obstacle = f"is {job.status}" if job.status not in RESTING else "is still giving back its hardware"
        raise Conflict(f"job {job.id} {obstacle}; kill it first")
    return replace(job, deleted=now, deleted_by=actor, updated=now)


def erased(job: Job, *, now: int) -> Job:
    """Returns the deleted job after its data was removed. Raises Conflict unless it is deleted and ``at_rest``."""
    if job.deleted is None or not job.at_rest:
        raise Conflict(f"job {job.id} is not deleted; its data stays")
    return replace(job, erased=now, updated=now) if job.erased is None else job


def trimmed(job: Job, *, copied_seq: int) -> Job:
    """Returns the job without the events up to ``copied_seq``, which are in the history collection."""
    return replace(job, history_tail=tuple(event for event in job.history_tail if event.seq > copied_seq))


def _check_deletion(prior: Job, new: Job) -> None:
    """Raises IllegalTransition where a deletion would be undone, or the data of a job erased that is not deleted."""
    for name in ("deleted", "erased"):
        if getattr(prior, name) not in {None, getattr(new, name)}:
            raise IllegalTransition(f"job {prior.id}: {name} never changes once it is set")
    if new.erased is not None and new.deleted is None:
        raise IllegalTransition(f"job {prior.id}: the data of a job that is not deleted is never erased")
    if prior.deleted is not None and prior.at_rest and not new.at_rest:
        raise IllegalTransition(f"job {prior.id}: a deleted job stays at rest")


def check_replace(prior: Job, new: Job) -> None:
    """Raises IllegalTransition where ``new`` must not replace ``prior``. Every store calls it; ``rev`` is the store's.

    Checks that constant fields and past events stay, that generations, terms and attempts never fall, that the history
    has no gap, that every change of status is legal and has its event, and that no attempt begins while another may
    hold hardware.
    """
    for name in ("id", "tenant", "user", "idem", "created", "code_digest"):
        if getattr(prior, name) != getattr(new, name):
            raise IllegalTransition(f"job {prior.id}: {name} never changes")
    for name in ("generation", "observed_generation", "history_seq", "dispatcher_term"):
        if getattr(new, name) < getattr(prior, name):
            raise IllegalTransition(f"job {prior.id}: {name} never decreases")
    _check_deletion(prior, new)
    if new.attempt.number < prior.attempt.number or new.guardian.term < prior.guardian.term:
        raise IllegalTransition(f"job {prior.id}: attempt and term never decrease")
    fresh = [event for event in new.history_tail if event.seq > prior.history_seq]
    if [event.seq for event in fresh] != list(range(prior.history_seq + 1, new.history_seq + 1)):
        raise IllegalTransition(f"job {prior.id}: the history has a gap")
    kept = new.history_tail[: len(new.history_tail) - len(fresh)]
    if kept != prior.history_tail[len(prior.history_tail) - len(kept) :]:
        raise IllegalTransition(f"job {prior.id}: past events of the history never change")
    status = prior.status
    for event in fresh:
        if event.from_status is not status or not allowed(status, event.to):
            raise IllegalTransition(f"job {prior.id} is {status} and cannot become {event.to}")
        status = event.to
    if status is not new.status or status is Status.RESUMED:
        raise IllegalTransition(f"job {prior.id}: a change of status needs its event")
    if new.attempt.number > prior.attempt.number and prior.holds:
        raise IllegalTransition(f"job {prior.id}: attempt {prior.attempt.number} still holds hardware")
