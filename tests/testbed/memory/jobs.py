"""JobStore in memory. Jobs are stored as they are, because they are frozen; a planted document is stored as text.

No method awaits, so each is atomic among the tasks of one event loop.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from services.core.domain.codec import dump
from services.core.domain.document import read_job
from services.core.domain.errors import Duplicate, NotFound, Quarantined, StaleRevision
from services.core.domain.held_document import HELD_PATHS, value_at
from services.core.domain.job import Event, Job, check_replace
from services.core.domain.status import Status
from services.core.ports.job_store import (
    Changes,
    DispatcherDoc,
    HeldPage,
    JobQuery,
    Unreadable,
    held_page,
    job_or_unreadable,
)

_HELD_PATHS: Final = (*HELD_PATHS, "attempt.number")


class MemoryJobStore:
    """See ``services.core.ports.job_store.JobStore``."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job | str] = {}
        self._ids: list[str] = []
        self._idem: dict[str, str] = {}
        self._history: dict[str, dict[int, Event]] = {}
        self._dispatcher = DispatcherDoc()
        self._writes: list[tuple[str, int]] = []

    def plant(self, job_id: str, document: str) -> None:
        """Replaces the document of a job by a text, which may be malformed."""
        self._jobs[job_id] = document

    async def insert(self, job: Job) -> Job:
        if job.id in self._jobs:
            raise Duplicate(f"there is a job {job.id}")
        if job.idem in self._idem:
            raise Duplicate(f"there is a job with the idempotency key {job.idem}")
        stored = replace(job, rev=1)
        self._jobs[job.id] = stored
        self._idem[job.idem] = job.id
        insort(self._ids, job.id)
        self._writes.append((stored.id, stored.rev))
        return stored

    async def get(self, job_id: str) -> Job | None:
        stored = self._jobs.get(job_id)
        return None if stored is None else _read(job_id, stored)

    async def by_idem(self, idem: str) -> Job | None:
        job_id = self._idem.get(idem)
        return None if job_id is None else await self.get(job_id)

    async def replace(self, prior: Job, new: Job) -> Job:
        check_replace(prior, new)
        current = await self.get(prior.id)
        if current is None:
            raise NotFound(f"there is no job {prior.id}")
        if current.rev != prior.rev:
            raise StaleRevision(f"job {prior.id} is at revision {current.rev}, not {prior.rev}")
        stored = replace(new, rev=prior.rev + 1)
        self._jobs[prior.id] = stored
        self._writes.append((stored.id, stored.rev))
        return stored

    async def find(
        self,
        query: JobQuery,
        *,
        newest_first: bool = True,
        limit: int = 100,
        left_out: list[Unreadable] | None = None,
    ) -> Sequence[Job]:
        if newest_first:
            end = len(self._ids) if query.after is None else bisect_left(self._ids, query.after)
            ids = self._ids[:end][::-1]
        else:
            ids = self._ids[0 if query.after is None else bisect_right(self._ids, query.after) :]
        matching: list[Job] = []
        for job in map(self._read_or_unreadable, ids):
            if len(matching) == limit:
                break
            if isinstance(job, Unreadable):
                if left_out is not None:
                    left_out.append(job)
            elif _matches(job, query):
                matching.append(job)
        return matching

    async def count(self, query: JobQuery) -> Mapping[Status, int]:
        jobs = [job for job in map(self._read_or_unreadable, self._ids) if isinstance(job, Job)]
        return dict(Counter(job.status for job in jobs if _matches(job, query)))

    async def unreadable(self, *, after: str = "", limit: int = 500) -> tuple[Sequence[Unreadable], str]:
        begin = bisect_right(self._ids, after)
        ids = self._ids[begin : begin + limit]
        unreadable = [bad for bad in map(self._read_or_unreadable, ids) if isinstance(bad, Unreadable)]
        return unreadable, ids[-1] if len(ids) == limit else ""

    async def changes(self, after: int | None) -> Changes:
        position = len(self._writes)
        return Changes(revisions=dict(self._writes[position if after is None else after :]), position=position)

    async def to_erase(self, *, deleted_until: int, after: Job | None = None, limit: int = 100) -> Sequence[Job]:
        jobs = [job for job in map(self._read_or_unreadable, self._ids) if isinstance(job, Job) and job.erased is None]
        due = sorted((job for job in jobs if (job.deleted or 2**63) <= deleted_until), key=_by_deletion)
        return [job for job in due if after is None or _by_deletion(job) > _by_deletion(after)][:limit]

    async def held(
        self, *, released_since: int | None, tenant: str | None, after: tuple[int, str] | None = None, limit: int = 500
    ) -> HeldPage:
        first = after or (released_since or 0, "")
        places: list[tuple[Any, str, dict[str, Any]]] = []
        for job_id in self._ids:
            values = self._held_values(job_id)
            released = values["released"]
            if released_since is None:
                chosen = values["attempt.number"] and released is None
            else:
                chosen = isinstance(released, int | float) and released >= released_since
            if chosen and tenant in {None, values["tenant"]}:
                places.append((released or 0, job_id, values))
        page = sorted(place for place in places if place[:2] > first)[:limit]
        return held_page(page, after=first, limit=limit)

    async def names_code(self, tenant: str, digest: str) -> bool:
        for job in map(self._read_or_unreadable, self._ids):
            if isinstance(job, Job):
                if (job.tenant, job.code_digest, job.erased) == (tenant, digest, None):
                    return True
            elif not isinstance(job.document.get("tenant"), str) or job.document.get("code_digest") == digest:
                return True
        return False

    async def delete(self, job_id: str) -> None:
        self._history.pop(job_id, None)
        if self._jobs.pop(job_id, None) is not None:
            self._ids.remove(job_id)
            self._idem = {idem: other for idem, other in self._idem.items() if other != job_id}

    async def append_history(self, job_id: str, tenant: str, events: Sequence[Event]) -> None:
        copied = self._history.setdefault(job_id, {})
        for event in events:
            copied.setdefault(event.seq, event)

    async def history(self, job_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[Event]:
        copied = self._history.get(job_id, {})
        return [copied[seq] for seq in sorted(copied) if seq > after_seq][:limit]

    async def dispatcher(self) -> DispatcherDoc:
        return self._dispatcher

    async def replace_dispatcher(self, prior: DispatcherDoc, new: DispatcherDoc) -> DispatcherDoc:
        if self._dispatcher.rev != prior.rev:
            raise StaleRevision(f"the dispatcher's document is at revision {self._dispatcher.rev}, not {prior.rev}")
        self._dispatcher = replace(new, rev=prior.rev + 1)
        return self._dispatcher

    async def ping(self) -> None: ...

    async def close(self) -> None: ...

    def _held_values(self, job_id: str) -> dict[str, Any]:
        stored = self._jobs[job_id]
        try:
            document: Any = dump(stored) if isinstance(stored, Job) else json.loads(stored)
        except ValueError:
            document = None
        return {path: value_at(document, path) for path in _HELD_PATHS}

    def _read_or_unreadable(self, job_id: str) -> Job | Unreadable:
        stored = self._jobs[job_id]
        if isinstance(stored, Job):
            return stored
        try:
            document = json.loads(stored)
        except (ValueError, RecursionError) as error:
            return Unreadable(id=job_id, why=f"the document of job {job_id} is not JSON: {error}")
        return job_or_unreadable(job_id, document, None)


def _read(job_id: str, stored: Job | str) -> Job:
    if isinstance(stored, Job):
        return stored
    try:
        document = json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise Quarantined(f"the document of job {job_id} is not JSON: {error}") from error
    return read_job(job_id, document)


def _by_deletion(job: Job) -> tuple[int, str]:
    return job.deleted or 0, job.id


def _matches(job: Job, query: JobQuery) -> bool:
    wanted: list[tuple[object, object]] = [
        (query.tenant, job.tenant),
        (query.user, job.user),
        (query.live, job.live),
        (query.holding, job.holds),
        (query.holder, job.guardian.holder),
        (query.name, job.spec.get("name")),
    ]
    return (
        all(expected is None or expected == actual for expected, actual in wanted)
        and (not query.statuses or job.status in query.statuses)
        and (query.tag is None or query.tag in job.spec.get("tags", ()))
        and (not query.untrimmed or bool(job.history_tail))
        and (not query.stopped or job.stopped)
        and (query.deleted or job.deleted is None)
    )
