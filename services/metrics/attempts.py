"""Which attempt of a job is current, and whether its whole gang is ready: what etcd knows, at the price of one watch.

Two kinds of answer. The *view* follows ``/jobs/`` by one watch for all jobs: a moment old, and free. ``current`` is a
linearizable read, for the one question where a moment matters: may this learner's process start? Questions on one job
that wait together share one read, which begins after the last of them was asked.

Only a newer attempt proves that one is over. A missing or older number means that etcd has lost what it knew and will
be told again (architecture.md, "etcd may forget everything"): the answer then is Unavailable, never "not current".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from services.core.domain.codec import load
from services.core.domain.errors import Unavailable
from services.core.domain.learner import LearnerStatus
from services.core.domain.status import PHASE_ORDER, Phase
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.status_store import Entry, StatusStore

JOBS: Final = "/jobs/"
_ANSWER_SOON_S: Final = 1.0
_MALFORMED: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What reading somebody else's JSON may raise."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Attempt:
    """The value of ``/jobs/<id>/attempt``."""

    number: int
    learners: int
    text: str
    """As it is written: what ``put_while`` compares."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the view knows of a learner."""

    attempt: int
    seq: int
    ready: bool
    """At READY or further."""
    revision: int


@dataclass(slots=True)
class _Job:
    attempt: Attempt | None = None
    learners: dict[str, Seen] = field(default_factory=dict)


def attempt_key(job_id: str) -> str:
    """Where the Guardian says which attempt is current."""
    return f"{JOBS}{job_id}/attempt"


def learner_key(job_id: str, name: str) -> str:
    """Where a learner's status is."""
    return f"{JOBS}{job_id}/learners/{name}"


def read_status(text: str | bytes) -> LearnerStatus | None:
    """The status that is written there; None where it is none."""
    try:
        return load(LearnerStatus, json.loads(text))
    except _MALFORMED:
        return None


class Attempts:
    def __init__(self, status: StatusStore) -> None:
        self._status = status
        self._jobs: dict[str, _Job] = {}
        self._running: dict[str, asyncio.Task[Attempt | None]] = {}
        self._queued: dict[str, asyncio.Task[Attempt | None]] = {}
        self.age = 0
        """Rises each time etcd lists anew: revisions of before and after cannot be compared."""
        self._told: dict[str, tuple[int, set[str]]] = {}
        """Job -> attempt and the names of its learners that were told to go."""

    async def follow(self) -> None:
        """Keeps the view, for ever."""
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
        """The job is over."""
        self._told.pop(job_id, None)

    def _put(self, entry: Entry) -> None:
        job_id, _, rest = entry.key.removeprefix(JOBS).partition("/")
        if rest == "attempt":
            self._jobs.setdefault(job_id, _Job()).attempt = _attempt(entry)
        elif rest.startswith("learners/"):
            status = read_status(entry.value)
            if status is not None:
                self.note(job_id, status, entry.mod_revision, age=self.age)
            else:  # not what the learner wrote: its next report is to be written anew
                self._jobs.setdefault(job_id, _Job()).learners.pop(rest.removeprefix("learners/"), None)

    def note(self, job_id: str, status: LearnerStatus, revision: int, *, age: int) -> None:
        """A learner's status is in etcd at this revision; ``age``: ours when etcd was asked.

        It may have forgotten since: what was there before would stand in front of all that comes.
        """
        if age != self.age:
            return
        learners = self._jobs.setdefault(job_id, _Job()).learners
        known = learners.get(status.name)
        if known is None or known.revision < revision:
            ready = PHASE_ORDER[status.phase] >= PHASE_ORDER[Phase.READY] and not status.helper_failed
            learners[status.name] = Seen(status.attempt, status.seq, ready, revision)

    def _delete(self, key: str) -> None:
        job_id, _, rest = key.removeprefix(JOBS).partition("/")
        job = self._jobs.get(job_id)
        if rest == "attempt":
            self._told.pop(job_id, None)
        if job is None:
            return
        if rest == "attempt":
            job.attempt = None
        else:
            job.learners.pop(rest.removeprefix("learners/"), None)
        if job.attempt is None and not job.learners:
            del self._jobs[job_id]

    def known(self, job_id: str) -> Attempt | None:
        """The current attempt as the view has it."""
        job = self._jobs.get(job_id)
        return job.attempt if job is not None else None

    def has(self, learner: LearnerIdentity, seq: int) -> bool:
        """Whether the view has this state of the learner, or a newer one, and its attempt as the current one."""
        job = self._jobs.get(learner.job)
        if job is None or job.attempt is None or job.attempt.number != learner.attempt:
            return False
        seen = job.learners.get(learner.name)
        return seen is not None and (seen.attempt, seen.seq) >= (learner.attempt, seq)

    def all_ready(self, job_id: str, attempt: Attempt) -> bool:
        """Whether every learner of the attempt was seen READY; once true it stays so."""
        told = self._told.get(job_id)
        if told is not None and told[0] == attempt.number:
            return True
        learners: Mapping[str, Seen] = self._jobs[job_id].learners if job_id in self._jobs else {}
        ready = sum(seen.ready and seen.attempt == attempt.number for seen in learners.values())
        if ready < attempt.learners:
            return False
        self._told[job_id] = (attempt.number, set())
        return True

    async def may_go(self, learner: LearnerIdentity) -> tuple[bool, bool]:
        """(current, go). Linearizable until the learner was told to go, then from the view. Unavailable: not known."""
        attempt = self.known(learner.job) if self.was_told(learner) else None
        if attempt is None or attempt.number < learner.attempt:
            attempt = await self.current(learner)
        if attempt.number > learner.attempt:
            return False, False
        go = self.all_ready(learner.job, attempt)
        if go:
            self._told[learner.job][1].add(learner.name)
        return True, go

    def was_told(self, learner: LearnerIdentity) -> bool:
        """Whether this learner was told to go, by this process."""
        number, names = self._told.get(learner.job, (0, frozenset[str]()))
        return number == learner.attempt and learner.name in names

    async def current(self, learner: LearnerIdentity) -> Attempt:
        """The job's current attempt, which is the learner's or a newer one, by a linearizable read."""
        attempt = await self._read(learner.job)
        if attempt is None or attempt.number < learner.attempt:
            raise Unavailable(
                f"it is not known now which attempt of job {learner.job} is current", retry_after_s=_ANSWER_SOON_S
            )
        return attempt

    async def _read(self, job_id: str) -> Attempt | None:
        """A read that begins after this question. One that runs already may be too old to answer it."""
        task = self._queued.get(job_id)
        if task is None:
            task = asyncio.create_task(self._read_after(job_id, self._running.get(job_id)))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, though all askers left
            self._queued[job_id] = task
        return await asyncio.shield(task)

    async def _read_after(self, job_id: str, before: asyncio.Task[Any] | None) -> Attempt | None:
        if before is not None:
            await asyncio.wait({before})
        mine = self._running[job_id] = self._queued.pop(job_id)
        try:
            entry = await self._status.get(attempt_key(job_id))
        finally:
            if self._running.get(job_id) is mine:
                del self._running[job_id]
        return _attempt(entry) if entry is not None else None


def _attempt(entry: Entry) -> Attempt | None:
    """None where the value is none: as if it were not there, which is where its writer writes it anew."""
    try:
        value = json.loads(entry.value)
        return Attempt(int(value["attempt"]), int(value["learners"]), entry.value)
    except _MALFORMED:
        log.warning("attempts.malformed", key=entry.key)
        return None
