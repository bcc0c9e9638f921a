"""Serves a service's quarantine over gRPC to the api, which shows it to operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import grpc.aio

from services.core.gen.weft.v1 import operations_pb2, operations_pb2_grpc
from services.core.runtime.quarantine import Quarantine, QuarantineEntry

_MOST = 1_000
"""Entries in one reply; the others follow once these are mended."""


OthersQuarantine: TypeAlias = Callable[[Any], Awaitable[Sequence[QuarantineEntry]]]
"""What other processes of the service hold, for a call with this context."""


class _Operations(operations_pb2_grpc.OperationsServicer):
    def __init__(self, quarantine: Quarantine, others: OthersQuarantine | None) -> None:
        self._quarantine, self._others = quarantine, others

    async def Quarantine(
        self,
        request: operations_pb2.QuarantineRequest,
        context: Any,
    ) -> operations_pb2.QuarantineReply:
        others = await self._others(context) if self._others is not None else ()
        return operations_pb2.QuarantineReply(
            held=[
                operations_pb2.Held(
                    kind=entry.kind,
                    place=entry.place,
                    reason=entry.reason,
                    since_ms=entry.since,
                    job_id=entry.job,
                    advice=entry.advice,
                )
                for entry in [*self._quarantine.entries(), *others][:_MOST]
            ]
        )


def add_operations(server: grpc.aio.Server, quarantine: Quarantine, others: OthersQuarantine | None = None) -> None:
    """Adds the RPC to a service's server."""
    operations_pb2_grpc.add_OperationsServicer_to_server(_Operations(quarantine, others), server)


async def ask_quarantine(
    channel: grpc.aio.Channel, *, timeout_s: float, metadata: Sequence[tuple[str, str]] = ()
) -> Sequence[QuarantineEntry]:
    """The quarantine of the service at the other end. Raises gRPC's errors; see ``translating``."""
    stub = operations_pb2_grpc.OperationsStub(channel)
    reply = await stub.Quarantine(operations_pb2.QuarantineRequest(), timeout=timeout_s, metadata=tuple(metadata))
    return [
        QuarantineEntry(
            kind=entry.kind,
            place=entry.place,
            reason=entry.reason,
            since=entry.since_ms,
            job=entry.job_id,
            advice=entry.advice,
        )
        for entry in reply.held
    ]
