"""The node agent's gRPC service: translates messages to calls of the agent, and results to messages.

A caller that gives up does not interrupt a change half-way: each change runs to its end, and a repeated call finds it
done.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import grpc.aio

from services.core.domain.codec import MALFORMED, dump, load
from services.core.domain.errors import InvalidRequest, Unavailable
from services.core.domain.plan import SCHEMA, AttemptPlan
from services.core.gen.weft.v1 import node_pb2, node_pb2_grpc
from services.node.agent import Agent

_Context = grpc.aio.ServicerContext[Any, Any]


class NodeServicer(node_pb2_grpc.NodeServicer):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._running: set[asyncio.Task[None]] = set()

    async def Capacity(self, request: node_pb2.CapacityRequest, context: _Context) -> node_pb2.CapacityReply:
        node = self._agent.node
        capacity = node_pb2.NodeCapacity(
            name=node.name,
            cpus=node.cpus,
            memory=node.memory,
            gpus=node.gpus,
            gpu_type=node.gpu_type,
            ready=node.ready,
            pressure=await asyncio.to_thread(self._agent.free_space.shortage),
        )
        return node_pb2.CapacityReply(nodes=[capacity], isolation=self._agent.isolation.name)

    async def Do(self, request: node_pb2.DoRequest, context: _Context) -> node_pb2.DoReply:
        await self._run_to_end(self._agent.do(request.step, read_plan(request.plan)))
        return node_pb2.DoReply()

    async def Observe(self, request: node_pb2.ObserveRequest, context: _Context) -> node_pb2.ObserveReply:
        observation = await self._agent.observe(request.job_id)
        learners = [json.dumps(dump(learner)).encode() for learner in observation.learners]
        return node_pb2.ObserveReply(learners=learners, attempts=observation.attempts)

    async def Stop(self, request: node_pb2.StopRequest, context: _Context) -> node_pb2.StopReply:
        await self._run_to_end(
            self._agent.stop(
                request.job_id,
                attempt=request.attempt,
                term=request.term,
                generation=request.generation,
                cause=request.cause,
                grace_ms=request.grace_ms,
            )
        )
        return node_pb2.StopReply()

    async def Teardown(self, request: node_pb2.TeardownRequest, context: _Context) -> node_pb2.TeardownReply:
        await self._run_to_end(self._agent.teardown(request.job_id, attempt=request.attempt, term=request.term))
        return node_pb2.TeardownReply()

    async def Jobs(self, request: node_pb2.JobsRequest, context: _Context) -> node_pb2.JobsReply:
        return node_pb2.JobsReply(job_ids=await self._agent.jobs())

    async def Watch(self, request: node_pb2.WatchRequest, context: _Context) -> AsyncIterator[node_pb2.WatchEvent]:
        async for job in self._agent.watch():
            yield node_pb2.WatchEvent(job_id=job)

    async def _run_to_end(self, change: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.shield(task)

    async def changes_done(self) -> None:
        """Returns when no change is running."""
        await asyncio.gather(*self._running, return_exceptions=True)


def read_plan(content: bytes) -> AttemptPlan:
    """InvalidRequest if it cannot be read; Unavailable if it is of a newer schema, as during an upgrade."""
    try:
        document = json.loads(content)
        schema = document.get("schema", SCHEMA)
        if isinstance(schema, int) and schema > SCHEMA:
            raise Unavailable(
                f"the plan is of a newer Weft (schema {schema}, the node agent reads {SCHEMA}); finish the upgrade"
            )
        return load(AttemptPlan, document)
    except MALFORMED as error:
        raise InvalidRequest(f"the plan cannot be read: {error}") from error
