"""Reading, halting, resuming, killing and deleting jobs.

Only the desired state is written here; the Guardian and the dispatcher act on it. A job that holds no hardware changes
at once, in the same replace (``domain.job.set_desired``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from services.api.access import Principal
from services.api.idempotency import KEPT_MS, IdempotencyKeys, request_digest, stored_key
from services.api.instrumentation import Instrumentation
from services.api.stale_cache import StaleCache
from services.core.domain.errors import (
    Conflict,
    IllegalTransition,
    NotFound,
    PreconditionFailed,
    Quarantined,
    StaleRevision,
)
from services.core.domain.ids import is_id
from services.core.domain.job import Event, Job, removed, with_applied_key
from services.core.domain.job import set_desired as with_desired
from services.core.domain.status import Desired
from services.core.ports.clock import Clock
from services.core.ports.hints import Hints
from services.core.ports.job_store import JobQuery, JobStore
from services.core.use_cases import jobs

log = structlog.get_logger()
_TRIES: Final = 100
"""As in ``services.core.use_cases.jobs.update``."""
_SEARCH_S: Final = 1.0
_SEARCHED: Final = 500
"""Jobs that a search reads at a time."""
_COMPARED_S: Final = 0.25
"""So long, at least, a search compares the jobs that it has read: it goes on although the store is slow."""
_CACHED_JOBS: Final = 16 * 2**20
_CACHED_PAGES: Final = 32 * 2**20
"""Bytes of jobs and of pages that are cached for times when the store is away: thousands of ordinary jobs (2 KiB), and
a hundred pages of a hundred of them.
"""
_CACHED_PAGE: Final = 100
"""Most jobs of a page that is cached."""


@dataclass(frozen=True, slots=True)
class DesiredResult:
    job: Job
    replayed: bool
    """The change was made before, under this idempotency key; ``job`` is as it is now."""


@dataclass(frozen=True, slots=True)
class Matched:
    """The result of comparing some jobs with a filter."""

    jobs: Sequence[Job]
    """Those that match, in their order."""
    read: int
    """How many were compared, from the first; fewer than there were: the time was over."""


class Jobs:
    def __init__(
        self,
        store: JobStore,
        idempotency_keys: IdempotencyKeys,
        hints: Hints,
        clock: Clock,
        instrumentation: Instrumentation,
        *,
        delete_wait_s: float,
        poll_s: float,
    ) -> None:
        self._store = store
        self._idempotency_keys = idempotency_keys
        self._hints = hints
        self._clock = clock
        self._instrumentation = instrumentation
        self._delete_wait_s = delete_wait_s
        self._poll_s = poll_s
        self._cached_jobs = StaleCache(clock, most_bytes=_CACHED_JOBS)
        self._cached_pages = StaleCache(clock, most_bytes=_CACHED_PAGES)

    def now(self) -> int:
        """Unix milliseconds."""
        return self._clock.now_ms()

    async def get_maybe_stale(self, principal: Principal, job_id: str) -> Job:
        """As ``get``, for showing only: while the store is away, the job as it was read last."""

        async def stored() -> Sequence[Job]:
            job = await self._store.get(job_id)
            return [job] if job is not None else []

        async def read() -> Job | None:
            return next(iter(await self._cached_jobs.read(job_id, stored)), None)

        return await self._get(principal, job_id, read)

    async def get(self, principal: Principal, job_id: str, *, deleted: bool = False) -> Job:
        """The job. Raises NotFound if it is missing, another tenant's or, unless ``deleted``, deleted; Quarantined if
        it cannot be read.
        """
        return await self._get(principal, job_id, lambda: self._store.get(job_id), deleted=deleted)

    async def _get(
        self, principal: Principal, job_id: str, read: Callable[[], Awaitable[Job | None]], *, deleted: bool = False
    ) -> Job:
        if not is_id(job_id, "j"):
            raise NotFound(f"there is no job {job_id}")
        try:
            job = await read()
        except Quarantined as error:
            if not principal.admin and error.tenant != principal.tenant:
                raise NotFound(f"there is no job {job_id}") from None
            advice = "an operator finds it with `weft doctor`; the job continues by itself after the repair"
            raise Quarantined(f"{error.message}; it is in quarantine: {advice}", tenant=error.tenant) from error
        return principal.visible(job, job_id, deleted=deleted)

    async def page(self, query: JobQuery, *, limit: int, newest_first: bool = True) -> tuple[Sequence[Job], str | None]:
        """A page, and the cursor of the next one; None after the last.

        While the store is away, a page of at most ``_CACHED_PAGE`` jobs as it was read last, if it was not too large.
        """

        async def read() -> Sequence[Job]:
            return await self._store.find(query, newest_first=newest_first, limit=limit + 1)

        cached = limit <= _CACHED_PAGE
        documents = await (self._cached_pages.read((query, limit, newest_first), read) if cached else read())
        return documents[:limit], documents[limit - 1].id if len(documents) > limit else None

    async def search(
        self,
        query: JobQuery,
        matching: Callable[[Sequence[Job], Callable[[], bool]], Awaitable[Matched]],
        *,
        limit: int,
        newest_first: bool = True,
    ) -> tuple[Sequence[Job], str | None]:
        """As ``page``, of the jobs of the query that ``matching`` keeps: of some jobs, until its second argument is
        true.

        It reads for ``_SEARCH_S`` seconds at most, so a page may have fewer jobs, or none, and still a cursor.
        """
        matched: list[Job] = []
        until = self._clock.boottime() + _SEARCH_S
        while True:
            documents = await self._store.find(query, newest_first=newest_first, limit=_SEARCHED)
            compared_until = max(until, self._clock.boottime() + _COMPARED_S)
            part = await matching(documents, partial(self._is_after, compared_until))
            matched += part.jobs
            is_last = part.read == len(documents) < _SEARCHED
            if len(matched) > limit or (len(matched) == limit and not is_last):
                return matched[:limit], matched[limit - 1].id
            if is_last:
                return matched, None
            if part.read < len(documents) or self._clock.boottime() >= until:
                return matched, documents[part.read - 1].id
            query = replace(query, after=documents[-1].id)

    def _is_after(self, moment: float) -> bool:
        return self._clock.boottime() >= moment

    async def waiting(self, query: JobQuery, *, limit: int) -> Sequence[Job]:
        """The oldest ``limit`` jobs of the query, oldest first."""
        return await self._store.find(query, newest_first=False, limit=limit)

    async def history(self, principal: Principal, job_id: str, *, after_seq: int = 0) -> Sequence[Event]:
        """Events after ``after_seq``, oldest first."""
        return await jobs.history(self._store, await self.get(principal, job_id), after_seq=after_seq)

    async def set_desired(
        self,
        principal: Principal,
        job_id: str,
        desired: Desired,
        *,
        generation: int | None = None,
        key: str | None = None,
    ) -> DesiredResult:
        """Sets the desired state, and sends a hint to the Guardian and the dispatcher.

        Setting the same state again changes nothing. Under an idempotency ``key`` the change is made once in seven
        days, whatever happened to the job since.

        Raises NotFound; PreconditionFailed if ``generation`` is not the job's; IllegalTransition if the job can no
        longer reach the state; IdempotencyMismatch if the key was used before with another change.
        """
        await self.get(principal, job_id)  # ``update`` gets no malformed id

        def change(job: Job) -> Job:
            principal.visible(job, job_id)
            _check_generation(job, generation)
            return with_desired(job, desired, actor=principal.actor_on(job), now=self._clock.now_ms())

        if key is None:
            done = DesiredResult(await jobs.update(self._store, job_id, None, change), replayed=False)
        else:
            stored = stored_key(principal, key)
            # "wish" is part of the digests that are stored: the word must stay.
            request = {"job": job_id, "wish": desired, "generation": generation}
            await self._idempotency_keys.bind(stored, request_digest(request))
            done = await self._change_once(principal, job_id, stored, change)
        await self._hints.send("desired", job_id)
        if desired is Desired.HALT and not done.replayed:
            self._instrumentation.halted.inc()
        return done

    async def _change_once(
        self, principal: Principal, job_id: str, key: str, change: Callable[[Job], Job]
    ) -> DesiredResult:
        """Makes the change and records the key in one replace, unless the change was made before."""
        for _ in range(_TRIES):
            prior = await self.get(principal, job_id)
            now = self._clock.now_ms()
            # In this order: a key leaves the document only after its record is marked as done.
            if prior.was_applied(key, since=now - KEPT_MS) or await self._idempotency_keys.is_done(key):
                return DesiredResult(prior, replayed=True)
            new, removed_keys = with_applied_key(change(prior), key, now=now)
            for applied in removed_keys:
                await self._idempotency_keys.mark_done(applied.key)
            try:
                return DesiredResult(await self._store.replace(prior, new), replayed=False)
            except StaleRevision:
                continue
        raise StaleRevision(f"job {job_id} kept changing under {_TRIES} tries to update it")

    async def delete(self, principal: Principal, job_id: str, *, kill: bool, generation: int | None = None) -> None:
        """Hides the job; its document stays, its data is erased later. With ``kill`` a live job is killed first.

        Raises NotFound; PreconditionFailed if ``generation`` is not the job's, or if the job is changed after the kill;
        Conflict while the job is live, with ``kill`` after ``delete_wait_s``.
        """
        job = await self.get(principal, job_id)
        if kill and not job.at_rest:
            _check_generation(job, generation)
            killed = await self._kill_and_wait(principal, job, generation)
            generation = killed if generation is not None else None

        actor = principal.actor_on(job)

        def change(job: Job) -> Job:
            _check_generation(principal.visible(job, job_id), generation)
            return removed(job, actor=actor, now=self._clock.now_ms())

        await jobs.update(self._store, job_id, None, change)
        log.info("job.deleted", job=job_id, tenant=job.tenant, actor=actor)
        self._instrumentation.deleted.inc()

    async def _kill_and_wait(self, principal: Principal, job: Job, generation: int | None) -> int:
        """Kills the job and waits until it is at rest: deletion would hide it from the services that clean up.

        Returns the generation of the job after the kill.
        """
        if not job.finished:
            with contextlib.suppress(IllegalTransition):  # it has just ended by itself
                job = (await self.set_desired(principal, job.id, Desired.KILL, generation=generation)).job
        killed = job.generation
        deadline = self._clock.boottime() + self._delete_wait_s
        while not job.at_rest:
            if self._clock.boottime() >= deadline:
                raise Conflict(f"job {job.id} is being killed; delete it again in a moment", retry_after_s=2)
            await asyncio.sleep(self._poll_s)
            current = await self._store.get(job.id)
            if current is None:
                raise NotFound(f"there is no job {job.id}")
            job = current
        return killed


def _check_generation(job: Job, generation: int | None) -> None:
    """Raises PreconditionFailed if the job is at another generation; None: any will do."""
    if generation is not None and job.generation != generation:
        raise PreconditionFailed(f"job {job.id} is at generation {job.generation}, not {generation}: read it again")
