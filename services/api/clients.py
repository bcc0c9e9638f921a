"""The other services as the api asks them: metrics for what a job reported, the dispatcher, the node agent.

Channels are made when first needed and again when a peer's address changed, so the api starts and serves without any of
them. Answers are the types of the ports; errors those of the one table.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Final

import grpc.aio

from services.core.adapters.rpc.client import connect, streaming, translating
from services.core.adapters.rpc.operations import ask_quarantine
from services.core.domain.errors import Unavailable
from services.core.gen.weft.v1 import (
    control_pb2,
    control_pb2_grpc,
    metrics_pb2,
    metrics_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
)
from services.core.ports.cluster import Node
from services.core.ports.metric_store import (
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

_QUERY_S: Final = 30.0
"""A search through all of a long job's lines may take a while."""
_ASIDE_S: Final = 1.0
"""For what is only an ornament of an answer: positions, capacity."""
_HELD_S: Final = 3.0
"""An operator looks for trouble: who is merely slow is waited for."""
_FOLLOW_S: Final = 24 * 3600.0


class ServiceClient:
    """One other service, by its name in the addresses file."""

    def __init__(self, home: Home, name: str, secret: bytes) -> None:
        self._home = home
        self._name = name
        self._secret = secret
        self._address = ""
        self._channel: grpc.aio.Channel | None = None

    async def channel(self) -> grpc.aio.Channel:
        """Unavailable where it has no address yet."""
        try:
            address = self._home.address(self._name)
        except Unavailable:
            raise Unavailable(f"the {self._name} service is not there yet", retry_after_s=1) from None
        if self._channel is None or address != self._address:
            await self.close()
            self._address, self._channel = address, connect(address, secret=self._secret)
        return self._channel

    @contextmanager
    def answering(self) -> Generator[None]:
        """Inside it, calls raise the errors of the table; one that is not answered names the service."""
        with translating(f"the {self._name} service"):
            yield

    async def close(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the dispatcher knows of a job that waits."""

    job_id: str
    position: int
    pending_reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What a job has reported up to now. ``lines`` and ``points`` are also the highest seq of each."""

    lines: int
    points: int
    latest: Mapping[str, StoredPoint]
    progress: float | None
    eta_ms: int | None


class DispatcherClient:
    def __init__(self, client: ServiceClient) -> None:
        self._peer = client

    async def explain(self, job_ids: Sequence[str] = ()) -> Sequence[Waiting]:
        """Waiting jobs in their order; without ids all of them."""
        stub = control_pb2_grpc.QueueStub(await self._peer.channel())
        with self._peer.answering():
            reply = await stub.Explain(control_pb2.ExplainRequest(job_ids=job_ids), timeout=_ASIDE_S)
        return [Waiting(one.job_id, one.position, one.pending_reason, one.message) for one in reply.waiting]


async def quarantined_of(client: ServiceClient) -> Sequence[QuarantineEntry]:
    """What that service cannot read and leaves alone."""
    channel = await client.channel()
    with client.answering():
        return await ask_quarantine(channel, timeout_s=_HELD_S)


class NodeClient:
    def __init__(self, client: ServiceClient) -> None:
        self._peer = client

    async def capacity(self) -> tuple[Sequence[Node], str]:
        """The nodes, and the isolation of isolation that learners get."""
        stub = node_pb2_grpc.NodeStub(await self._peer.channel())
        with self._peer.answering():
            reply = await stub.Capacity(node_pb2.CapacityRequest(), timeout=_ASIDE_S)
        nodes = [
            Node(name=one.name, cpus=one.cpus, memory=one.memory, gpus=one.gpus, gpu_type=one.gpu_type, ready=one.ready)
            for one in reply.nodes
        ]
        return nodes, reply.isolation


class TelemetryClient:
    def __init__(self, client: ServiceClient) -> None:
        self._peer = client

    async def lines(self, job_id: str, query: LineQuery, *, limit: int) -> tuple[Sequence[StoredLine], int]:
        """A page, and the seq up to which everything that matches has been given."""
        stub = metrics_pb2_grpc.TelemetryStub(await self._peer.channel())
        with self._peer.answering():
            reply = await stub.Lines(_lines_request(job_id, query, limit), timeout=_QUERY_S)
        return [_line(one) for one in reply.lines], reply.through_seq

    async def follow_lines(self, job_id: str, query: LineQuery) -> AsyncGenerator[tuple[Sequence[StoredLine], int]]:
        """Batches as they are stored, from ``after_seq`` on. May end or fail at any time: go on after the last seq."""
        stub = metrics_pb2_grpc.TelemetryStub(await self._peer.channel())
        async with aclosing(
            streaming(stub.FollowLines(_lines_request(job_id, query, 0), timeout=_FOLLOW_S))
        ) as replies:
            async for reply in replies:
                yield [_line(one) for one in reply.lines], reply.through_seq

    async def points(self, job_id: str, query: PointQuery, *, limit: int) -> tuple[Sequence[StoredPoint], int]:
        stub = metrics_pb2_grpc.TelemetryStub(await self._peer.channel())
        with self._peer.answering():
            reply = await stub.Points(_points_request(job_id, query, limit), timeout=_QUERY_S)
        return [_point(one) for one in reply.points], reply.through_seq

    async def follow_points(self, job_id: str, query: PointQuery) -> AsyncGenerator[tuple[Sequence[StoredPoint], int]]:
        stub = metrics_pb2_grpc.TelemetryStub(await self._peer.channel())
        async with aclosing(
            streaming(stub.FollowPoints(_points_request(job_id, query, 0), timeout=_FOLLOW_S))
        ) as replies:
            async for reply in replies:
                yield [_point(one) for one in reply.points], reply.through_seq

    async def series(self, job_id: str, query: PointQuery) -> Sequence[StoredPoint]:
        stub = metrics_pb2_grpc.TelemetryStub(await self._peer.channel())
        with self._peer.answering():
            reply = await stub.Series(_points_request(job_id, query, 0), timeout=_QUERY_S)
        return [_point(one) for one in reply.points]

    async def summary(self, job_id: str) -> Summary:
        stub = metrics_pb2_grpc.TelemetryStub(await self._peer.channel())
        with self._peer.answering():
            reply = await stub.Summary(metrics_pb2.SummaryRequest(job_id=job_id), timeout=_QUERY_S)
        latest = {one.point.name: _point(one) for one in reply.latest}
        return Summary(
            lines=reply.lines, points=reply.points, latest=latest,
            progress=reply.progress if reply.progress >= 0 else None,
            eta_ms=reply.eta_ms if reply.eta_ms >= 0 else None,
        )  # fmt: skip


def _lines_request(job_id: str, query: LineQuery, limit: int) -> metrics_pb2.LinesRequest:
    return metrics_pb2.LinesRequest(
        job_id=job_id, after_seq=query.after_seq, before_seq=query.before_seq, rank=query.rank, role=query.role,
        attempt=query.attempt, stream=query.stream, since_ms=query.since_ms, until_ms=query.until_ms,
        search=query.search, tail=query.tail, limit=limit,
    )  # fmt: skip


def _points_request(job_id: str, query: PointQuery, limit: int) -> metrics_pb2.PointsRequest:
    return metrics_pb2.PointsRequest(
        job_id=job_id, after_seq=query.after_seq, names=query.names, rank=query.rank, attempt=query.attempt,
        max_points=query.max_points, limit=limit,
    )  # fmt: skip


def _source(one: metrics_pb2.Source) -> SourceId:
    return SourceId(one.attempt, one.role, one.rank, one.run, one.source, one.generation)


def _line(one: metrics_pb2.StoredLine) -> StoredLine:
    line = one.line
    return StoredLine(one.seq, _source(one.source), LogLine(line.offset, line.time_ms, line.text, line.partial))


def _point(one: metrics_pb2.StoredPoint) -> StoredPoint:
    point = one.point
    step = point.step if point.HasField("step") else None
    return StoredPoint(
        one.seq,
        _source(one.source),
        Point(point.offset, point.time_ms, point.name, step, point.value, dict(point.context)),
    )
