"""The channels to the other shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import grpc.aio

from services.core.adapters.rpc.client import Credential, connect, connect_for_callers
from services.core.gen.weft.v1 import metrics_pb2_grpc as rpc
from services.core.runtime.address import Address

FORWARDED = "weft-forwarded"
"""Metadata of a call that another shard has forwarded: it is not forwarded again."""


@dataclass(frozen=True)
class Sibling:
    """Another shard."""

    shard: int
    own: grpc.aio.Channel
    """Its calls carry this service's credential."""
    learners: grpc.aio.Channel
    """Its calls carry the credential that the caller adds: that of the learner whose call is forwarded."""

    @property
    def shards(self) -> rpc.ShardAsyncStub:
        return rpc.ShardStub(self.own)

    @property
    def telemetry(self) -> rpc.TelemetryAsyncStub:
        return rpc.TelemetryStub(self.own)

    @property
    def intake(self) -> rpc.IntakeAsyncStub:
        return rpc.IntakeStub(self.learners)

    async def close(self) -> None:
        await self.own.close()
        await self.learners.close()


def siblings(others: Mapping[int, Address], credential: Credential) -> Mapping[int, Sibling]:
    """Number -> shard. ``others``: the addresses of all shards but this one. Connects at the first call.

    Raises as ``connect``.
    """
    return {
        shard: Sibling(
            shard,
            connect(address, credential, server_name=_CERTIFIED),
            connect_for_callers(address, server_name=_CERTIFIED),
        )
        for shard, address in others.items()
    }


_CERTIFIED = "metrics"
"""The name in the certificate of every shard: they share one."""
