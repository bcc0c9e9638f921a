"""The right to append ends a few seconds after the declared end of the attempt, also for a token that lives on.

The job document declares the end: a status in which the attempt does not run any more, or a newer attempt. It is read
only for a learner whose end is likely: its attempt is not the current one in etcd's view, or its helper has reported
that everything is stored. So appends of running learners cost no read, and do not depend on the job store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from services.core.domain.errors import PermissionDenied
from services.core.domain.job import Job
from services.core.domain.status import ADMITTED
from services.core.domain.tokens import LearnerIdentity
from services.core.ports.clock import Clock
from services.core.ports.job_store import JobStore
from services.metrics.attempts import Attempts

_READ_AGAIN_MS: Final = 1_000
_KEPT: Final = 10_000
"""Documents' ends that are cached; each takes about 200 bytes."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Known:
    read_at: int
    """Unix ms."""
    ended_at: int | None
    """Unix ms of the attempt's declared end; None: it goes on, or the job has no document."""


class AttemptEnds:
    def __init__(
        self, open_jobs: Callable[[], Awaitable[JobStore]], attempts: Attempts, clock: Clock, *, late_s: float
    ) -> None:
        """``open_jobs`` is called at the first likely end: intake starts without the job store.

        ``late_s``: so many seconds after its declared end an attempt may still append.
        """
        self._open_jobs, self._attempts, self._clock, self._late_ms = open_jobs, attempts, clock, late_s * 1000
        self._jobs: JobStore | None = None
        self._opening = asyncio.Lock()
        self._known: dict[tuple[str, int], _Known] = {}
        self._reading: dict[tuple[str, int], asyncio.Task[_Known]] = {}

    async def check(self, learner: LearnerIdentity) -> None:
        """Raises PermissionDenied for an append that comes too late, Unavailable if that cannot be known now."""
        if not self._attempts.may_have_ended(learner):
            return
        ended_at = await self._ended_at(learner)
        if ended_at is not None and self._clock.now_ms() > ended_at + self._late_ms:
            log.warning("append.refused", job=learner.job, attempt=learner.attempt, learner=learner.name)
            raise PermissionDenied(
                f"attempt {learner.attempt} of job {learner.job} has ended; nothing more is taken from its learners"
            )

    async def close(self) -> None:
        if self._jobs is not None:
            await self._jobs.close()

    async def _ended_at(self, learner: LearnerIdentity) -> int | None:
        key, now = (learner.job, learner.attempt), self._clock.now_ms()
        known = self._known.pop(key, None)
        if known is None or (known.ended_at is None and now - known.read_at > _READ_AGAIN_MS):
            known = await self._read(key)
        self._known[key] = known  # last: the oldest are dropped first
        while len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        return known.ended_at

    async def _read(self, key: tuple[str, int]) -> _Known:
        """All learners of a gang share a read: they end at the same time, and the job store may be slow."""
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(self._declared(*key))
            task.add_done_callback(lambda _: self._reading.pop(key, None))
            # Retrieves the error: all callers may have been cancelled.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _declared(self, job_id: str, attempt: int) -> _Known:
        read_at = self._clock.now_ms()
        job = await (await self._store()).get(job_id)
        return _Known(read_at, None if job is None else declared_end(job, attempt))

    async def _store(self) -> JobStore:
        async with self._opening:
            if self._jobs is None:
                self._jobs = await self._open_jobs()
            return self._jobs


def declared_end(job: Job, attempt: int) -> int | None:
    """When the document declared the end of this attempt, in Unix ms; None: it has not."""
    if job.attempt.number > attempt:
        return job.attempt.admitted or 0  # a newer attempt is admitted after the release of the one before
    return None if job.attempt.number < attempt or job.status in ADMITTED else job.state.since
