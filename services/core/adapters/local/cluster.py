"""The Cluster port of this machine: each call is one gRPC call of the node agent, which does the work."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Final

from services.core.adapters.rpc.client import Credential, connect, streaming, translating
from services.core.domain.codec import dump, load
from services.core.domain.errors import Unavailable
from services.core.domain.plan import AttemptPlan
from services.core.gen.weft.v1 import node_pb2, node_pb2_grpc
from services.core.ports.cluster import ISOLATION_LABEL, LearnerProcess, Node, Observation
from services.core.runtime.address import Address
from services.core.runtime.retry import Backoff

STEPS: Final = ("reserve", "learners", "activate")
_READ_S: Final = 5.0
_CHANGE_S: Final = 60.0
_RECONNECT_S: Final = 0.5
_REMOVE_S: Final = 600.0
"""A teardown removes the learners' files, which may be many."""


class LocalCluster:
    """``address`` is the node agent's; ``credential`` is for calls of it."""

    def __init__(self, address: Address | str, credential: Credential) -> None:
        self._channel = connect(address, credential)
        self._stub = node_pb2_grpc.NodeStub(self._channel)

    async def capacity(self) -> Sequence[Node]:
        with translating():
            reply = await self._stub.Capacity(node_pb2.CapacityRequest(), timeout=_READ_S)
        return [
            Node(
                name=node.name,
                cpus=node.cpus,
                memory=node.memory,
                gpus=node.gpus,
                gpu_type=node.gpu_type,
                ready=node.ready,
                pressure=node.pressure,
                labels={ISOLATION_LABEL: reply.isolation},
            )
            for node in reply.nodes
        ]

    async def prepare(self, tenant: str) -> None:
        """Nothing: a machine needs no preparation."""

    def steps(self) -> Sequence[str]:
        return STEPS

    async def do(self, step: str, plan: AttemptPlan) -> None:
        request = node_pb2.DoRequest(step=step, plan=json.dumps(dump(plan)).encode())
        with translating():
            await self._stub.Do(request, timeout=_CHANGE_S)

    async def observe(self, job_id: str, *, cached: bool = False) -> Observation:  # noqa: ARG002 - costs little
        with translating():
            reply = await self._stub.Observe(node_pb2.ObserveRequest(job_id=job_id), timeout=_READ_S)
        learners = [load(LearnerProcess, json.loads(learner)) for learner in reply.learners]
        return Observation(learners=learners, attempts=list(reply.attempts))

    async def stop(self, job_id: str, *, attempt: int, term: int, generation: int, cause: str, grace_ms: int) -> None:
        request = node_pb2.StopRequest(
            job_id=job_id, attempt=attempt, term=term, generation=generation, cause=cause, grace_ms=grace_ms
        )
        with translating():
            await self._stub.Stop(request, timeout=_CHANGE_S)

    async def teardown(self, job_id: str, *, attempt: int, term: int) -> None:
        request = node_pb2.TeardownRequest(job_id=job_id, attempt=attempt, term=term)
        with translating():
            await self._stub.Teardown(request, timeout=_REMOVE_S)

    async def jobs(self, *, cached: bool = False) -> Sequence[str]:  # noqa: ARG002 - costs little
        with translating():
            return list((await self._stub.Jobs(node_pb2.JobsRequest(), timeout=_READ_S)).job_ids)

    async def watch(self) -> AsyncIterator[str]:
        backoff = Backoff(first_s=_RECONNECT_S, most_s=_RECONNECT_S)
        while True:
            try:
                async for event in streaming(self._stub.Watch(node_pb2.WatchRequest())):
                    yield event.job_id  # the first of each connection is "": changes before it are unknown
            except Unavailable:
                pass  # the agent is being restarted
            await backoff.wait()

    async def ping(self) -> None:
        await self.capacity()

    async def close(self) -> None:
        await self._channel.close()
