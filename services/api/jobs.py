"""What an owner does with a job that is there: look, list, halt, resume, kill, delete.

Only wishes are written here; the Guardian and the dispatcher carry them out. A job that holds nothing obeys at once,
within the same replace (``domain.job.desire``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from services.api.access import Principal
from services.api.idempotency import KEPT_MS, Answers, digest_of, origin_of
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
from services.core.domain.job import Event, Job, removed, set_desired, with_applied_key
from services.core.domain.status import Desired
from services.core.ports.clock import Clock
from services.core.ports.hints import Hints
from services.core.ports.job_store import JobQuery, JobStore
from services.core.use_cases import jobs

_TRIES: Final = 100
"""As of ``services.core.use_cases.jobs.update``."""


_JOBS_SEEN: Final = 1_000
_PAGES_SEEN: Final = 100
_PAGE_SEEN: Final = 100
"""Jobs, pages, and jobs on a page, that are remembered for a store that goes away: some ten megabytes at most."""


@dataclass(frozen=True, slots=True)
class DesiredResult:
    job: Job
    replayed: bool
    """It was carried out before, under this idempotency key; the job is as it is now."""


class Jobs:
    def __init__(
        self,
        store: JobStore,
        answers: Answers,
        hints: Hints,
        clock: Clock,
        instrumentation: Instrumentation,
        *,
        delete_wait_s: float,
        poll_s: float,
    ) -> None:
        self._store = store
        self._answers = answers
        self._hints = hints
        self._clock = clock
        self._instrumentation = instrumentation
        self._delete_wait_s = delete_wait_s
        self._poll_s = poll_s
        self._jobs_seen: StaleCache[Job | None] = StaleCache(clock, most=_JOBS_SEEN)
        self._pages_seen: StaleCache[Sequence[Job]] = StaleCache(clock, most=_PAGES_SEEN)

    def now(self) -> int:
        """Unix milliseconds, for answers that say how long something lasts."""
        return self._clock.now_ms()

    async def look(self, principal: Principal, job_id: str) -> Job:
        """As ``get``, for who only shows it: while the store is away perhaps as it was a moment ago."""
        return await self._of(principal, job_id, self._jobs_seen.ask(job_id, lambda: self._store.get(job_id)))

    async def get(self, principal: Principal, job_id: str) -> Job:
        """NotFound for what is not there, was deleted, or is another tenant's. Quarantined: it cannot be read."""
        return await self._of(principal, job_id, self._store.get(job_id))

    async def _of(self, principal: Principal, job_id: str, params: Coroutine[Any, Any, Job | None]) -> Job:
        if not is_id(job_id, "j"):
            params.close()
            raise NotFound(f"there is no job {job_id}")
        try:
            found = await params
        except Quarantined as error:
            if not principal.admin and error.tenant != principal.tenant:
                raise NotFound(f"there is no job {job_id}") from None
            advice = "an operator finds it with `weft doctor`; it goes on by itself once it is mended"
            raise Quarantined(f"{error.message}; it is in quarantine: {advice}", tenant=error.tenant) from error
        return principal.own(found, job_id)

    async def find(self, query: JobQuery, *, limit: int) -> tuple[Sequence[Job], str | None]:
        """A page, newest first, and the cursor of the next one (None: this was the last).

        While the store is away, perhaps as it was a moment ago.
        """
        if limit > _PAGE_SEEN:
            found = await self._store.find(query, limit=limit + 1)
        else:
            found = await self._pages_seen.ask((query, limit), lambda: self._store.find(query, limit=limit + 1))
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    async def waiting(self, query: JobQuery, *, limit: int) -> Sequence[Job]:
        """Oldest first."""
        return await self._store.find(query, newest_first=False, limit=limit)

    async def history(self, principal: Principal, job_id: str, *, after_seq: int = 0) -> Sequence[Event]:
        return await jobs.history(self._store, await self.get(principal, job_id), after_seq=after_seq)

    async def desired(
        self,
        principal: Principal,
        job_id: str,
        desired: Desired,
        *,
        generation: int | None = None,
        key: str | None = None,
    ) -> DesiredResult:
        """Writes down what the owner wants, and wakes up who carries it out.

        ``generation``: only while the job is still at this one, else PreconditionFailed. IllegalTransition where the
        wish can no longer be had. Wishing the same again changes nothing. Under an idempotency ``key`` it is done once
        in seven days, whatever became of the job meanwhile; IdempotencyMismatch where the key came with another wish.
        """
        await self.get(principal, job_id)  # an id that is none of ours is not asked for by ``update``

        def change(job: Job) -> Job:
            principal.own(job, job_id)
            if generation is not None and job.generation != generation:
                raise PreconditionFailed(
                    f"job {job_id} is at generation {job.generation}, not {generation}: somebody changed it; look again"
                )
            return set_desired(job, desired, actor=f"user:{principal.user}", now=self._clock.now_ms())

        if key is None:
            done = DesiredResult(await jobs.update(self._store, job_id, None, change), replayed=False)
        else:
            origin = origin_of(principal, key)
            await self._answers.bind(origin, digest_of({"job": job_id, "wish": desired, "generation": generation}))
            done = await self._set_desired_once(principal, job_id, origin, change)
        await self._hints.send("desired", job_id)
        if desired is Desired.HALT and not done.replayed:
            self._instrumentation.halted.inc()
        return done

    async def _set_desired_once(
        self, principal: Principal, job_id: str, origin: str, change: Callable[[Job], Job]
    ) -> DesiredResult:
        """The change with its key in one replace, unless it was made before."""
        for _ in range(_TRIES):
            prior = await self.get(principal, job_id)
            now = self._clock.now_ms()
            # In this order: a key leaves the document only after its record says that it is done.
            if prior.was_applied(origin, since=now - KEPT_MS) or await self._answers.done(origin):
                return DesiredResult(prior, replayed=True)
            new, forgotten = with_applied_key(change(prior), origin, now=now)
            for one in forgotten:
                await self._answers.finish(one.key)
            try:
                return DesiredResult(await self._store.replace(prior, new), replayed=False)
            except StaleRevision:
                continue
        raise StaleRevision(f"job {job_id} kept changing under {_TRIES} tries to update it")

    async def delete(self, principal: Principal, job_id: str, *, kill: bool) -> None:
        """Soft. Conflict while the job is live; with ``kill`` it is killed first, and waited for a while."""
        job = await self.get(principal, job_id)
        if kill and not job.at_rest:
            await self._kill_and_wait(principal, job)

        def change(job: Job) -> Job:
            return removed(principal.own(job, job_id), now=self._clock.now_ms())

        await jobs.update(self._store, job_id, None, change)
        self._instrumentation.deleted.inc()

    async def _kill_and_wait(self, principal: Principal, job: Job) -> None:
        """Deleting it unfinished would hide it from those who must clean up after it: so it is waited for."""
        if not job.finished:
            with contextlib.suppress(IllegalTransition):  # it has ended by itself just now
                job = (await self.desired(principal, job.id, Desired.KILL)).job
        deadline = self._clock.boottime() + self._delete_wait_s
        while not job.at_rest:
            if self._clock.boottime() >= deadline:
                raise Conflict(f"job {job.id} is being killed; delete it again in a moment", retry_after_s=2)
            await asyncio.sleep(self._poll_s)
            found = await self._store.get(job.id)
            if found is None:
                raise NotFound(f"there is no job {job.id}")
            job = found
