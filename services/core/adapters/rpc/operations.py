"""A service's quarantine over gRPC: told to the api, which shows it to operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc.aio

from services.core.gen.weft.v1 import operations_pb2, operations_pb2_grpc
from services.core.runtime.quarantine import Quarantine, QuarantineEntry

_MOST = 1_000
"""Of one answer: whoever mends a thousand sees the rest then."""


class _Operations(operations_pb2_grpc.OperationsServicer):
    def __init__(self, quarantine: Quarantine) -> None:
        self._quarantine = quarantine

    async def Quarantine(
        self,
        request: operations_pb2.QuarantineRequest,
        context: Any,
    ) -> operations_pb2.QuarantineReply:
        return operations_pb2.QuarantineReply(
            held=[
                operations_pb2.Held(
                    kind=one.kind, place=one.place, reason=one.reason, since_ms=one.since, job_id=one.job,
                    advice=one.advice,
                )
                for one in self._quarantine.entries()[:_MOST]
            ]
        )  # fmt: skip


def add_operations(server: grpc.aio.Server, quarantine: Quarantine) -> None:
    """Beside the service's own methods."""
    operations_pb2_grpc.add_OperationsServicer_to_server(_Operations(quarantine), server)


async def ask_quarantine(channel: grpc.aio.Channel, *, timeout_s: float) -> Sequence[QuarantineEntry]:
    """What the service at the other end holds."""
    stub = operations_pb2_grpc.OperationsStub(channel)
    reply = await stub.Quarantine(operations_pb2.QuarantineRequest(), timeout=timeout_s)
    return [
        QuarantineEntry(
            kind=one.kind, place=one.place, reason=one.reason, since=one.since_ms, job=one.job_id, advice=one.advice
        )
        for one in reply.held
    ]
