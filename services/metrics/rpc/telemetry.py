"""The Telemetry RPCs, read by the other services and, through the api, by users. Every reply is bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

import structlog

from services.core.domain.errors import Quarantined
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.gen.weft.v1 import metrics_pb2_grpc
from services.core.ports.metric_store import Column, MetricStore, StoredLine, StoredPoint
from services.metrics.attempts import Attempts
from services.metrics.following import Follower, Page
from services.metrics.heartbeats import Heartbeats
from services.metrics.instrumentation import Instrumentation
from services.metrics.rpc.messages import (
    PAGE_BYTES,
    Stored,
    aggregate_message,
    bounded_aggregates,
    fetching_message,
    line_messages,
    line_query,
    line_size,
    point_messages,
    point_query,
    point_size,
)
from services.metrics.statistics import Statistics, chosen_steps

T = TypeVar("T", bound=Stored)
_LINES: Final = 1_000
_MOST_LINES: Final = 10_000
_MOST_TAIL: Final = 100_000
_POINTS: Final = 10_000
_MOST_POINTS: Final = 50_000
_AT_A_TIME: Final = 8
"""Jobs that are read at the same time for statistics."""
_CURVE_POINTS: Final = 1_000
"""Default number of points of each curve."""
_MOST_JOBS: Final = 500
"""Most jobs in a reply of aggregates."""
_MOST_USAGE: Final = 4_000
"""Most entries of usage in a summary: that of a thousand learners."""
_MOST_NAMES: Final = 1_000
"""Most metric names in a summary."""
log = structlog.get_logger()


class ReadsColumns(Protocol):
    """The part of MetricStore that statistics over jobs read."""

    async def whole_columns(
        self, job_id: str, names: Sequence[str], context: Mapping[str, str] | None, *, most: int
    ) -> Mapping[str, Column]: ...

    async def columns(
        self, job_id: str, steps: Mapping[str, Sequence[int]], context: Mapping[str, str] | None
    ) -> Mapping[str, Column]: ...


@dataclass(frozen=True)
class Telemetry(metrics_pb2_grpc.TelemetryServicer):
    store: MetricStore
    attempts: Attempts
    heartbeats: Heartbeats
    line_follower: Follower[StoredLine]
    point_follower: Follower[StoredPoint]
    instrumentation: Instrumentation
    columns: ReadsColumns

    async def Lines(self, request: pb.LinesRequest, context: Any) -> pb.LinesReply:
        page, stopped_at = await self._lines(request, request.after_seq)
        return pb.LinesReply(
            lines=line_messages(page.entries), through_seq=page.through, stopped_at=stopped_at, more=page.full
        )

    async def FollowLines(self, request: pb.LinesRequest, context: Any) -> AsyncGenerator[pb.LinesReply]:
        async def read(after: int) -> Page[StoredLine]:
            page, _stopped_at = await self._lines(request, after)
            request.ClearField("tail")  # applies to the first page only
            return page

        with self.instrumentation.followers.labels("lines").track_inprogress():
            async with aclosing(self.line_follower.follow(request.job_id, request.after_seq, read)) as pages:
                async for page in pages:
                    yield pb.LinesReply(lines=line_messages(page.entries), through_seq=page.through)

    async def _lines(self, request: pb.LinesRequest, after: int) -> tuple[Page[StoredLine], int | None]:
        """A page, and where the search stopped that reached its time limit."""
        query = replace(line_query(request), after_seq=after)
        if query.tail is not None:
            query = replace(query, tail=min(query.tail, _MOST_TAIL))
        limit = min(request.limit or _LINES, _MOST_LINES)
        stored, _ = await self.store.counts(request.job_id)  # read first: the page may lack what is stored later
        result = await self.store.line_page(request.job_id, query, limit=limit)
        through = max(after, stored)
        if query.by_time:
            through = result.lines[-1].seq if result.lines else after
        page = _page(result.lines, line_size, limit=limit, through=through, by_time=query.by_time)
        if result.stopped_at is None or query.tail is not None or page.full:
            return page, result.stopped_at
        return Page(page.entries, result.stopped_at, full=True), result.stopped_at

    async def Points(self, request: pb.PointsRequest, context: Any) -> pb.PointsReply:
        page = await self._points(request, request.after_seq)
        return pb.PointsReply(points=point_messages(page.entries), through_seq=page.through)

    async def FollowPoints(self, request: pb.PointsRequest, context: Any) -> AsyncGenerator[pb.PointsReply]:
        async def read(after: int) -> Page[StoredPoint]:
            return await self._points(request, after)

        with self.instrumentation.followers.labels("points").track_inprogress():
            async with aclosing(self.point_follower.follow(request.job_id, request.after_seq, read)) as pages:
                async for page in pages:
                    yield pb.PointsReply(points=point_messages(page.entries), through_seq=page.through)

    async def _points(self, request: pb.PointsRequest, after: int) -> Page[StoredPoint]:
        query = replace(point_query(request), after_seq=after)
        limit = min(request.limit or _POINTS, _MOST_POINTS)
        _, stored = await self.store.counts(request.job_id)
        points = await self.store.points(request.job_id, query, limit=limit)
        return _page(points, point_size, limit=limit, through=max(after, stored))

    async def Series(self, request: pb.PointsRequest, context: Any) -> pb.PointsReply:
        query = point_query(request)
        most = min(query.max_points or _CURVE_POINTS, _MOST_POINTS)
        points = await self.store.series(request.job_id, replace(query, max_points=most))
        while sum(map(point_size, points)) > PAGE_BYTES and most > 1:
            most //= 2  # too many curves for one reply: make each coarser
            points = await self.store.series(request.job_id, replace(query, max_points=most))
        through = max((stored.seq for stored in points), default=0)
        return pb.PointsReply(points=point_messages(_cut(points, point_size)), through_seq=through)

    async def Summary(self, request: pb.SummaryRequest, context: Any) -> pb.SummaryReply:
        lines, points = await self.store.counts(request.job_id)
        latest = list((await self.store.latest(request.job_id)).values())[:_MOST_NAMES]
        progress, eta_ms = self.heartbeats.progress(request.job_id)
        usage = (await self.store.usage(request.job_id))[:_MOST_USAGE]
        return pb.SummaryReply(
            lines=lines,
            points=points,
            latest=point_messages(_cut(latest, point_size)),
            progress=progress,
            eta_ms=eta_ms,
            left_out=await self.store.left_out(request.job_id),
            fetching=[fetching_message(*entry) for entry in self.heartbeats.fetching(request.job_id)],
            usage=list(map(aggregate_message, usage)),
            bars=[
                pb.LearnerBar(learner=learner, attempt=attempt, text=text)
                for learner, attempt, text in self.heartbeats.bars(request.job_id)
            ],
        )

    async def Aggregates(self, request: pb.AggregatesRequest, context: Any) -> pb.AggregatesReply:
        jobs: list[pb.JobAggregates] = []
        for job_id in request.job_ids[:_MOST_JOBS]:
            with contextlib.suppress(Quarantined):  # its damage is reported elsewhere, and harms no other job
                aggregates = await self.store.aggregates(job_id, request.names)
                messages = map(aggregate_message, aggregates[:_MOST_NAMES])
                jobs.append(pb.JobAggregates(job_id=job_id, aggregates=messages))
        return bounded_aggregates(jobs, len(jobs))

    async def Progress(self, request: pb.ProgressRequest, context: Any) -> pb.ProgressReply:
        reply = pb.ProgressReply()
        for job_id in request.job_ids[:_MOST_JOBS]:
            progress, eta_ms = self.heartbeats.progress(job_id)
            if progress >= 0:
                reply.jobs.add(job_id=job_id, progress=progress, eta_ms=eta_ms)
        return reply

    async def StepStatistics(self, request: pb.StepStatisticsRequest, context: Any) -> pb.StepStatisticsReply:
        labels = None if request.any_context else dict(request.context)
        most = request.max_points or _CURVE_POINTS
        names = list(dict.fromkeys([request.name, *request.also]))
        collected = {name: _Collected() for name in names}
        async for job_id, columns in self._whole_columns(request.job_ids, names, labels, most=most):
            for name, column in columns.items():
                collected[name].add(job_id, column)
        statistics = {name: Statistics(chosen_steps(of.longest, most)) for name, of in collected.items()}
        for job_id in request.job_ids:
            await asyncio.sleep(0)  # other calls run in between
            wanted: dict[str, Sequence[int]] = {}
            for name, of in collected.items():
                held = of.columns.get(job_id)
                if held is None:
                    continue
                if held.values:
                    statistics[name].add(held)
                else:  # a longer column has its steps only: the values at the chosen ones are read now
                    wanted[name] = statistics[name].steps
            read = await _unless_damaged(self.columns.columns(job_id, wanted, labels)) if wanted else {}
            for name in wanted:
                if name in read:
                    statistics[name].add(read[name])
                else:
                    del collected[name].columns[job_id]
        first, *others = (_statistics_reply(request.job_ids, collected[name], statistics[name]) for name in names)
        first.more.extend(others)
        return first

    async def _whole_columns(
        self, job_ids: Sequence[str], names: Sequence[str], labels: Mapping[str, str] | None, *, most: int
    ) -> AsyncIterator[tuple[str, Mapping[str, Column]]]:
        """Of each job the metrics that it reported with steps, in order; a few jobs are read at a time."""
        for first in range(0, len(job_ids), _AT_A_TIME):
            some = job_ids[first : first + _AT_A_TIME]
            reads = (_unless_damaged(self.columns.whole_columns(job_id, names, labels, most=most)) for job_id in some)
            for job_id, columns in zip(some, await asyncio.gather(*reads), strict=True):
                yield job_id, {name: column for name, column in columns.items() if column.steps}

    async def Forget(self, request: pb.ForgetRequest, context: Any) -> pb.ForgetReply:
        await self.store.delete(request.job_id)
        self.heartbeats.forget(request.job_id)
        self.attempts.forget(request.job_id)
        log.info("job.forgotten", job=request.job_id)
        return pb.ForgetReply()


@dataclass
class _Collected:
    """The columns of one metric, by job. Of longer ones only the longest has steps; none of them has values."""

    columns: dict[str, Column] = field(default_factory=dict)
    longest: Sequence[int] = ()
    count: int = 0
    """Number of steps of the longest one."""

    def add(self, job_id: str, column: Column) -> None:
        if column.count > self.count:
            self.longest, self.count = column.steps, column.count
        self.columns[job_id] = column if column.values else replace(column, steps=())


def _statistics_reply(job_ids: Sequence[str], collected: _Collected, statistics: Statistics) -> pb.StepStatisticsReply:
    rows = statistics.rows()
    return pb.StepStatisticsReply(
        steps=[step for step, _ in rows],
        n=[of.n for _, of in rows],
        mean=[of.mean for _, of in rows],
        std=[of.std for _, of in rows],
        low=[of.low for _, of in rows],
        high=[of.high for _, of in rows],
        without=[job_id for job_id in job_ids if job_id not in collected.columns],
    )


async def _unless_damaged(reading: Awaitable[Mapping[str, Column]]) -> Mapping[str, Column]:
    """The columns; none of a job whose files are damaged. They are reported elsewhere, and harm no other job."""
    try:
        return await reading
    except Quarantined:
        return {}


def _page(stored: Sequence[T], size: Callable[[T], int], *, limit: int, through: int, by_time: bool = False) -> Page[T]:
    """As many entries as fit into one reply. ``through``: the stored entries are complete up to this number.
    ``by_time``: numbers do not rise.
    """
    entries = _cut(stored, size)
    full = len(entries) == limit or len(entries) < len(stored)
    if entries:
        through = entries[-1].seq if full or by_time else max(through, entries[-1].seq)
    return Page(entries, through, full=full)


def _cut(stored: Sequence[T], size: Callable[[T], int]) -> list[T]:
    """The first entries that fit into one reply; at least one entry."""
    room = PAGE_BYTES
    for index, entry in enumerate(stored):
        room -= size(entry)
        if room < 0 and index:
            return list(stored[:index])
    return list(stored)
