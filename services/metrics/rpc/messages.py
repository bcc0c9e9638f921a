"""Translates between protobuf messages and the values of the metric store."""

# ruff: noqa: D103 - names and types say what each function does

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.ports.metric_store import (
    Aggregate,
    Batch,
    LineQuery,
    LogLine,
    Point,
    PointQuery,
    SourceId,
    StoredLine,
    StoredPoint,
)
from services.metrics.heartbeats import Fetching

PAGE_BYTES: Final = 3 * 2**20
"""Characters in one reply: at four bytes each, a reply stays below the client's message limit."""
AGGREGATES_BYTES: Final = 8 * 2**20
"""Bytes of all aggregates in one reply: half of the client's message limit."""
_ENTRY_BYTES: Final = 64
"""Size of an entry besides its text."""


class Stored(Protocol):
    @property
    def seq(self) -> int: ...


T = TypeVar("T", bound=Stored)


def batch_of(message: pb.SourceBatch) -> Batch:
    """The batch as sent; the store validates it."""
    return Batch(
        source_of(message.source),
        message.start,
        message.end,
        [LogLine(line.offset, line.time_ms, line.text, line.partial) for line in message.lines],
        [
            Point(
                point.offset,
                point.time_ms,
                point.name,
                point.step if point.HasField("step") else None,
                point.value,
                dict(point.context),
            )
            for point in message.points
        ],
        message.final,
    )


def source_of(message: pb.Source) -> SourceId:
    return SourceId(message.attempt, message.role, message.rank, message.run, message.source, message.generation)


def source_message(source: SourceId) -> pb.Source:
    return pb.Source(
        attempt=source.attempt,
        role=source.role,
        rank=source.rank,
        run=source.run,
        source=source.source,
        generation=source.generation,
    )


def fetching_of(message: pb.FetchingStep) -> Fetching:
    return Fetching(
        message.step,
        message.began_ms,
        message.message,
        message.done_bytes if message.HasField("done_bytes") else None,
        message.total_bytes if message.HasField("total_bytes") else None,
    )


def fetching_message(learner: str, attempt: int, fetching: Fetching) -> pb.LearnerFetching:
    return pb.LearnerFetching(learner=learner, attempt=attempt, step=pb.FetchingStep(**fetching._asdict()))


def line_messages(lines: Iterable[StoredLine]) -> list[pb.StoredLine]:
    sources: dict[SourceId, pb.Source] = {}
    out: list[pb.StoredLine] = []
    for stored in lines:
        source = sources.get(stored.source) or sources.setdefault(stored.source, source_message(stored.source))
        line = stored.line
        message = pb.LogLine(offset=line.offset, time_ms=line.time_ms, text=line.text, partial=line.partial)
        out.append(pb.StoredLine(seq=stored.seq, source=source, line=message))
    return out


def point_messages(points: Iterable[StoredPoint]) -> list[pb.StoredPoint]:
    source: SourceId | None = None
    source_of_points = pb.Source()
    out: list[pb.StoredPoint] = []
    for stored in points:
        if stored.source is not source:  # points in a row have the same one
            source, source_of_points = stored.source, source_message(stored.source)
        point, message = stored.point, pb.StoredPoint(seq=stored.seq, source=source_of_points)
        # Set field by field: a message in a message by keywords takes twice as long.
        into = message.point
        into.offset, into.time_ms, into.name, into.value = point.offset, point.time_ms, point.name, point.value
        if point.step is not None:
            into.step = point.step
        if point.context:
            into.context.update(point.context)
        out.append(message)
    return out


def aggregate_message(aggregate: Aggregate) -> pb.Aggregate:
    return pb.Aggregate(
        name=aggregate.name,
        context=aggregate.context,
        rank=aggregate.rank,
        count=aggregate.count,
        last=aggregate.last,
        last_step=aggregate.last_step,
        low=aggregate.low,
        low_step=aggregate.low_step,
        high=aggregate.high,
        high_step=aggregate.high_step,
    )


def line_query(request: pb.LinesRequest) -> LineQuery:
    return LineQuery(
        by_time=request.by_time,
        after_seq=request.after_seq,
        before_seq=request.before_seq if request.HasField("before_seq") else None,
        rank=request.rank if request.HasField("rank") else None,
        role=request.role if request.HasField("role") else None,
        attempt=request.attempt if request.HasField("attempt") else None,
        stream=request.stream if request.HasField("stream") else None,
        since_ms=request.since_ms if request.HasField("since_ms") else None,
        until_ms=request.until_ms if request.HasField("until_ms") else None,
        search=request.search if request.HasField("search") else None,
        tail=request.tail if request.HasField("tail") else None,
    )


def point_query(request: pb.PointsRequest) -> PointQuery:
    return PointQuery(
        after_seq=request.after_seq,
        names=tuple(request.names),
        rank=request.rank if request.HasField("rank") else None,
        attempt=request.attempt if request.HasField("attempt") else None,
        from_step=request.from_step if request.HasField("from_step") else None,
        to_step=request.to_step if request.HasField("to_step") else None,
        since_ms=request.since_ms if request.HasField("since_ms") else None,
        until_ms=request.until_ms if request.HasField("until_ms") else None,
        max_points=request.max_points if request.HasField("max_points") else None,
    )


def line_size(stored: StoredLine) -> int:
    return _ENTRY_BYTES + len(stored.line.text)


def point_size(stored: StoredPoint) -> int:
    point = stored.point
    return _ENTRY_BYTES + len(point.name) + sum(len(key) + len(value) for key, value in point.context.items())


def bounded_aggregates(jobs: Iterable[pb.JobAggregates], number: int) -> pb.AggregatesReply:
    """A reply in which each of ``number`` jobs has the first of its aggregates that fit into its share of the bytes."""
    share = AGGREGATES_BYTES // max(1, number)
    reply = pb.AggregatesReply()
    for job in jobs:
        room = share
        kept: list[pb.Aggregate] = []
        for aggregate in job.aggregates:
            room -= aggregate.ByteSize()
            if room < 0:
                break
            kept.append(aggregate)
        if kept:
            reply.jobs.add(job_id=job.job_id, aggregates=kept)
    return reply
