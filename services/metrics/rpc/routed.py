"""Intake, telemetry and quarantine of all shards: a call that concerns another shard is forwarded to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog

from services.core.adapters.rpc.client import streaming, translating
from services.core.adapters.rpc.operations import OthersQuarantine, ask_quarantine
from services.core.domain.errors import WeftError
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.ports.metric_store import Column, MetricStore
from services.core.runtime.quarantine import QuarantineEntry
from services.metrics.rpc.intake import Intake, calling_learner
from services.metrics.rpc.messages import bounded_aggregates
from services.metrics.rpc.telemetry import Telemetry
from services.metrics.shards.routing import Routing, is_forwarded
from services.metrics.shards.siblings import FORWARDED, Sibling

Reply = TypeVar("Reply")
_CALL_S: Final = 30.0
"""For a call whose caller waits without limit."""
_PROGRESS_S: Final = 0.8
"""Callers wait for a second: the parts that have arrived by then are the answer."""
_QUARANTINE_S: Final = 2.0
_FORWARDED: Final = ((FORWARDED, "1"),)
log = structlog.get_logger()


def _limit_s(context: Any) -> float:
    remaining = context.time_remaining()
    return _CALL_S if remaining is None else max(0.0, float(remaining))


def quarantine_of_others(siblings: Mapping[int, Sibling]) -> OthersQuarantine:
    """Reads what the other shards hold. One that does not answer is left out, and logged."""

    async def entries_of(sibling: Sibling) -> Sequence[QuarantineEntry]:
        try:
            with translating(f"shard {sibling.shard} of the metrics service"):
                return await ask_quarantine(sibling.own, timeout_s=_QUARANTINE_S, metadata=_FORWARDED)
        except WeftError as error:
            log.warning("quarantine.part_missing", shard=sibling.shard, why=error.message)
            return []

    async def read(context: Any) -> Sequence[QuarantineEntry]:
        if is_forwarded(context):
            return []
        parts = await asyncio.gather(*map(entries_of, siblings.values()))
        return [entry for part in parts for entry in part]

    return read


class RoutedColumns:
    """Columns of values for statistics, of the jobs of all shards."""

    def __init__(self, store: MetricStore, routing: Routing) -> None:
        self._store, self._routing = store, routing

    async def whole_columns(
        self, job_id: str, names: Sequence[str], context: Mapping[str, str] | None, *, most: int
    ) -> Mapping[str, Column]:
        """As MetricStore's."""
        owner = await self._routing.owner(job_id)
        if owner is None:
            return await self._store.whole_columns(job_id, names, context, most=most)
        return await _present({name: _column(owner, job_id, name, context, most=most) for name in names})

    async def columns(
        self, job_id: str, steps: Mapping[str, Sequence[int]], context: Mapping[str, str] | None
    ) -> Mapping[str, Column]:
        """As MetricStore's."""
        owner = await self._routing.owner(job_id)
        if owner is None:
            return await self._store.columns(job_id, steps, context)
        return await _present(
            {name: _column(owner, job_id, name, context, steps=wanted) for name, wanted in steps.items()}
        )


async def _present(reads: Mapping[str, Awaitable[Column | None]]) -> Mapping[str, Column]:
    columns = await asyncio.gather(*reads.values())
    return {name: column for name, column in zip(reads, columns, strict=True) if column is not None}


async def _column(
    owner: Sibling,
    job_id: str,
    name: str,
    context: Mapping[str, str] | None,
    *,
    most: int = 0,
    steps: Sequence[int] = (),
) -> Column | None:
    request = pb.ReadColumnRequest(
        job_id=job_id, name=name, context=context or {}, any_context=context is None, most=most, steps=steps
    )
    with translating(f"shard {owner.shard} of the metrics service"):
        reply = await owner.shards.ReadColumn(request, timeout=_CALL_S)
    return Column(list(reply.steps), list(reply.values), reply.count) if reply.reported else None


@dataclass(frozen=True)
class RoutedIntake(Intake):
    """Intake of all shards. Calls for objects do not concern the store: the shard that was called answers them."""

    routing: Routing

    async def Hello(self, request: pb.HelloRequest, context: Any) -> pb.HelloReply:
        return await self._routed(super().Hello, request, context)

    async def Append(self, request: pb.AppendRequest, context: Any) -> pb.AppendReply:
        return await self._routed(super().Append, request, context)

    async def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportReply:
        return await self._routed(super().Report, request, context)

    async def Beat(self, request: pb.BeatRequest, context: Any) -> pb.BeatReply:
        return await self._routed(super().Beat, request, context)

    async def Control(self, request: pb.ControlRequest, context: Any) -> AsyncGenerator[pb.ControlReply]:
        owner = await self.routing.owner(calling_learner().job, context)
        replies: AsyncGenerator[pb.ControlReply] = super().Control(request, context)
        if owner is not None:
            call = owner.intake.Control(request, timeout=context.time_remaining(), metadata=_credential(context))
            replies = streaming(call)
        async with aclosing(replies):
            async for reply in replies:
                yield reply

    async def _routed(self, own: Callable[[Any, Any], Awaitable[Reply]], request: Any, context: Any) -> Reply:
        owner = await self.routing.owner(calling_learner().job, context)
        if owner is None:
            return await own(request, context)
        with translating(f"shard {owner.shard} of the metrics service"):
            call: Callable[..., Awaitable[Reply]] = getattr(owner.intake, own.__name__)
            return await call(request, timeout=_limit_s(context), metadata=_credential(context))


def _credential(context: Any) -> tuple[tuple[str, str], ...]:
    """The metadata for the owner: the learner's own token, which the owner verifies, too."""
    authorization = str(dict(context.invocation_metadata() or ()).get("authorization", ""))
    return (("authorization", authorization), *_FORWARDED)


@dataclass(frozen=True)
class RoutedTelemetry(Telemetry):
    """Telemetry of all shards. Statistics over jobs are made by the shard that was called, of ``RoutedColumns``."""

    routing: Routing

    async def Lines(self, request: pb.LinesRequest, context: Any) -> pb.LinesReply:
        return await self._routed(super().Lines, request, context)

    async def Points(self, request: pb.PointsRequest, context: Any) -> pb.PointsReply:
        return await self._routed(super().Points, request, context)

    async def Series(self, request: pb.PointsRequest, context: Any) -> pb.PointsReply:
        return await self._routed(super().Series, request, context)

    async def Summary(self, request: pb.SummaryRequest, context: Any) -> pb.SummaryReply:
        return await self._routed(super().Summary, request, context)

    async def Forget(self, request: pb.ForgetRequest, context: Any) -> pb.ForgetReply:
        return await self._routed(super().Forget, request, context)

    async def FollowLines(self, request: pb.LinesRequest, context: Any) -> AsyncGenerator[pb.LinesReply]:
        async with aclosing(self._routed_stream(super().FollowLines, request, context)) as replies:
            async for reply in replies:
                yield reply

    async def FollowPoints(self, request: pb.PointsRequest, context: Any) -> AsyncGenerator[pb.PointsReply]:
        async with aclosing(self._routed_stream(super().FollowPoints, request, context)) as replies:
            async for reply in replies:
                yield reply

    async def Aggregates(self, request: pb.AggregatesRequest, context: Any) -> pb.AggregatesReply:
        parts = await self.routing.by_owner(request.job_ids, context)
        own = super().Aggregates
        answers = await asyncio.gather(
            *(
                self._of(owner, own, pb.AggregatesRequest(job_ids=ids, names=request.names), context)
                for owner, ids in parts
            )
        )
        return bounded_aggregates((job for answer in answers for job in answer.jobs), len(request.job_ids))

    async def Progress(self, request: pb.ProgressRequest, context: Any) -> pb.ProgressReply:
        """A shard that does not answer in time is left out: lists show what is there."""
        parts = await self.routing.by_owner(request.job_ids, context)
        own = super().Progress

        async def part(owner: Sibling | None, ids: Sequence[str]) -> Sequence[pb.ProgressOfJob]:
            try:
                async with asyncio.timeout(_PROGRESS_S):
                    answer: pb.ProgressReply = await self._of(owner, own, pb.ProgressRequest(job_ids=ids), context)
                    return answer.jobs
            except (WeftError, TimeoutError) as error:
                log.info("progress.part_missing", shard=owner.shard if owner is not None else None, why=str(error))
                return []

        answers = await asyncio.gather(*(part(owner, ids) for owner, ids in parts))
        return pb.ProgressReply(jobs=[job for jobs in answers for job in jobs])

    async def _routed(self, own: Callable[[Any, Any], Awaitable[Reply]], request: Any, context: Any) -> Reply:
        return await self._of(await self.routing.owner(request.job_id, context), own, request, context)

    async def _of(
        self, owner: Sibling | None, own: Callable[[Any, Any], Awaitable[Reply]], request: Any, context: Any
    ) -> Reply:
        if owner is None:
            return await own(request, context)
        with translating(f"shard {owner.shard} of the metrics service"):
            call: Callable[..., Awaitable[Reply]] = getattr(owner.telemetry, own.__name__)
            return await call(request, timeout=_limit_s(context), metadata=_FORWARDED)

    async def _routed_stream(
        self, own: Callable[[Any, Any], AsyncGenerator[Any]], request: Any, context: Any
    ) -> AsyncGenerator[Any]:
        owner = await self.routing.owner(request.job_id, context)
        replies = own(request, context)
        if owner is not None:
            call = getattr(owner.telemetry, own.__name__)
            replies = streaming(call(request, timeout=context.time_remaining(), metadata=_FORWARDED))
        async with aclosing(replies):
            async for reply in replies:
                yield reply
