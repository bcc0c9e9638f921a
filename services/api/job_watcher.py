"""Polls the documents of followed jobs.

All followers of a job share one poll, which ends with the last of them. A poll that fails is repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import structlog

from services.core.domain.errors import WeftError
from services.core.domain.job import Job
from services.core.ports.job_store import JobStore

log = structlog.get_logger()


@dataclass
class Watched:
    """One followed job. ``job`` is the newest document; None if the job no longer exists."""

    job: Job | None
    followers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new one, at each change. Read it before ``job``, so that no change is missed."""
    task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """The job is at rest or no longer exists: it changes only if its owner resumes it."""
        return self.job is None or self.job.deleted is not None or self.job.at_rest

    def update(self, job: Job | None) -> None:
        """Notes the newest document."""
        if (job.rev if job else 0) != (self.job.rev if self.job else 0):
            self.job = job
            self.changed.set()
            self.changed = asyncio.Event()


class Watcher:
    def __init__(self, store: JobStore, *, every_s: float) -> None:
        self._store = store
        self._every_s = every_s
        self._watched: dict[str, Watched] = {}

    @contextlib.asynccontextmanager
    async def follow(self, job: Job) -> AsyncGenerator[Watched]:
        """Polls the job while the context is open; ``job`` is the first document."""
        watched = self._watched.get(job.id)
        if watched is None:
            watched = self._watched[job.id] = Watched(job)
            watched.task = asyncio.create_task(self._poll(job.id, watched))
        watched.followers += 1
        try:
            yield watched
        finally:
            watched.followers -= 1
            if watched.followers == 0 and watched.task is not None:
                self._watched.pop(job.id, None)
                watched.task.cancel()

    async def _poll(self, job_id: str, watched: Watched) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                watched.update(await self._store.get(job_id))
            except WeftError as error:
                log.warning("job.poll_failed", job=job_id, error=error.message)
