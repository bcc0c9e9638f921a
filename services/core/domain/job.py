"""The job document: the one truth of a job (architecture.md, law 1), and the pure changes it may undergo.

Every function here takes a job and returns the next one; the store makes the change durable by compare-and-set on
``rev``. ``check_replace`` is what every store asks before it writes: an illegal transition, a history that does not
continue, a fence that falls back is refused by the store, not only by well-behaved callers.

History travels inside the document: an event and its change are one replace. ``history_tail`` holds the events that
may not be in the history collection yet; ``trimmed`` drops those that are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from services.core.domain.errors import Conflict, IllegalTransition, NotFound
from services.core.domain.status import ADMITTED, RESTING, TERMINAL, Desired, Status, allowed

SCHEMA: Final = 1
KEPT_APPLIED_KEYS: Final = 16
"""Of the keys of wishes; each is some 100 bytes in the document."""
_PATH: Final = (Status.PENDING, Status.DOWNLOADING, Status.PROCESSING, Status.STORING)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What was decided, for machines (``status``, ``reason``) and for people (``message``)."""

    status: Status
    since: int
    reason: str = ""
    message: str = ""
    pending_reason: str = ""
    """While waiting: WaitingForQuota, WaitingForCapacity, NoMatchingFlavor, BackOff, Releasing, ..."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at running the job: everything a learner writes carries its number."""

    number: int = 0
    """0: never admitted."""
    admitted: int | None = None
    started: int | None = None
    """When the first learner's process ran; ``max_runtime`` counts from here."""
    placement: Mapping[str, str] = field(default_factory=dict)
    """Learner (``worker-0``) -> node."""
    committed: bool = False
    """Every learner is provisioned: from here on nothing is rolled back because provisioning was slow."""
    plan_digest: str = ""
    env_digest: str = ""
    data_digest: str = ""
    direction: str = "forward"
    """forward | undo | stop."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who may act on the job. ``term`` only rises; ``nonce`` tells two claims of one term apart."""

    term: int = 0
    nonce: str = ""
    holder: str = ""
    """Member id of the guardian process; empty: nobody."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How the attempt ends, decided once (first cause wins) and before anything is stopped."""

    to: Status
    """COMPLETED, FAILED, KILLED, HALTED, or QUEUED for another attempt."""
    reason: str
    message: str
    time: int
    learner: str = ""
    exit_code: int | None = None
    signal: int | None = None
    budgeted: bool = False
    """Another attempt after this one counts against ``retries.max``: it was the job's own failure."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a job's history: unique by (job, seq), never changed, kept for ever."""

    seq: int
    time: int
    actor: str
    """``user:<name>``, ``lcm``, ``guardian``."""
    generation: int
    from_status: Status | None
    to: Status
    attempt: int = 0
    reason: str = ""
    message: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    retries: int = 0
    """Attempts that ended by the job's own failure; counts against ``retries.max``."""
    restarts: int = 0
    """Attempts that ended by the platform's (node lost, roll-back); counts against nothing."""
    preemptions: int = 0
    rollbacks: int = 0
    """Attempts in a row that were not provisioned; 0 again once one was."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedKey:
    """A wish that came under an idempotency key, so that it is carried out once."""

    key: str
    time: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Times are Unix milliseconds. ``rev`` is the store's; ``generation`` is the owner's (each wish adds one)."""

    id: str
    tenant: str
    user: str
    spec: Mapping[str, Any]
    code_digest: str
    """``sha256:<hex>`` of the code archive; empty: no code."""
    idem: str
    """Unique: ``<tenant>/<user>/<Idempotency-Key>``, or the id where none came."""
    idem_digest: str
    """Digest of the request, so that the same key with another body is told apart."""
    state: State
    created: int
    updated: int
    schema: int = SCHEMA
    rev: int = 1
    desired: Desired = Desired.RUN
    generation: int = 1
    observed_generation: int = 0
    applied_keys: tuple[AppliedKey, ...] = ()
    """The latest that came under a key, oldest first; at most ``KEPT_WISHES``."""
    attempt: Attempt = Attempt()
    dispatcher_term: int = 0
    not_before: int = 0
    """Re-admission waits until then (back-off of retries)."""
    guardian: Claim = Claim()
    verdict: Verdict | None = None
    released: int | None = None
    """When everything the attempt held was gone. Quota, resume, delete and re-admission test this, never status."""
    counters: Counters = Counters()
    summary: Mapping[str, Any] = field(default_factory=dict)
    history_seq: int = 0
    history_tail: tuple[Event, ...] = ()
    trace: str = ""
    """W3C traceparent of the submission."""
    finished: int | None = None
    deleted: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        return self.state.status

    @property
    def holds(self) -> bool:
        """Whether an attempt of it may still hold hardware."""
        return self.attempt.number > 0 and self.released is None

    @property
    def at_rest(self) -> bool:
        """Nothing of it runs, is held or will come: what follows a job may end, and it may be deleted."""
        return self.status in RESTING and not self.holds

    def was_applied(self, key: str, *, since: int) -> bool:
        """Whether the latest wishes carry this key."""
        return any(one.key == key and one.time > since for one in self.applied_keys)


def new_job(
    *, job_id: str, tenant: str, user: str, spec: Mapping[str, Any], code_digest: str, idem: str, idem_digest: str,
    trace: str, now: int,
) -> Job:  # fmt: skip
    """A freshly submitted job, QUEUED, its first event inside."""
    event = Event(seq=1, time=now, actor=f"user:{user}", generation=1, from_status=None, to=Status.QUEUED)
    return Job(
        id=job_id, tenant=tenant, user=user, spec=spec, code_digest=code_digest, idem=idem, idem_digest=idem_digest,
        state=State(status=Status.QUEUED, since=now), created=now, updated=now, history_seq=1, history_tail=(event,),
        trace=trace,
    )  # fmt: skip


def moved(job: Job, to: Status, *, actor: str, now: int, reason: str = "", message: str = "") -> Job:
    """The job in another status, with its event. IllegalTransition where the machine has no such edge."""
    if not allowed(job.status, to):
        raise IllegalTransition(f"job {job.id} is {job.status} and cannot become {to}")
    event = Event(
        seq=job.history_seq + 1, time=max(now, job.state.since), actor=actor, generation=job.generation,
        from_status=job.status, to=to, attempt=job.attempt.number, reason=reason, message=message,
    )  # fmt: skip
    return replace(
        job,
        state=State(status=to, since=event.time, reason=reason, message=message),
        history_seq=event.seq,
        history_tail=(*job.history_tail, event),
        finished=event.time if to in TERMINAL else job.finished,
        updated=now,
    )


def advanced(job: Job, to: Status, *, actor: str, now: int, times: Mapping[Status, int] | None = None) -> Job:
    """The job further along PENDING -> DOWNLOADING -> PROCESSING -> STORING, every step in its history.

    ``times`` are when the learners passed each step, where known. Never goes back; a job off the path is unchanged.
    """
    if job.status not in _PATH or to not in _PATH:
        return job
    steps = _PATH[_PATH.index(job.status) + 1 : _PATH.index(to) + 1]
    for step in steps:
        job = moved(job, step, actor=actor, now=min((times or {}).get(step, now), now))
    return replace(job, updated=now) if steps else job


def admitted(job: Job, *, placement: Mapping[str, str], dispatcher_term: int, now: int) -> Job:
    """QUEUED -> PENDING with a new attempt. Only the dispatcher does this."""
    attempt = Attempt(number=job.attempt.number + 1, admitted=now, placement=placement)
    job = replace(
        job, attempt=attempt, dispatcher_term=dispatcher_term, verdict=None, released=None,
        guardian=replace(job.guardian, holder="", nonce=""),
    )  # fmt: skip
    return moved(job, Status.PENDING, actor="lcm", now=now)


def set_desired(job: Job, desired: Desired, *, actor: str, now: int) -> Job:
    """What the owner asked for. Raises IllegalTransition where it can no longer be had.

    A job that holds nothing obeys at once; one that runs is obeyed by its Guardian. NotFound for a deleted one.
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
    elif job.desired is desired or (job.desired is Desired.KILL and desired is Desired.HALT):
        return job
    elif desired is Desired.HALT and job.status is Status.HALTED:
        return job
    job = replace(job, desired=desired, generation=job.generation + 1, updated=now)
    if desired is Desired.RUN:
        job = moved(moved(job, Status.RESUMED, actor=actor, now=now), Status.QUEUED, actor=actor, now=now)
        return replace(job, observed_generation=job.generation, not_before=0)
    return apply_desired(job, actor=actor, now=now)


def with_applied_key(job: Job, key: str, *, now: int) -> tuple[Job, tuple[AppliedKey, ...]]:
    """The job that remembers this key as its latest wish's, and the wishes that it forgets for it."""
    cut = max(0, len(job.applied_keys) + 1 - KEPT_APPLIED_KEYS)
    return replace(job, applied_keys=(*job.applied_keys[cut:], AppliedKey(key=key, time=now))), job.applied_keys[:cut]


def apply_desired(job: Job, *, actor: str, now: int) -> Job:
    """A job that holds nothing, brought to what its owner wants; any other is unchanged."""
    if job.holds or job.status not in {Status.QUEUED, Status.HALTED}:
        return job
    goal = {Desired.HALT: Status.HALTED, Desired.KILL: Status.KILLED}.get(job.desired)
    if goal is None or goal is job.status:
        return job
    return replace(moved(job, goal, actor=actor, now=now), observed_generation=job.generation)


def released(job: Job, *, now: int) -> Job:
    """Everything the attempt held is gone: the last write of a Guardian."""
    job = replace(job, released=now, guardian=replace(job.guardian, holder="", nonce=""), updated=now)
    return apply_desired(job, actor="guardian", now=now)


def removed(job: Job, *, now: int) -> Job:
    """Soft deletion: shown to nobody any more, kept for ever. Conflict while it may still run."""
    if not job.at_rest:
        what = f"is {job.status}" if job.status not in RESTING else "is still giving back its hardware"
        raise Conflict(f"job {job.id} {what}; kill it first")
    return replace(job, deleted=now, updated=now)


def trimmed(job: Job, *, copied_seq: int) -> Job:
    """Without the events that the history collection is known to hold."""
    return replace(job, history_tail=tuple(event for event in job.history_tail if event.seq > copied_seq))


def check_replace(prior: Job, new: Job) -> None:
    """What every store asks before it replaces ``prior`` (whose ``rev`` it compares) by ``new``."""
    for name in ("id", "tenant", "user", "idem", "created", "code_digest"):
        if getattr(prior, name) != getattr(new, name):
            raise IllegalTransition(f"job {prior.id}: {name} never changes")
    for name in ("generation", "observed_generation", "history_seq", "dispatcher_term"):
        if getattr(new, name) < getattr(prior, name):
            raise IllegalTransition(f"job {prior.id}: {name} never falls")
    if new.attempt.number < prior.attempt.number or new.guardian.term < prior.guardian.term:
        raise IllegalTransition(f"job {prior.id}: attempt and term never fall")
    fresh = [event for event in new.history_tail if event.seq > prior.history_seq]
    if [event.seq for event in fresh] != list(range(prior.history_seq + 1, new.history_seq + 1)):
        raise IllegalTransition(f"job {prior.id}: its history has a gap")
    kept = new.history_tail[: len(new.history_tail) - len(fresh)]
    if kept != prior.history_tail[len(prior.history_tail) - len(kept) :]:
        raise IllegalTransition(f"job {prior.id}: what is in its history never changes")
    status = prior.status
    for event in fresh:
        if event.from_status is not status or not allowed(status, event.to):
            raise IllegalTransition(f"job {prior.id} is {status} and cannot become {event.to}")
        status = event.to
    if status is not new.status or status is Status.RESUMED:
        raise IllegalTransition(f"job {prior.id}: a change of status needs its event")
    if new.attempt.number > prior.attempt.number and prior.holds:
        raise IllegalTransition(f"job {prior.id}: attempt {prior.attempt.number} still holds hardware")


__all__ = ["ADMITTED", "RESTING", "AppliedKey", "Attempt", "Claim", "Counters", "Event", "Job", "State", "Verdict"]
