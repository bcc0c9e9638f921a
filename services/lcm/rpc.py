"""The life-cycle manager's gRPC services: hints, and questions about the queue and the cluster."""

from __future__ import annotations

import json
from typing import Any

from services.core.domain.errors import InvalidRequest
from services.core.domain.spec import parse_spec
from services.core.gen.weft.v1 import control_pb2, control_pb2_grpc
from services.core.ports.cluster import ISOLATION_LABEL
from services.lcm.dispatcher import Dispatcher
from services.lcm.scheduling.snapshot import NodeUsage


class Control(control_pb2_grpc.ControlServicer):
    """Hints from the other services. Each one starts a round, which reads everything."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def Nudge(self, request: control_pb2.NudgeRequest, context: Any) -> control_pb2.NudgeReply:
        self._dispatcher.wake()
        return control_pb2.NudgeReply()


class Queue(control_pb2_grpc.QueueServicer):
    """Answers from the dispatcher; see control.proto for what each RPC guarantees."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def Explain(self, request: control_pb2.ExplainRequest, context: Any) -> control_pb2.ExplainReply:
        waiting = await self._dispatcher.decisions()
        decisions = [waiting[job_id] for job_id in request.job_ids or waiting if job_id in waiting]
        return control_pb2.ExplainReply(
            waiting=[
                control_pb2.Waiting(
                    job_id=decision.job.id,
                    position=decision.position,
                    pending_reason=decision.pending_reason or "",
                    message=decision.message,
                )
                for decision in decisions
            ]
        )

    async def Fit(self, request: control_pb2.FitRequest, context: Any) -> control_pb2.FitReply:
        try:
            document = json.loads(request.spec)
        except ValueError as error:
            raise InvalidRequest(f"the spec is not JSON: {error}") from error
        fit = await self._dispatcher.fit(parse_spec(document))
        return control_pb2.FitReply(verdict=fit.verdict, message=fit.message)

    async def ClusterUsage(
        self, request: control_pb2.ClusterUsageRequest, context: Any
    ) -> control_pb2.ClusterUsageReply:
        nodes = (await self._dispatcher.snapshot()).usage()
        isolation = next((label for usage in nodes if (label := usage.node.labels.get(ISOLATION_LABEL))), "")
        return control_pb2.ClusterUsageReply(nodes=[_usage(usage) for usage in nodes], isolation=isolation)


def _usage(usage: NodeUsage) -> control_pb2.NodeUsage:
    node, used = usage.node, usage.used
    return control_pb2.NodeUsage(
        name=node.name,
        cpus=node.cpus,
        memory=node.memory,
        gpus=node.gpus,
        gpu_type=node.gpu_type,
        ready=node.ready,
        used_cpus=used.cpus,
        used_memory=used.memory,
        used_gpus=used.gpus,
        job_ids=usage.jobs,
        devices=dict(node.devices),
    )
