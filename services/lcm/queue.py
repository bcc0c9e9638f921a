"""The waiting jobs in order of submission, kept in memory between the dispatcher's rounds.

A round reads the documents that were written since the last round, and one page of the stored queue, the next page each
time. So what it reads does not grow with the number of waiting jobs: a tenant with 100,000 jobs that can never fit does
not delay the admission of others. Only the first round of a process reads the queue as a whole, up to the job at which
the policy is blocked.

The pages repair what ``JobStore.changes`` does not report (deleted documents, repairs by hand, writers with wrong
clocks). ``JobStore.find`` may answer from the past, so where a page differs from memory the document is read by its id.
What is kept may be outdated all the same: an admission is a compare-and-set on the document.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from services.core.domain.errors import Conflict
from services.core.domain.job import Job
from services.core.domain.status import Status
from services.core.ports.job_store import JobQuery, JobStore, Unreadable
from services.lcm.scheduling.placement import Gang
from services.lcm.scheduling.policy import Waiter
from services.lcm.unreadable import UnreadableJobs

_PAGE: Final = 250
"""Job documents in memory at once while the queue is read, and the documents of the stored queue that a round reads."""
_MANY_CHANGES: Final = 5_000
"""With more changes than this and than waiting jobs, e.g. after an hour without a round, the queue is read anew."""


class WaitingQueue:
    """Call ``refresh`` once a round, then ``scan`` until the policy is blocked."""

    def __init__(self, jobs: JobStore, unreadable: UnreadableJobs, gang: Callable[[Job], Gang | None]) -> None:
        """``gang``: the gang of a job's spec; None if the spec cannot be read."""
        self._jobs, self._unreadable, self._gang = jobs, unreadable, gang
        self._waiters: dict[str, Waiter] = {}
        self._ids: list[str] = []
        """The keys of ``_waiters``, sorted."""
        self._end: str | None = ""
        """The waiting jobs up to this id are in memory; None: all."""
        self._position: int | None = None
        """In the store's sequence of writes; None before the first round."""
        self._applied: Mapping[str, int] = {}
        """The revisions of the last call of ``changes``: a store may report them again."""
        self._page_after: str | None = None

    @property
    def ids(self) -> Sequence[str]:
        """Of the jobs in memory, sorted."""
        return self._ids

    async def refresh(self, holding: Mapping[str, Job]) -> list[Waiter]:
        """Applies the writes since the last call. Returns the next page of the stored queue; after its end, the first.

        ``holding``: documents just read, by job id, which need not be read again. Raises Unavailable.
        """
        await self._apply_changes(holding)
        return await self._compare_page()

    async def scan(self, *, after: str | None, limit: int) -> list[Waiter]:
        """The next ``limit`` waiting jobs after this id; fewer: there are no more. Raises Unavailable."""
        begin = 0 if after is None else bisect_right(self._ids, after)
        while self._end is not None and len(self._ids) < begin + limit:
            page = await self._read_page(self._end or None)
            for job in page:
                self._put(job.id, job)
            self._end = page[-1].id if len(page) == _PAGE else None
        return [self._waiters[job_id] for job_id in self._ids[begin : begin + limit]]

    async def _apply_changes(self, holding: Mapping[str, Job]) -> None:
        if self._position is None:
            self._position = (await self._jobs.changes(None)).position
            return
        position, revisions = self._position, dict[str, int]()
        while True:
            changes = await self._jobs.changes(position)
            news = changes.revisions.items() - revisions.items()
            revisions.update(changes.revisions)
            position = changes.position
            if len(news) < _PAGE:  # a store may report a limited number of changes at once
                break
        if len(revisions) > max(_MANY_CHANGES, len(self._ids)):
            self._waiters, self._ids, self._end = {}, [], ""
        for job_id, rev in revisions.items():
            if self._applied.get(job_id) != rev:
                await self._apply_change(job_id, rev, holding.get(job_id))
        self._position, self._applied = position, revisions

    async def _apply_change(self, job_id: str, rev: int, job: Job | None) -> None:
        """``job``: its document as just read, perhaps of an older revision."""
        known = self._waiters.get(job_id)
        if not self._covers(job_id) or (known is not None and known.rev >= rev):
            return
        self._put(job_id, job if job is not None and job.rev >= rev else await self._get(job_id))

    async def _compare_page(self) -> list[Waiter]:
        after = self._page_after
        page = await self._read_page(after)
        self._page_after = page[-1].id if len(page) == _PAGE else None
        stored = {job.id: job for job in page}
        for job_id in {*self._between(after, self._page_after), *filter(self._covers, stored)}:
            job, known = stored.get(job_id), self._waiters.get(job_id)
            if job is None or known is None or job.rev < known.rev:
                job = await self._get(job_id)
            self._put(job_id, job)
        return [Waiter.of(job, self._gang(job)) for job in page]

    async def _read_page(self, after: str | None) -> Sequence[Job]:
        left_out: list[Unreadable] = []
        query = JobQuery(statuses=(Status.QUEUED,), after=after)
        page = await self._jobs.find(query, newest_first=False, limit=_PAGE, left_out=left_out)
        self._unreadable.add(left_out)
        return page

    async def _get(self, job_id: str) -> Job | None:
        try:
            return await self._jobs.get(job_id)
        except Conflict:  # unreadable: its page adds it to the quarantine
            return None

    def _covers(self, job_id: str) -> bool:
        return self._end is None or job_id <= self._end

    def _between(self, after: str | None, last: str | None) -> Sequence[str]:
        """The ids in memory after ``after``, up to ``last``; None: no limit."""
        begin = 0 if after is None else bisect_right(self._ids, after)
        return self._ids[begin : None if last is None else bisect_right(self._ids, last)]

    def _put(self, job_id: str, job: Job | None) -> None:
        """Keeps the job if it waits, and else forgets it."""
        is_new = job_id not in self._waiters
        if job is not None and job.status is Status.QUEUED and job.deleted is None:
            self._waiters[job_id] = Waiter.of(job, self._gang(job))
            if is_new:
                insort(self._ids, job_id)
        elif not is_new:
            del self._waiters[job_id]
            del self._ids[bisect_left(self._ids, job_id)]
