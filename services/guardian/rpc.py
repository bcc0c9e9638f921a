"""The guardian service's gRPC services: hints from the other services."""

from __future__ import annotations

from typing import Any

from services.core.gen.weft.v1 import control_pb2, control_pb2_grpc
from services.guardian.pool import Pool


class Control(control_pb2_grpc.ControlServicer):
    """Passes hints to the pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def Nudge(self, request: control_pb2.NudgeRequest, context: Any) -> control_pb2.NudgeReply:
        self._pool.nudge(request.job_id)
        return control_pb2.NudgeReply()
