"""Which attempt of a job is current, and whether its whole gang is ready, at the cost of one etcd watch for all jobs.

There are two sources. The *view* follows the keys below ``/jobs/``: slightly old, and free. ``current`` is a
linearizable read, for the one decision that needs it: may this learner's process start? Callers that wait for the same
job at the same time share one read, which begins after the last of them called.

Only a newer attempt number proves that an attempt is over. A missing or older number means that etcd lost its state
and the Guardian will write it again (architecture.md, "etcd may forget everything"): the result then is Unavailable,
never "not current".
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from services.core.domain.codec import MALFORMED, load
from services.core.domain.errors import Unavailable
from services.core.domain.learner import LearnerStatus
from services.core.domain.status import PHASE_ORDER, Phase
from services.core.domain.status_keys import JOBS, attempt_key, parse_job_key
from services.core.domain.text import storable
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.status_store import Entry, StatusStore

_RETRY_AFTER_S: Final = 1.0
_CAUSES: Final = frozenset({"halt", "kill", "peer", "deadline"})
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Attempt:
    """The value of ``/jobs/<id>/attempt``."""

    number: int
    learners: int
    """Number of learners in the gang."""
    text: str
    """The value as stored, which ``put_while`` compares."""


@dataclass(frozen=True, slots=True)
class LearnerState:
    """A learner's status in the view."""

    attempt: int
    order: tuple[int, int, int]
    """(attempt, run, seq) of its last report."""
    ready: bool
    """In phase READY or a later one, and neither given up nor ended by a stop: nothing starts in a stopped gang."""
    stored: bool
    """In the last phase: its helper has declared the end."""
    revision: int
    """The mod_revision of the key."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The value of ``/jobs/<id>/stop``: the learners of the attempt shall end."""

    attempt: int
    generation: int
    cause: str
    """halt | kill | peer | deadline."""
    grace_ms: int


@dataclass(slots=True)
class _Job:
    attempt: Attempt | None = None
    stop: Stop | None = None
    learners: dict[str, LearnerState] = field(default_factory=dict)
    ready: Counter[int] = field(default_factory=Counter)
    """Attempt -> its learners that are ready: all learners of a gang read it again and again."""

    def set_learner(self, name: str, state: LearnerState | None) -> None:
        """Replaces the state of a learner; None: it has no status."""
        known = self.learners.pop(name, None)
        if known is not None:
            self.ready[known.attempt] -= known.ready
        if state is not None:
            self.learners[name] = state
            self.ready[state.attempt] += state.ready

    def is_ready(self, attempt: Attempt | None) -> bool:
        """True if every learner of the attempt is ready."""
        return attempt is not None and self.ready[attempt.number] >= attempt.learners


@dataclass(slots=True)
class _StartedGang:
    attempt: int
    learners: set[str] = field(default_factory=set)
    """Names of the learners that were allowed to start."""


def read_status(text: str | bytes) -> LearnerStatus | None:
    """Parses a learner's status and makes its texts storable; None if it is malformed."""
    try:
        return load(LearnerStatus, _storable(json.loads(text)))
    except MALFORMED:
        return None


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        items: list[Any] = value
        return [_storable(item) for item in items]
    if isinstance(value, dict):
        entries: dict[str, Any] = value
        return {storable(key): _storable(item) for key, item in entries.items()}
    return value


class Attempts:
    def __init__(self, status: StatusStore, on_change: Callable[[str], None] = lambda _: None) -> None:
        """``on_change(job_id)`` is called when the desired state of a job's learners may have changed: by its attempt,
        its stop, or because the last learner of its gang became ready. Other reports change it for no other learner.
        """
        self._status, self._on_change = status, on_change
        self._jobs: dict[str, _Job] = {}
        self._running: dict[str, asyncio.Task[Attempt | None]] = {}
        self._queued: dict[str, asyncio.Task[Attempt | None]] = {}
        self._started: dict[str, _StartedGang] = {}
        self.age = 0
        """Rises with each new listing of etcd: revisions from before and after cannot be compared."""

    async def follow(self) -> None:
        """Keeps the view up to date until cancelled."""
        async with aclosing(self._status.watch(JOBS)) as changes:
            async for change in changes:
                if change.kind == "reset":
                    self._jobs.clear()
                    self.age += 1
                elif change.entry is not None:
                    self._put(change.entry)
                else:
                    self._delete(change.key)

    def forget(self, job_id: str) -> None:
        """Drops the state of a deleted job."""
        self._started.pop(job_id, None)

    def _put(self, entry: Entry) -> None:
        key = parse_job_key(entry.key)
        if key.is_attempt:
            self._jobs.setdefault(key.job_id, _Job()).attempt = _attempt(entry)
        elif key.is_stop:
            self._jobs.setdefault(key.job_id, _Job()).stop = _stop(entry)
        elif key.is_learner:
            status = read_status(entry.value)
            if status is not None and status.name == key.name:
                self.record(key.job_id, status, entry.mod_revision, age=self.age)
            else:  # the learner did not write this: its next report must be written, not taken as unchanged
                self._jobs.setdefault(key.job_id, _Job()).set_learner(key.name, None)
        if not key.is_learner:
            self._on_change(key.job_id)

    def record(self, job_id: str, status: LearnerStatus, revision: int, *, age: int) -> None:
        """Enters a learner's status, stored at this revision, into the view.

        ``age``: ``self.age`` from before etcd was called. If etcd was listed anew since, the status is ignored: a
        revision from before etcd lost its state would hide all later ones.
        """
        if age != self.age:
            return
        job = self._jobs.setdefault(job_id, _Job())
        known = job.learners.get(status.name)
        if known is None or known.revision < revision:
            stopped = status.exit is not None and bool(status.exit.stop_cause)
            ready = PHASE_ORDER[status.phase] >= PHASE_ORDER[Phase.READY] and not (status.helper_failed or stopped)
            stored = status.phase is Phase.STORED
            was_ready = job.is_ready(job.attempt)
            job.set_learner(status.name, LearnerState(status.attempt, status.order, ready, stored, revision))
            if known is None or known.order[:2] < status.order[:2]:
                self._forget_start(job_id, status)
            if job.is_ready(job.attempt) and not was_ready:
                self._on_change(job_id)

    def _forget_start(self, job_id: str, status: LearnerStatus) -> None:
        """A new run of a learner may start only after a linearizable read of its own."""
        started = self._started.get(job_id)
        if started is not None and started.attempt == status.attempt:
            started.learners.discard(status.name)

    def _delete(self, full_key: str) -> None:
        key = parse_job_key(full_key)
        job = self._jobs.get(key.job_id)
        if key.is_attempt:
            self._started.pop(key.job_id, None)
        if job is None:
            return
        if key.is_attempt:
            job.attempt = None
        elif key.is_stop:
            job.stop = None
        elif key.is_learner:
            job.set_learner(key.name, None)
        if job.attempt is None and job.stop is None and not job.learners:
            del self._jobs[key.job_id]
        if not key.is_learner:
            self._on_change(key.job_id)

    def cached(self, job_id: str) -> Attempt | None:
        """The current attempt according to the view."""
        job = self._jobs.get(job_id)
        return job.attempt if job is not None else None

    def stop(self, learner: LearnerIdentity) -> Stop | None:
        """The stop of the learner's attempt, according to the view; None: it shall not end."""
        job = self._jobs.get(learner.job)
        stop = job.stop if job is not None else None
        return stop if stop is not None and stop.attempt == learner.attempt else None

    def is_reported(self, learner: LearnerIdentity, status: LearnerStatus) -> bool:
        """True if the view has this state of the learner or a newer one, and its attempt as the current one."""
        job = self._jobs.get(learner.job)
        if job is None or job.attempt is None or job.attempt.number != learner.attempt:
            return False
        state = job.learners.get(learner.name)
        # A report of a newer attempt may be in the view before that attempt is.
        return state is not None and state.attempt == learner.attempt and state.order >= status.order

    def may_have_ended(self, learner: LearnerIdentity) -> bool:
        """True unless the view has this attempt as the current one, and a helper of this learner that goes on."""
        job = self._jobs.get(learner.job)
        if job is None or job.attempt is None or job.attempt.number != learner.attempt:
            return True
        state = job.learners.get(learner.name)
        return state is not None and state.attempt == learner.attempt and state.stored

    def all_ready(self, job_id: str, attempt: Attempt) -> bool:
        """True if every learner of the attempt has been READY; once true it stays true for the attempt."""
        started = self._started.get(job_id)
        if started is not None and started.attempt == attempt.number:
            return True
        job = self._jobs.get(job_id)
        if job is None or not job.is_ready(attempt):
            return False
        self._started[job_id] = _StartedGang(attempt.number)
        return True

    async def may_go(self, learner: LearnerIdentity) -> tuple[bool, bool]:
        """(current, go): whether the learner's attempt is current, and whether its process may start.

        A linearizable read until the learner was allowed to start, the view from then on. Raises Unavailable if the
        current attempt is not known.
        """
        attempt = self.cached(learner.job) if self.is_started(learner) else None
        if attempt is None or attempt.number < learner.attempt:
            attempt = await self.current(learner)
        if attempt.number > learner.attempt:
            return False, False
        go = self.all_ready(learner.job, attempt)
        if go:
            self._started[learner.job].learners.add(learner.name)
        return True, go

    def is_started(self, learner: LearnerIdentity) -> bool:
        """True if this process has allowed this learner to start."""
        started = self._started.get(learner.job)
        return started is not None and started.attempt == learner.attempt and learner.name in started.learners

    async def current(self, learner: LearnerIdentity) -> Attempt:
        """The job's current attempt, by a linearizable read: the learner's own or a newer one. Raises Unavailable."""
        attempt = await self._read(learner.job)
        if attempt is None or attempt.number < learner.attempt:
            raise Unavailable(
                f"it is not known now which attempt of job {learner.job} is current", retry_after_s=_RETRY_AFTER_S
            )
        return attempt

    async def _read(self, job_id: str) -> Attempt | None:
        """A read that begins after this call. A read that is already running may have missed a newer attempt."""
        task = self._queued.get(job_id)
        if task is None:
            task = asyncio.create_task(self._read_after(job_id, self._running.get(job_id)))
            # Retrieves the error: all callers may have been cancelled.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._queued[job_id] = task
        return await asyncio.shield(task)

    async def _read_after(self, job_id: str, earlier: asyncio.Task[Any] | None) -> Attempt | None:
        if earlier is not None:
            await asyncio.wait({earlier})
        own_task = self._running[job_id] = self._queued.pop(job_id)
        try:
            entry = await self._status.get(attempt_key(job_id))
        finally:
            if self._running.get(job_id) is own_task:
                del self._running[job_id]
        return _attempt(entry) if entry is not None else None


def _attempt(entry: Entry) -> Attempt | None:
    """None for a malformed value, which is treated as missing: the Guardian then writes it again."""
    try:
        value = json.loads(entry.value)
        return Attempt(int(value["attempt"]), int(value["learners"]), entry.value)
    except MALFORMED:
        log.warning("attempt.skipped", key=entry.key)
        return None


def _stop(entry: Entry) -> Stop | None:
    """None for a malformed value: the pods are then stopped by their deletion."""
    try:
        value = json.loads(entry.value)
        stop = Stop(int(value["attempt"]), int(value["generation"]), str(value["cause"]), int(value["grace_ms"]))
    except MALFORMED:
        stop = None
    if stop is None or stop.cause not in _CAUSES or not 0 <= stop.grace_ms < 2**32 or not 0 <= stop.generation < 2**63:
        log.warning("stop.skipped", key=entry.key)
        return None
    return stop
