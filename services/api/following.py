"""Live streams: each ends only when the job is at rest and all that was stored of it was sent.

At rest means released: the learners and their helpers are gone, so nothing more can be stored. The number of items is
read after that was observed, and the stream continues up to this number. Until then the metrics service may restart,
drop the stream or be away: the stream continues after the last item that it sent.

A stream that searches reads what is stored by pages first, each within the tenant's budget. Only then does the metrics
service search for it, through lines that are new. No stream keeps a document of its own while it waits: the followers
of a job share one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from services.api.clients import Lines, TelemetryClient
from services.api.job_watcher import Watched, Watcher
from services.api.search_budget import SearchBudget
from services.core.domain.errors import NotFound, Unavailable
from services.core.domain.job import Event, Job
from services.core.ports.job_store import JobStore
from services.core.ports.metric_store import LineQuery, PointQuery, StoredLine, StoredPoint
from services.core.use_cases import jobs

_RETRY_S: Final = 0.5
_PAGE: Final = 1000


class _Numbered(Protocol):
    @property
    def seq(self) -> int: ...


T = TypeVar("T", bound=_Numbered)


@dataclass(frozen=True, slots=True)
class Changed:
    """The job's document has changed."""

    job: Job


@dataclass(frozen=True, slots=True)
class End:
    """The last item. ``job`` is None if the job no longer exists."""

    job: Job | None
    job_id: str


class Following:
    def __init__(self, store: JobStore, telemetry: TelemetryClient, watcher: Watcher, searches: SearchBudget) -> None:
        self._store = store
        self._telemetry = telemetry
        self._watcher = watcher
        self._searches = searches

    async def lines(self, job: Job, query: LineQuery) -> AsyncGenerator[Sequence[StoredLine] | End]:
        """Lines after ``query.after_seq``, or from the last ``query.tail`` on, as they are stored; then the end."""
        job_id, tenant = job.id, job.tenant

        async def page(after: int, limit: int) -> tuple[Sequence[StoredLine], int, bool]:
            read = await self._lines(job_id, tenant, replace(query, after_seq=after, tail=None), limit)
            return read.lines, read.through, read.stopped_at is None

        def live(after: int) -> AsyncGenerator[tuple[Sequence[StoredLine], int]]:
            return self._telemetry.follow_lines(job_id, replace(query, after_seq=after, tail=None))

        async def total() -> int:
            return (await self._telemetry.summary(job_id)).lines

        async with self._watcher.follow(job) as watched:
            del job
            after = query.after_seq
            if query.tail is not None:
                first, after = await self._tail(job_id, tenant, query)
                yield first
            every = _all(watched, after, page=page, live=live, total=total, pages_first=query.search is not None)
            async with aclosing(every) as items:
                async for batch in items:
                    yield batch
            yield End(watched.job, job_id)

    async def without_tail(self, job: Job, query: LineQuery) -> LineQuery:
        """The same lines by where they begin: a query with ``after_seq`` in place of ``tail``. Waits while the metrics
        service is away.
        """
        if query.tail is None:
            return query
        first, after = await self._tail(job.id, job.tenant, query)
        return replace(query, after_seq=first[0].seq - 1 if first else after, tail=None)

    async def stored_lines(self, job: Job, query: LineQuery) -> AsyncGenerator[Sequence[StoredLine]]:
        """The lines that are stored when it begins, by pages. Waits while the metrics service is away, and until the
        tenant may search.
        """
        stored = await self._count(job.id)
        if not query.by_time:
            query = replace(query, before_seq=min(query.before_seq or stored + 1, stored + 1))
        sent, more = 0, True
        while more and sent < stored:
            try:
                page = await self._lines(job.id, job.tenant, query, _PAGE)
            except Unavailable:
                await asyncio.sleep(_RETRY_S)
                continue
            yield page.lines
            sent += len(page.lines)
            if query.by_time or page.stopped_at is not None:
                more = page.more
            else:  # only a page that was cut ends with its last line
                more = bool(page.lines) and page.through == page.lines[-1].seq
            query = replace(query, after_seq=page.through)

    async def _count(self, job_id: str) -> int:
        """Returns the number of lines that are stored. Waits while the metrics service is away."""
        while True:
            try:
                return (await self._telemetry.summary(job_id)).lines
            except Unavailable:
                await asyncio.sleep(_RETRY_S)

    async def points(self, job: Job, query: PointQuery) -> AsyncGenerator[Sequence[StoredPoint] | End]:
        """Points after ``query.after_seq`` as they are stored; then the end."""
        job_id = job.id

        async def page(after: int, limit: int) -> tuple[Sequence[StoredPoint], int, bool]:
            points, through = await self._telemetry.points(job_id, replace(query, after_seq=after), limit=limit)
            return points, through, True

        def live(after: int) -> AsyncGenerator[tuple[Sequence[StoredPoint], int]]:
            return self._telemetry.follow_points(job_id, replace(query, after_seq=after))

        async def total() -> int:
            return (await self._telemetry.summary(job_id)).points

        async with self._watcher.follow(job) as watched:
            del job
            async with aclosing(_all(watched, query.after_seq, page=page, live=live, total=total)) as items:
                async for batch in items:
                    yield batch
            yield End(watched.job, job_id)

    async def events(
        self, job: Job, *, after_seq: int, beyond_end: bool = False
    ) -> AsyncGenerator[Event | Changed | End]:
        """History after ``after_seq`` as it is written; the document first and after each change; then the end.

        ``beyond_end``: goes on until the job is deleted; each further change at rest is followed by an end.
        """
        job_id = job.id
        async with self._watcher.follow(job) as watched:
            del job
            while True:
                changed, over, current = watched.changed, watched.over, watched.job
                if current is not None:
                    for event in await jobs.history(self._store, current, after_seq=after_seq):
                        after_seq = event.seq
                        yield event
                    yield Changed(current)
                if over:
                    yield End(current, job_id)
                    if not beyond_end or current is None or current.deleted is not None:
                        return
                await changed.wait()

    async def until_resumed(self, job: Job, *, attempt: int) -> None:
        """Returns when a job that was at rest after this attempt goes on, or has done so and is at rest again.

        Raises NotFound when it is deleted.
        """
        job_id = job.id
        async with self._watcher.follow(job) as watched:
            del job
            while True:
                changed = watched.changed
                if watched.job is None or watched.job.deleted is not None:
                    raise NotFound(f"there is no job {job_id}")
                if not watched.over or watched.job.attempt.number != attempt:
                    return
                await changed.wait()

    async def _lines(self, job_id: str, tenant: str, query: LineQuery, limit: int) -> Lines:
        """A page. One that is searched waits until the tenant may search."""
        searches = query.search is not None
        async with self._searches.searching_in_turn(tenant) if searches else contextlib.nullcontext():
            return await self._telemetry.lines(job_id, query, limit=limit)

    async def _tail(self, job_id: str, tenant: str, query: LineQuery) -> tuple[Sequence[StoredLine], int]:
        """The last ``query.tail`` lines, and the seq to continue after.

        The count is read before the lines, so that no line is lost in between.
        """
        while True:
            try:
                counted = (await self._telemetry.summary(job_id)).lines
                if not query.tail:
                    return [], counted
                read = await self._lines(job_id, tenant, replace(query, before_seq=counted + 1), query.tail)
            except Unavailable:
                await asyncio.sleep(_RETRY_S)
            else:
                # A page of very long lines is cut: the stream sends the rest.
                return read.lines, min(read.through, counted)


async def _all(
    watched: Watched,
    after: int,
    *,
    page: Callable[[int, int], Awaitable[tuple[Sequence[T], int, bool]]],
    live: Callable[[int], AsyncGenerator[tuple[Sequence[T], int]]],
    total: Callable[[], Awaitable[int]],
    pages_first: bool = False,
) -> AsyncGenerator[Sequence[T]]:
    """Every item after ``after``, once and in order, until the job is at rest and all were sent.

    ``page``: items after a seq, the seq up to which they lack none, and False if the search stopped there for its time.
    ``pages_first``: ``live`` sends only what is stored after it began.
    """
    while True:
        try:
            over = watched.over
            if over or pages_first:
                goal = await total()
                while after < goal:
                    items, through, searched = await page(after, _PAGE)
                    yield items
                    if items:
                        after = max(items[-1].seq, through)
                    elif searched:  # nothing more matches up to the goal
                        after = goal
                    else:
                        after = through
            if over:
                return
            if pages_first and await total() - after > _PAGE:  # stored meanwhile: the search waited for its turn
                continue
            async with aclosing(_while_running(watched, live(after))) as batches:
                async for items, through in batches:
                    yield [item for item in items if item.seq > after]
                    after = max(after, through, items[-1].seq if items else 0)
        except Unavailable:
            await asyncio.sleep(_RETRY_S)
        else:
            await _pause(watched)


async def _while_running(
    watched: Watched, stream: AsyncGenerator[tuple[Sequence[T], int]]
) -> AsyncGenerator[tuple[Sequence[T], int]]:
    """The stream's batches until it ends or the job is at rest. What is not sent by then is read by page."""
    reading: asyncio.Task[tuple[Sequence[T], int]] | None = None
    try:
        while True:
            changed = watched.changed
            if watched.over:
                return
            if reading is None:
                reading = asyncio.ensure_future(anext(stream))
            waking = asyncio.ensure_future(changed.wait())
            try:
                await asyncio.wait({reading, waking}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waking.cancel()  # also if the reader was cancelled: else the task would stay
            if reading.done():
                done, reading = reading, None
                try:
                    batch = done.result()
                except StopAsyncIteration:
                    return
                yield batch
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading})
        await stream.aclose()


async def _pause(watched: Watched) -> None:
    """Waits ``_RETRY_S``, or until the job changes."""
    changed = watched.changed
    if watched.over:
        return
    try:
        await asyncio.wait_for(changed.wait(), _RETRY_S)
    except TimeoutError:
        return
