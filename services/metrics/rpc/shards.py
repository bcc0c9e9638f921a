"""The Shard RPCs, for the other shards of the metrics service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from services.core.domain.errors import Conflict, Unavailable
from services.core.domain.shards import Shards
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.gen.weft.v1 import metrics_pb2_grpc
from services.core.ports.metric_store import MetricStore
from services.metrics.shards.agreement import numbers_message, numbers_of

_IN_A_MESSAGE: Final = 1_000


@dataclass(frozen=True)
class Shard(metrics_pb2_grpc.ShardServicer):
    shards: Shards
    shard: int
    """The number of this one."""
    store: MetricStore
    ensure: Callable[[str], Awaitable[None]]
    """Returns once the store has all of the job."""

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeReply:
        return pb.DescribeReply(numbers=numbers_message(self.shards))

    async def ListMoving(self, request: pb.ListMovingRequest, context: Any) -> AsyncIterator[pb.ListMovingReply]:
        if numbers_of(request.numbers) != self.shards:
            raise Unavailable("the shards do not run with the same settings yet", retry_after_s=1)
        job_ids = [job for job in await self.store.job_ids() if self.shards.owner(job) == request.shard]
        for first in range(0, len(job_ids), _IN_A_MESSAGE):
            yield pb.ListMovingReply(job_ids=job_ids[first : first + _IN_A_MESSAGE])

    async def ReadFiles(self, request: pb.ReadFilesRequest, context: Any) -> AsyncIterator[pb.FileBytes]:
        self._refuse_own(request.job_id)
        async with aclosing(self.store.files(request.job_id)) as parts:
            async for part in parts:
                yield pb.FileBytes(name=part.name, data=part.data)

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:
        self._refuse_own(request.job_id)
        await self.store.release(request.job_id)
        return pb.ReleaseReply()

    def _refuse_own(self, job_id: str) -> None:
        """Raises Conflict for a job of this shard: it is in use, and does not move."""
        if self.shards.owner(job_id) == self.shard:
            raise Conflict(f"job {job_id} belongs to shard {self.shard}, which keeps it")

    async def ReadColumn(self, request: pb.ReadColumnRequest, context: Any) -> pb.ReadColumnReply:
        await self.ensure(request.job_id)
        labels = None if request.any_context else dict(request.context)
        name = request.name
        if request.steps:
            columns = await self.store.columns(request.job_id, {name: request.steps}, labels)
        else:
            columns = await self.store.whole_columns(request.job_id, [name], labels, most=request.most)
        column = columns.get(name)
        if column is None:
            return pb.ReadColumnReply()
        return pb.ReadColumnReply(reported=True, steps=column.steps, values=column.values, count=column.count)
