"""What the other services and, through the api, the users read. Every reply is bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import structlog

from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.gen.weft.v1 import metrics_pb2_grpc
from services.core.ports.metric_store import MetricStore, StoredLine, StoredPoint
from services.metrics.attempts import Attempts
from services.metrics.following import Follower, Page
from services.metrics.instruments import Instruments
from services.metrics.presence import Presence
from services.metrics.rpc.messages import (
    PAGE_BYTES,
    Stored,
    line_messages,
    line_query,
    line_size,
    point_messages,
    point_query,
    point_size,
)

T = TypeVar("T", bound=Stored)
_LINES: Final = 1_000
_MOST_LINES: Final = 10_000
_MOST_TAIL: Final = 100_000
_POINTS: Final = 10_000
_MOST_POINTS: Final = 50_000
_CURVE_POINTS: Final = 1_000
"""Of each curve, unless another number is asked for."""
_MOST_NAMES: Final = 1_000
"""In a summary."""
log = structlog.get_logger()


@dataclass(frozen=True)
class Telemetry(metrics_pb2_grpc.TelemetryServicer):
    store: MetricStore
    attempts: Attempts
    presence: Presence
    line_follower: Follower[StoredLine]
    point_follower: Follower[StoredPoint]
    instruments: Instruments

    async def Lines(self, request: pb.LinesRequest, context: Any) -> pb.LinesReply:
        page = await self._lines(request, request.after_seq)
        return pb.LinesReply(lines=line_messages(page.entries), through_seq=page.through)

    async def FollowLines(self, request: pb.LinesRequest, context: Any) -> AsyncIterator[pb.LinesReply]:
        async def read(after: int) -> Page[StoredLine]:
            page = await self._lines(request, after)
            request.ClearField("tail")  # it said where to begin
            return page

        with self.instruments.followers.labels("lines").track_inprogress():
            async with aclosing(self.line_follower.follow(request.job_id, request.after_seq, read)) as pages:
                async for page in pages:
                    yield pb.LinesReply(lines=line_messages(page.entries), through_seq=page.through)

    async def _lines(self, request: pb.LinesRequest, after: int) -> Page[StoredLine]:
        query = replace(line_query(request), after_seq=after)
        if query.tail is not None:
            query = replace(query, tail=min(query.tail, _MOST_TAIL))
        limit = min(request.limit or _LINES, _MOST_LINES)
        stored, _ = await self.store.counts(request.job_id)  # first: what comes after may be missing in the page
        found = await self.store.lines(request.job_id, query, limit=limit)
        return _page(found, line_size, limit=limit, through=max(after, stored))

    async def Points(self, request: pb.PointsRequest, context: Any) -> pb.PointsReply:
        page = await self._points(request, request.after_seq)
        return pb.PointsReply(points=point_messages(page.entries), through_seq=page.through)

    async def FollowPoints(self, request: pb.PointsRequest, context: Any) -> AsyncIterator[pb.PointsReply]:
        async def read(after: int) -> Page[StoredPoint]:
            return await self._points(request, after)

        with self.instruments.followers.labels("points").track_inprogress():
            async with aclosing(self.point_follower.follow(request.job_id, request.after_seq, read)) as pages:
                async for page in pages:
                    yield pb.PointsReply(points=point_messages(page.entries), through_seq=page.through)

    async def _points(self, request: pb.PointsRequest, after: int) -> Page[StoredPoint]:
        query = replace(point_query(request), after_seq=after)
        limit = min(request.limit or _POINTS, _MOST_POINTS)
        _, stored = await self.store.counts(request.job_id)
        found = await self.store.points(request.job_id, query, limit=limit)
        return _page(found, point_size, limit=limit, through=max(after, stored))

    async def Series(self, request: pb.PointsRequest, context: Any) -> pb.PointsReply:
        query = point_query(request)
        most = query.max_points or _CURVE_POINTS
        points = await self.store.series(request.job_id, replace(query, max_points=most))
        while sum(map(point_size, points)) > PAGE_BYTES and most > 1:
            most //= 2  # so many curves that each must be coarser
            points = await self.store.series(request.job_id, replace(query, max_points=most))
        through = max((one.seq for one in points), default=0)
        return pb.PointsReply(points=point_messages(_cut(points, point_size)), through_seq=through)

    async def Summary(self, request: pb.SummaryRequest, context: Any) -> pb.SummaryReply:
        lines, points = await self.store.counts(request.job_id)
        latest = list((await self.store.latest(request.job_id)).values())[:_MOST_NAMES]
        progress, eta_ms = self.presence.progress(request.job_id)
        return pb.SummaryReply(
            lines=lines, points=points, latest=point_messages(_cut(latest, point_size)), progress=progress,
            eta_ms=eta_ms,
        )  # fmt: skip

    async def Forget(self, request: pb.ForgetRequest, context: Any) -> pb.ForgetReply:
        await self.store.delete(request.job_id)
        self.presence.forget(request.job_id)
        self.attempts.forget(request.job_id)
        log.info("job.forgotten", job=request.job_id)
        return pb.ForgetReply()


def _page(found: Sequence[T], size: Callable[[T], int], *, limit: int, through: int) -> Page[T]:
    """As much of what was found as one reply may carry. ``through``: up to where it is all that there is."""
    entries = _cut(found, size)
    full = len(entries) == limit or len(entries) < len(found)
    if entries:
        through = entries[-1].seq if full else max(through, entries[-1].seq)
    return Page(entries, through, full=full)


def _cut(found: Sequence[T], size: Callable[[T], int]) -> list[T]:
    """The first ones that fit into one reply; at least one."""
    room = PAGE_BYTES
    for at, entry in enumerate(found):
        room -= size(entry)
        if room < 0 and at:
            return list(found[:at])
    return list(found)
