"""Erases the data of deleted jobs: logs and metrics, objects, and code that no other job names.

A deleted job keeps its document and history. Its data is erased ``deleted_keep_s`` after the deletion, in this order:
logs and metrics; objects, a page at a time; a mark for its code; last ``erased`` in its document. A process that dies
between two steps leaves a job that is not erased, and the next turn repeats the steps, each of which may be repeated.

Nothing that a live job uses can be erased: a job is deleted only at rest, a deletion is never undone (the store refuses
it), and all keys are below the job's own prefix. Code is shared: see ``services.core.use_cases.code_removal``. While
any stored document cannot be read no code is removed, because that document may name it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from services.core.domain.errors import StaleFence, Unavailable, WeftError
from services.core.domain.job import Job, erased
from services.core.ports.clock import Clock
from services.core.ports.job_store import JobStore
from services.core.ports.object_store import ObjectStore
from services.core.ports.record_store import RecordStore
from services.core.use_cases import code_removal
from services.core.use_cases.code_removal import Candidate, code_key
from services.core.use_cases.jobs import update
from services.lcm.instrumentation import Instrumentation
from services.lcm.settings import LcmSettings
from services.lcm.turn import Turn

_JOBS: Final = 50
"""Deleted jobs of one turn."""
_OBJECTS: Final = 500
"""Objects of one page. A turn ends with the page in which it has removed as many."""
_CODES: Final = 50
"""Candidates of one turn."""
_UNNAMED: Final = 10_000
"""Stored code archives that one search for unnamed ones reads."""
_TENANTS: Final = "tenants/"
_RETRY_S: Final = 60.0
"""Pause before a job that could not be erased is tried again."""
_STALE_S: Final = 5.0
"""Code is removed at most so long after its removal began, on a clock that does not stop with the process."""
log = structlog.get_logger()


class TelemetryRemoval(Protocol):
    async def forget(self, job_id: str) -> None:
        """Removes all logs and metrics of the job. No error where there are none. Raises Unavailable."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class ErasurePorts:
    jobs: JobStore
    records: RecordStore
    objects: ObjectStore
    telemetry: TelemetryRemoval
    clock: Clock


@dataclass(frozen=True, slots=True)
class _Removed:
    objects: int
    size: int
    """Bytes."""


class Eraser:
    """Call ``erase_jobs`` and ``remove_code`` in each sweep, ``mark_unnamed_code`` now and then, while leading."""

    def __init__(
        self,
        ports: ErasurePorts,
        settings: LcmSettings,
        instrumentation: Instrumentation,
        *,
        all_readable: Callable[[], bool],
    ) -> None:
        """``all_readable``: False while a stored job document is known that cannot be read."""
        self._ports, self._settings, self._instrumentation = ports, settings, instrumentation
        self._all_readable = all_readable
        self._after: Job | None = None
        """The last job that a turn has read. Turns go through all of them, so that a failing job stops no other."""
        self._retry_s: dict[str, float] = {}
        """When a job that could not be erased is tried again, on the boot-time clock."""
        self._candidate: str | None = None
        self._unnamed = ("", "")
        """The tenant and the key at which the search for unnamed code goes on."""

    # --- jobs ----------------------------------------------------------------------

    async def erase_jobs(self) -> int:
        """Erases some jobs that are due. Returns how many.

        Raises Unavailable if a store does not answer. One that refuses single jobs or objects, or a part of it that is
        away, stops no other job.
        """
        until = self._ports.clock.now_ms() - round(self._settings.deleted_keep_s * 1000)
        page = await self._ports.jobs.to_erase(deleted_until=until, after=self._after, limit=_JOBS)
        number, objects, turn = 0, 0, Turn()
        now_s = self._ports.clock.boottime()
        self._retry_s = {job_id: time_s for job_id, time_s in self._retry_s.items() if time_s > now_s}
        for job in page:
            if job.id in self._retry_s:
                continue
            self._after = job
            try:
                removed = await self._erase(job)
            except WeftError as error:
                log.warning("job.not_erased", job=job.id, why=str(error))
                if not isinstance(error, Unavailable):
                    self._retry_s[job.id] = now_s + _RETRY_S
                turn.failed(error)
            else:
                turn.succeeded()
                number += removed is not None
                objects += removed.objects if removed is not None else _OBJECTS
            if objects >= _OBJECTS:
                return number
        self._after = page[-1] if len(page) == _JOBS else None
        turn.end()
        return number

    async def _erase(self, job: Job) -> _Removed | None:
        """Erases the job; None if objects are left for another turn."""
        await self._ports.telemetry.forget(job.id)
        removed = await self._remove_objects(f"{_TENANTS}{job.tenant}/jobs/{job.id}/")
        if removed is None:
            return None
        now = self._ports.clock.now_ms()
        if job.code_digest:
            await code_removal.mark(self._ports.records, job.tenant, job.code_digest, now=now)
        await update(self._ports.jobs, job.id, None, lambda current: erased(current, now=now))
        self._instrumentation.deleted_jobs.inc()
        log.info(
            "job.erased",
            job=job.id,
            tenant=job.tenant,
            actor="lcm",
            deleted_by=job.deleted_by,
            deleted=job.deleted,
            objects=removed.objects,
            bytes=removed.size,
        )
        return removed

    async def _remove_objects(self, prefix: str) -> _Removed | None:
        """Removes a page of objects; None if objects are left for another turn."""
        page = await self._ports.objects.list(prefix, limit=_OBJECTS)
        for meta in page:
            await self._ports.objects.delete(meta.key)
            self._count(meta.size)
        if len(page) == _OBJECTS:
            return None
        await self._ports.objects.delete_prefix(prefix)  # what a list does not show, e.g. empty folders
        return _Removed(len(page), sum(meta.size for meta in page))

    def _count(self, size: int) -> None:
        self._instrumentation.deleted_objects.inc()
        self._instrumentation.deleted_bytes.inc(size)

    # --- code ----------------------------------------------------------------------

    async def remove_code(self, term: int) -> int:
        """Removes candidates whose grace time has ended and that no job names. Returns how many.

        Raises StaleFence if the dispatcher of this term does not lead any more, Unavailable.
        """
        page = await code_removal.candidates(self._ports.records, after=self._candidate, limit=_CODES)
        self._candidate = page[-1].record.id if len(page) == _CODES else None
        number, turn = 0, Turn()
        for candidate in page:
            due = candidate.since + round(self._settings.code_grace_s * 1000) <= self._ports.clock.now_ms()
            if candidate.removing or (due and self._all_readable()):
                try:
                    number += await self._remove_or_keep(candidate, term)
                except StaleFence:
                    raise
                except WeftError as error:  # its turn comes again
                    log.warning("code.not_erased", tenant=candidate.tenant, digest=candidate.digest, why=str(error))
                    turn.failed(error)
                else:
                    turn.succeeded()
        turn.end()
        return number

    async def _remove_or_keep(self, candidate: Candidate, term: int) -> bool:
        tenant, digest = candidate.tenant, candidate.digest
        if not candidate.removing and await self._ports.jobs.names_code(tenant, digest):
            await code_removal.finish(self._ports.records, candidate)
            return False
        if (await self._ports.jobs.dispatcher()).term != term:
            raise StaleFence("a newer dispatcher leads")
        began_s = self._ports.clock.boottime()
        if not candidate.removing and not await code_removal.begin(
            self._ports.records, candidate, now=self._ports.clock.now_ms()
        ):
            return False  # a submission has claimed it
        key = code_key(tenant, digest)
        meta = await self._ports.objects.head(key)
        if self._ports.clock.boottime() - began_s > _STALE_S:
            return False  # this process stood still: another one may have finished, and the code may be in use again
        await self._ports.objects.delete(key)
        await code_removal.finish(self._ports.records, candidate)
        if meta is not None:
            self._count(meta.size)
            log.info("code.erased", tenant=tenant, digest=digest, actor="lcm", bytes=meta.size)
        return meta is not None

    async def mark_unnamed_code(self) -> int:
        """Marks code that no job names, e.g. of submissions that were cut off. Returns how many archives it read.

        Each call continues where the last one ended. It reads the names of at most ``_UNNAMED`` archives.
        """
        tenant, after = self._unnamed
        if not tenant:
            tenant = await self._next_tenant("")
        if not tenant:
            return 0
        prefix = f"{_TENANTS}{tenant}/code/"
        page = await self._ports.objects.list(prefix, after=after or None, limit=_UNNAMED)
        now = self._ports.clock.now_ms()
        for meta in page:
            digest = f"sha256:{meta.key.removeprefix(prefix)}"
            old = meta.modified + round(self._settings.deleted_keep_s * 1000) <= now
            if old and not await self._ports.jobs.names_code(tenant, digest):
                await code_removal.mark(self._ports.records, tenant, digest, now=now)
        if len(page) == _UNNAMED:
            self._unnamed = tenant, page[-1].key
        else:
            self._unnamed = await self._next_tenant(tenant), ""
        return len(page)

    async def _next_tenant(self, tenant: str) -> str:
        """The tenant after this one that has objects; empty after the last."""
        # "0" is the character after "/": the first key beyond all of this tenant.
        beyond = f"{_TENANTS}{tenant}0" if tenant else None
        page = await self._ports.objects.list(_TENANTS, after=beyond, limit=1)
        return page[0].key.split("/")[1] if page else ""
