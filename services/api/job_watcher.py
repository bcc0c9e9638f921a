"""Watches the documents of followed jobs, and the changes of all jobs: one feed for the process.

The feed reads which jobs were written since its last read, from an index of the job store, and then the documents of
those that are followed and have changed, or of all that have changed while a list is followed. So a follower of a quiet
job costs no read, any number of lists cost one read of each change, and the feed reads nothing while the process has no
follower. A store may miss a write (``JobStore.changes``), so each followed job is also read every ``_RECHECK_S``. A
read that fails is repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from services.api.job_changes import JobChanges, Rendered
from services.core.domain.errors import Unavailable, WeftError
from services.core.domain.job import Job
from services.core.ports.job_store import Changes, JobStore
from services.core.runtime.edges import log_unexpected

_RECHECK_S: Final = 15.0
_RECHECKED: Final = 20
"""Jobs whose time has come that one turn of the feed reads: thousands of followers cost no burst."""
log = structlog.get_logger()


@dataclass(eq=False)
class Watched:
    """One followed job. ``job`` is the newest document; None if the job no longer exists."""

    job: Job | None
    followers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new one, at each change. Read it before ``job``, so that no change is missed."""
    read_at_s: float | None = None
    """When the feed last read the document, in the time of the event loop; None: never."""

    @property
    def over(self) -> bool:
        """The job is at rest or no longer exists: it changes only if its owner resumes it."""
        return self.job is None or self.job.deleted is not None or self.job.at_rest

    @property
    def rev(self) -> int:
        """The revision of the document; 0 if the job no longer exists."""
        return self.job.rev if self.job else 0

    def update(self, job: Job | None) -> None:
        """Keeps the document, if it is a newer one or the job no longer exists, and wakes the followers.

        The feed and the followers read at the same time: the answer that comes last may be the older one.
        """
        if (job is None and self.job is not None) or (job is not None and job.rev > self.rev):
            self.job = job
            self.changed.set()
            self.changed = asyncio.Event()


class Watcher:
    def __init__(self, store: JobStore, *, every_s: float, render: Callable[[Job], Rendered]) -> None:
        """``every_s``: pause between two reads of the feed, in seconds. ``render``: how lists show a job."""
        self._store = store
        self._every_s = every_s
        self._render = render
        self._lists = 0
        """Followers of changes of all jobs."""
        self._changes: asyncio.Future[JobChanges] | None = None
        self._watched: dict[str, Watched] = {}
        """By job id."""
        self._task: asyncio.Task[None] | None = None
        self._position: int | None = None

    @contextlib.asynccontextmanager
    async def follow(self, job: Job) -> AsyncGenerator[Watched]:
        """Watches the job while the context is open; ``job`` is the first document.

        Its followers share one document: none keeps ``job``, nor may the caller.
        """
        job_id = job.id
        watched = self._watched.setdefault(job_id, Watched(job))
        watched.update(job)  # that of earlier followers may be older: the feed has not read it yet
        del job
        watched.followers += 1
        self._start()
        try:
            yield watched
        finally:
            watched.followers -= 1
            if watched.followers == 0:
                self._watched.pop(job_id, None)
            self._stop_if_idle()

    @contextlib.asynccontextmanager
    async def follow_all(self) -> AsyncGenerator[JobChanges]:
        """Follows the changes of all jobs while the context is open. A job that is read afterwards is not older than
        the place where the log ends when the context is entered.
        """
        self._lists += 1
        if self._changes is None:
            self._changes = asyncio.get_running_loop().create_future()
        self._start()
        try:
            yield await asyncio.shield(self._changes)
        finally:
            self._lists -= 1
            if self._lists == 0:
                self._changes = None
            self._stop_if_idle()

    def _start(self) -> None:
        if self._task is None:
            self._position = None
            self._task = asyncio.create_task(self._feed())

    def _stop_if_idle(self) -> None:
        if not self._watched and not self._lists and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _feed(self) -> None:
        """Updates the followed jobs until cancelled."""
        while True:
            try:
                with log_unexpected("feed.failed", expected=WeftError):
                    await self._read_changes()
            except WeftError as error:
                log.warning("feed.interrupted", error=error.message)
            await asyncio.sleep(self._every_s)

    async def _read_changes(self) -> None:
        changes = await self._store.changes(self._position)
        due_before_s = asyncio.get_running_loop().time() - _RECHECK_S
        due: list[str] = []
        # A job that is followed since the last turn may have changed between its follower's read and this one.
        new: list[str] = []
        for job_id, watched in self._watched.items():
            if watched.read_at_s is None:
                new.append(job_id)
            elif watched.read_at_s < due_before_s and len(due) < _RECHECKED:
                due.append(job_id)
        changed = [
            job_id
            for job_id, rev in changes.revisions.items()
            if job_id in self._watched and self._watched[job_id].rev != rev
        ]
        for job_id in dict.fromkeys((*changed, *new, *due)):
            await self._read(job_id)
        await self._log_changes(changes)
        self._position = changes.position  # not before: a read that failed is repeated with the same changes

    async def _log_changes(self, changes: Changes) -> None:
        """Adds the changed jobs to the log that lists follow; begins the log if a list is the first."""
        pending = self._changes
        if pending is None:
            return
        if not pending.done():
            pending.set_result(JobChanges(changes.position, self._render))
            return
        log_of_changes = pending.result()
        for job_id, rev in changes.revisions.items():
            if not log_of_changes.is_new(job_id, rev):
                continue
            watched = self._watched.get(job_id)
            try:
                job = watched.job if watched is not None and watched.rev >= rev else await self._store.get(job_id)
                if job is not None:
                    log_of_changes.add(job, changes.position)
            except WeftError as error:
                if isinstance(error, Unavailable):
                    raise
                log.warning("job.poll_failed", job=job_id, error=error.message)
        log_of_changes.complete(changes.position)

    async def _read(self, job_id: str) -> None:
        """Reads one job. A document that cannot be read harms its own followers only."""
        watched = self._watched.get(job_id)
        if watched is None:
            return
        try:
            watched.update(await self._store.get(job_id))
        except WeftError as error:
            if isinstance(error, Unavailable):
                raise
            log.warning("job.poll_failed", job=job_id, error=error.message)
        watched.read_at_s = asyncio.get_running_loop().time()
