"""Clients of the other services: metrics (what a job reported) and the life-cycle manager (queue and cluster).

A channel is opened at the first call, and again after a service's address has changed, so the api starts and serves
while other services are away. Answers are the types of the ports; errors are those of the error table.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import grpc.aio

from services.core.adapters.rpc.client import Channels, Credential, is_lost, streaming, translating
from services.core.adapters.rpc.operations import ask_quarantine
from services.core.domain.errors import Unavailable
from services.core.domain.sizes import Size, as_devices
from services.core.gen.weft.v1 import (
    control_pb2,
    control_pb2_grpc,
    metrics_pb2,
    metrics_pb2_grpc,
)
from services.core.ports.cluster import Node
from services.core.ports.metric_store import (
    Aggregate,
    LineQuery,
    LogLine,
    Point,
    PointQuery,
    SourceId,
    StoredLine,
    StoredPoint,
)
from services.core.runtime.home import Home
from services.core.runtime.quarantine import QuarantineEntry

T = TypeVar("T")
_QUERY_S: Final = 30.0
"""A search through all of a long job's lines may take a while."""
_OPTIONAL_S: Final = 1.0
"""For parts of an answer that may be left out: queue positions, capacity."""
_QUARANTINE_S: Final = 3.0
"""An operator looks for a fault: a slow service gets time to answer."""
_RECONNECT_S: Final = 2.0
"""A service that was restarted serves again within it; while it is away for longer, readers hear so soon."""
_FOLLOW_S: Final = 24 * 3600.0


class ServiceClient:
    """The channel to one other service, by its name in the addresses file."""

    def __init__(self, home: Home, name: str, credential: Credential, *, reconnect_s: float = _RECONNECT_S) -> None:
        """``reconnect_s``: how long ``read`` waits for a connection that was lost."""
        self._home = home
        self._reconnect_s = reconnect_s
        self._name = name
        self._channels = Channels(credential)

    async def channel(self) -> grpc.aio.Channel:
        """The open channel. Raises Unavailable if the service has no address yet."""
        try:
            address = self._home.address(self._name)
        except Unavailable:
            raise Unavailable(f"the {self._name} service is not there yet", retry_after_s=1) from None
        return self._channels.to(address)

    async def read(self, call: Callable[[grpc.aio.Channel], Awaitable[T]]) -> T:
        """The reply to a call that changes nothing, with the errors of the error table.

        It is repeated once if the connection is lost: the service was restarted, or did not answer a ping for seconds
        because its machine was overloaded.
        """
        with self.answering():
            try:
                return await call(await self.channel())
            except grpc.aio.AioRpcError as error:
                if not is_lost(error) or not await self._reconnected():
                    raise
            return await call(await self.channel())

    async def _reconnected(self) -> bool:
        try:
            async with asyncio.timeout(self._reconnect_s):
                await (await self.channel()).channel_ready()
        except TimeoutError:
            return False
        return True

    @contextmanager
    def answering(self) -> Generator[None]:
        """Within it, calls raise the errors of the error table; Unavailable names the service."""
        with translating(f"the {self._name} service"):
            yield

    async def close(self) -> None:
        """Cancels the calls under way."""
        await self._channels.close()


@dataclass(frozen=True, slots=True)
class Lines:
    """A page of log lines, in the order of the query."""

    lines: Sequence[StoredLine]
    through: int
    """The page contains every line that matches up to this seq: continue after it."""
    stopped_at: int | None = None
    """The search reached its time limit: lines beyond this seq (with ``tail``: before it) are not searched yet."""
    more: bool = False
    """Lines beyond the last one may match."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The dispatcher's last decision for a job that waits."""

    job_id: str
    position: int
    """In the queue, from 1."""
    pending_reason: str
    message: str


@dataclass(frozen=True, slots=True)
class LearnerFetching:
    """A step of the start-up that a helper carries out."""

    learner: str
    attempt: int
    step: str
    """code, data, environment or checkpoint."""
    began: int
    """Unix ms."""
    message: str
    """The current activity, for people."""
    done: int | None
    """Bytes; None: the activity counts none."""
    total: int | None
    """Bytes; None: unknown."""


@dataclass(frozen=True, slots=True)
class LearnerBar:
    """A progress bar that a learner draws."""

    learner: str
    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What a job has reported up to now."""

    lines: int
    """Number of log lines, which is also the highest seq."""
    points: int
    """Number of metric points, which is also the highest seq."""
    latest: Mapping[str, StoredPoint]
    """The newest point by name of the metric."""
    progress: float | None
    """From 0 to 1; None if the job does not report it."""
    eta_ms: int | None
    """Milliseconds until the end; None if it is not known."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Lines and points beyond a bound of the job: bound -> count."""
    fetching: Sequence[LearnerFetching] = ()
    """What helpers fetch, or did when they were last heard of."""
    bars: Sequence[LearnerBar] = ()
    """Progress bars that learners draw, or did when they were last heard of."""
    usage: Sequence[Aggregate] = ()
    """What each learner of the newest attempt uses of the hardware, by name and rank."""


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """Statistics of a metric over jobs; item n of each column belongs to step n."""

    steps: Sequence[int]
    n: Sequence[int]
    mean: Sequence[float]
    std: Sequence[float]
    """Of the population."""
    low: Sequence[float]
    high: Sequence[float]
    without: Sequence[str]
    """Jobs that did not report the metric."""


@dataclass(frozen=True, slots=True)
class ClusterUsage:
    """The cluster as the dispatcher counts it."""

    nodes: Sequence[Node]
    isolation: str
    """How learners are isolated: sandbox | process | trusted."""
    used: Mapping[str, Size]
    """What jobs hold of each node, by its name."""


class DispatcherClient:
    """Every method raises Unavailable if the life-cycle manager does not answer within a second."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def explain(self, job_ids: Sequence[str]) -> Sequence[Waiting]:
        """Those of these jobs that wait."""
        stub = control_pb2_grpc.QueueStub(await self._client.channel())
        with self._client.answering():
            reply = await stub.Explain(control_pb2.ExplainRequest(job_ids=job_ids), timeout=_OPTIONAL_S)
        return [
            Waiting(waiting.job_id, waiting.position, waiting.pending_reason, waiting.message)
            for waiting in reply.waiting
        ]

    async def fit(self, spec: Mapping[str, Any]) -> tuple[str, str]:
        """(now | later | never, why not now) for a spec in its stored form."""
        stub = control_pb2_grpc.QueueStub(await self._client.channel())
        request = control_pb2.FitRequest(spec=json.dumps(spec).encode())
        with self._client.answering():
            reply = await stub.Fit(request, timeout=_OPTIONAL_S)
        return reply.verdict, reply.message

    async def cluster_usage(self) -> ClusterUsage:
        """The nodes, and what jobs hold of them."""
        stub = control_pb2_grpc.QueueStub(await self._client.channel())
        with self._client.answering():
            reply = await stub.ClusterUsage(control_pb2.ClusterUsageRequest(), timeout=_OPTIONAL_S)
        nodes = [
            Node(
                name=node.name,
                cpus=node.cpus,
                memory=node.memory,
                gpus=round(node.gpus),
                gpu_type=node.gpu_type,
                ready=node.ready,
                devices=as_devices(node.devices),
            )
            for node in reply.nodes
        ]
        used = {node.name: Size(node.used_gpus, node.used_cpus, node.used_memory) for node in reply.nodes}
        return ClusterUsage(nodes, reply.isolation, used)


async def quarantined_of(client: ServiceClient) -> Sequence[QuarantineEntry]:
    """What that service cannot read and leaves alone."""
    channel = await client.channel()
    with client.answering():
        return await ask_quarantine(channel, timeout_s=_QUARANTINE_S)


class TelemetryClient:
    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def lines(self, job_id: str, query: LineQuery, *, limit: int) -> Lines:
        """A page of lines."""
        request = _lines_request(job_id, query, limit)
        reply = await self._client.read(lambda channel: _stub(channel).Lines(request, timeout=_QUERY_S))
        stopped_at = reply.stopped_at if reply.HasField("stopped_at") else None
        return Lines([_line(line) for line in reply.lines], reply.through_seq, stopped_at, reply.more)

    async def follow_lines(self, job_id: str, query: LineQuery) -> AsyncGenerator[tuple[Sequence[StoredLine], int]]:
        """Batches beyond ``after_seq`` as they are stored. May end or fail; call again with the last seq."""
        stub = _stub(await self._client.channel())
        async with aclosing(
            streaming(stub.FollowLines(_lines_request(job_id, query, 0), timeout=_FOLLOW_S))
        ) as replies:
            async for reply in replies:
                yield [_line(line) for line in reply.lines], reply.through_seq

    async def points(self, job_id: str, query: PointQuery, *, limit: int) -> tuple[Sequence[StoredPoint], int]:
        """A page of points, and the seq up to which it contains every point that matches."""
        request = _points_request(job_id, query, limit)
        reply = await self._client.read(lambda channel: _stub(channel).Points(request, timeout=_QUERY_S))
        return _points(reply.points), reply.through_seq

    async def follow_points(self, job_id: str, query: PointQuery) -> AsyncGenerator[tuple[Sequence[StoredPoint], int]]:
        """As ``follow_lines``."""
        stub = _stub(await self._client.channel())
        async with aclosing(
            streaming(stub.FollowPoints(_points_request(job_id, query, 0), timeout=_FOLLOW_S))
        ) as replies:
            async for reply in replies:
                yield _points(reply.points), reply.through_seq

    async def series(self, job_id: str, query: PointQuery) -> tuple[Sequence[StoredPoint], int]:
        """The points of curves, thinned out to ``query.max_points`` each, and the seq up to which they lack none."""
        request = _points_request(job_id, query, 0)
        reply = await self._client.read(lambda channel: _stub(channel).Series(request, timeout=_QUERY_S))
        return _points(reply.points), reply.through_seq

    async def aggregates(self, job_ids: Sequence[str], names: Sequence[str]) -> Mapping[str, Sequence[Aggregate]]:
        """Aggregates of these metrics, by job; jobs that reported none are missing. At most 500 jobs."""
        if not job_ids:
            return {}
        request = metrics_pb2.AggregatesRequest(job_ids=job_ids, names=names)
        reply = await self._client.read(lambda channel: _stub(channel).Aggregates(request, timeout=_QUERY_S))
        return {job.job_id: [_aggregate(aggregate) for aggregate in job.aggregates] for job in reply.jobs}

    async def progress(self, job_ids: Sequence[str]) -> Mapping[str, tuple[float, int | None]]:
        """(share that is done, milliseconds left or None) of the jobs that report it. At most 500 jobs."""
        if not job_ids:
            return {}
        stub = _stub(await self._client.channel())
        with self._client.answering():
            reply = await stub.Progress(metrics_pb2.ProgressRequest(job_ids=job_ids), timeout=_OPTIONAL_S)
        return {job.job_id: (job.progress, job.eta_ms if job.eta_ms >= 0 else None) for job in reply.jobs}

    async def statistics(
        self, job_ids: Sequence[str], names: Sequence[str], context: Mapping[str, str] | None, *, max_points: int
    ) -> Sequence[StepStatistics]:
        """Statistics of each of these metrics over the jobs. ``context``: their labels; None: each job's first series.

        Raises Unavailable if the metrics service knows one metric only, as during an upgrade.
        """
        name, *also = names
        request = metrics_pb2.StepStatisticsRequest(
            job_ids=job_ids,
            name=name,
            also=also,
            context=context or {},
            any_context=context is None,
            max_points=max_points,
        )
        reply = await self._client.read(lambda channel: _stub(channel).StepStatistics(request, timeout=_QUERY_S))
        if len(reply.more) != len(also):
            raise Unavailable("the metrics service is of an older version", retry_after_s=5)
        return [_statistics(part) for part in (reply, *reply.more)]

    async def summary(self, job_id: str) -> Summary:
        request = metrics_pb2.SummaryRequest(job_id=job_id)
        reply = await self._client.read(lambda channel: _stub(channel).Summary(request, timeout=_QUERY_S))
        latest = {point.point.name: point for point in _points(reply.latest)}
        return Summary(
            lines=reply.lines,
            points=reply.points,
            latest=latest,
            progress=reply.progress if reply.progress >= 0 else None,
            eta_ms=reply.eta_ms if reply.eta_ms >= 0 else None,
            left_out=dict(reply.left_out),
            fetching=[_fetching(entry) for entry in reply.fetching],
            bars=[LearnerBar(bar.learner, bar.attempt, bar.text) for bar in reply.bars],
            usage=[_aggregate(aggregate) for aggregate in reply.usage],
        )


def _stub(channel: grpc.aio.Channel) -> metrics_pb2_grpc.TelemetryAsyncStub:
    return metrics_pb2_grpc.TelemetryStub(channel)


def _lines_request(job_id: str, query: LineQuery, limit: int) -> metrics_pb2.LinesRequest:
    return metrics_pb2.LinesRequest(
        job_id=job_id,
        after_seq=query.after_seq,
        before_seq=query.before_seq,
        rank=query.rank,
        role=query.role,
        attempt=query.attempt,
        stream=query.stream,
        since_ms=query.since_ms,
        until_ms=query.until_ms,
        search=query.search,
        tail=query.tail,
        limit=limit,
        by_time=query.by_time,
    )


def _points_request(job_id: str, query: PointQuery, limit: int) -> metrics_pb2.PointsRequest:
    return metrics_pb2.PointsRequest(
        job_id=job_id,
        after_seq=query.after_seq,
        names=query.names,
        rank=query.rank,
        attempt=query.attempt,
        max_points=query.max_points,
        limit=limit,
        from_step=query.from_step,
        to_step=query.to_step,
        since_ms=query.since_ms,
        until_ms=query.until_ms,
    )


def _statistics(reply: metrics_pb2.StepStatisticsReply) -> StepStatistics:
    return StepStatistics(
        list(reply.steps),
        list(reply.n),
        list(reply.mean),
        list(reply.std),
        list(reply.low),
        list(reply.high),
        list(reply.without),
    )


def _fetching(entry: metrics_pb2.LearnerFetching) -> LearnerFetching:
    step = entry.step
    return LearnerFetching(
        learner=entry.learner,
        attempt=entry.attempt,
        step=step.step,
        began=step.began_ms,
        message=step.message,
        done=step.done_bytes if step.HasField("done_bytes") else None,
        total=step.total_bytes if step.HasField("total_bytes") else None,
    )


def _aggregate(aggregate: metrics_pb2.Aggregate) -> Aggregate:
    def step(name: str) -> int | None:
        return getattr(aggregate, name) if aggregate.HasField(name) else None  # type: ignore[arg-type]

    return Aggregate(
        name=aggregate.name,
        context=dict(aggregate.context),
        rank=aggregate.rank,
        count=aggregate.count,
        last=aggregate.last,
        last_step=step("last_step"),
        low=aggregate.low,
        low_step=step("low_step"),
        high=aggregate.high,
        high_step=step("high_step"),
    )


def _source(source: metrics_pb2.Source) -> SourceId:
    return SourceId(source.attempt, source.role, source.rank, source.run, source.source, source.generation)


def _line(stored: metrics_pb2.StoredLine) -> StoredLine:
    line = stored.line
    return StoredLine(stored.seq, _source(stored.source), LogLine(line.offset, line.time_ms, line.text, line.partial))


def _points(messages: Iterable[metrics_pb2.StoredPoint]) -> list[StoredPoint]:
    last, source = metrics_pb2.Source(), SourceId(0, "", 0, 0, "")
    points: list[StoredPoint] = []
    for message in messages:
        if message.source != last:  # points in a row have the same one
            last, source = message.source, _source(message.source)
        points.append(_point(message, source))
    return points


def _point(stored: metrics_pb2.StoredPoint, source: SourceId) -> StoredPoint:
    point = stored.point
    step = point.step if point.HasField("step") else None
    context = dict(point.context) if point.context else {}
    return StoredPoint(stored.seq, source, Point(point.offset, point.time_ms, point.name, step, point.value, context))
