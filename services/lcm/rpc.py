"""The life-cycle manager's gRPC face: nudges, and what the dispatcher knows of waiting jobs."""

from __future__ import annotations

from typing import Any

from services.core.gen.weft.v1 import control_pb2, control_pb2_grpc
from services.lcm.dispatcher import Dispatcher


class Control(control_pb2_grpc.ControlServicer):
    """Hints from the other services: whatever they are about, the next round looks at everything."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def Nudge(self, request: control_pb2.NudgeRequest, context: Any) -> control_pb2.NudgeReply:
        self._dispatcher.wake()
        return control_pb2.NudgeReply()


class Queue(control_pb2_grpc.QueueServicer):
    """The last round's decisions. Of a life-cycle manager that does not lead: none."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def Explain(self, request: control_pb2.ExplainRequest, context: Any) -> control_pb2.ExplainReply:
        wanted = frozenset(request.job_ids)
        return control_pb2.ExplainReply(
            waiting=[
                control_pb2.Waiting(
                    job_id=one.job.id, position=one.position, pending_reason=one.pending_reason, message=one.message
                )
                for one in self._dispatcher.waiting
                if not wanted or one.job.id in wanted
            ]
        )
