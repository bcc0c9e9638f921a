"""The node agent's gRPC face: messages in, the agent's calls, messages out.

A caller that gives up does not stop what it has asked for half-way: each change runs to its end, and its repetition
finds it done.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import grpc.aio

from services.core.domain.codec import dump, load
from services.core.domain.errors import InvalidRequest
from services.core.domain.plan import AttemptPlan
from services.core.gen.weft.v1 import node_pb2, node_pb2_grpc
from services.node.agent import Agent

_Context = grpc.aio.ServicerContext[Any, Any]


class NodeServicer(node_pb2_grpc.NodeServicer):
    """What it serves is ``agent``."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._running: set[asyncio.Task[None]] = set()

    async def Capacity(self, request: node_pb2.CapacityRequest, context: _Context) -> node_pb2.CapacityReply:
        node = self._agent.node
        shown = node_pb2.NodeCapacity(
            name=node.name, cpus=node.cpus, memory=node.memory, gpus=node.gpus, gpu_type=node.gpu_type, ready=node.ready
        )
        return node_pb2.CapacityReply(nodes=[shown], isolation=self._agent.isolation.name)

    async def Do(self, request: node_pb2.DoRequest, context: _Context) -> node_pb2.DoReply:
        try:
            plan = load(AttemptPlan, json.loads(request.plan))
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"the plan cannot be read: {error}") from error
        await self._whole(self._agent.do(request.step, plan))
        return node_pb2.DoReply()

    async def Observe(self, request: node_pb2.ObserveRequest, context: _Context) -> node_pb2.ObserveReply:
        seen = await self._agent.observe(request.job_id)
        learners = [json.dumps(dump(one)).encode() for one in seen.learners]
        return node_pb2.ObserveReply(learners=learners, attempts=seen.attempts)

    async def Stop(self, request: node_pb2.StopRequest, context: _Context) -> node_pb2.StopReply:
        await self._whole(
            self._agent.stop(
                request.job_id, attempt=request.attempt, term=request.term, generation=request.generation,
                cause=request.cause, grace_ms=request.grace_ms,
            )
        )  # fmt: skip
        return node_pb2.StopReply()

    async def Teardown(self, request: node_pb2.TeardownRequest, context: _Context) -> node_pb2.TeardownReply:
        await self._whole(self._agent.teardown(request.job_id, attempt=request.attempt, term=request.term))
        return node_pb2.TeardownReply()

    async def Jobs(self, request: node_pb2.JobsRequest, context: _Context) -> node_pb2.JobsReply:
        return node_pb2.JobsReply(job_ids=await self._agent.jobs())

    async def Watch(self, request: node_pb2.WatchRequest, context: _Context) -> AsyncIterator[node_pb2.WatchEvent]:
        async for job in self._agent.watch():
            yield node_pb2.WatchEvent(job_id=job)

    async def _whole(self, change: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.shield(task)

    async def settled(self) -> None:
        """Returns when all that was asked for is over."""
        await asyncio.gather(*self._running, return_exceptions=True)
