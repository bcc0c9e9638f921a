"""Jobs as they change, for whoever follows them.

The job document is the truth, so it is what is looked at: one poll per followed job, shared by all its followers, which
ends with the last of them. Nothing here decides; a poll that fails is made again.
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
    """One job under observation. ``job`` is the newest document; None once it is gone."""

    job: Job | None
    followers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a fresh one, at each change: take it before you look at ``job``."""
    task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Nothing more will come of it, unless its owner resumes it."""
        return self.job is None or self.job.deleted is not None or self.job.at_rest

    def put(self, job: Job | None) -> None:
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
        """The job under observation while the context is open, from this document on."""
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
                watched.put(await self._store.get(job_id))
            except WeftError as failed:
                log.warning("api.watch_failed", job=job_id, why=failed.message)
