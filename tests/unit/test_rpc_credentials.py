"""Credentials over a real gRPC server: refusals are counted, and a caller with a wrong clock is still served."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

import grpc.aio
import pytest

from services.core.adapters.identity import ServiceCredential
from services.core.adapters.rpc.client import Credential, LearnerCredential, connect, translating
from services.core.adapters.rpc.server import REFUSED, serve
from services.core.domain.errors import PermissionDenied, Unauthenticated
from services.core.gen.weft.v1 import control_pb2, control_pb2_grpc
from tests.testbed.hints import Nudged
from tests.testbed.identities import credential, guard, pair
from tests.testbed.server import free_address


@pytest.fixture
async def lcm() -> AsyncGenerator[str]:
    """The address of a server of the lcm."""
    address = free_address()

    def register(server: grpc.aio.Server) -> None:
        control_pb2_grpc.add_ControlServicer_to_server(Nudged(), server)

    server = await serve(address, guard("lcm"), register)
    yield address
    await server.stop(None)


async def nudge(address: str, caller: Credential) -> None:
    channel = connect(address, caller)
    try:
        with translating():
            await control_pb2_grpc.ControlStub(channel).Nudge(control_pb2.NudgeRequest(topic="submitted"), timeout=30)
    finally:
        await channel.close()


def refused(code: str) -> float:
    return float(REFUSED.labels(code)._value.get())


async def test_refused_calls_are_counted_by_reason(lcm: str) -> None:
    denied, unknown = refused("permission-denied"), refused("unauthenticated")
    await nudge(lcm, credential("api", "lcm"))
    with pytest.raises(PermissionDenied, match="the service metrics may not call"):
        await nudge(lcm, credential("metrics", "lcm"))
    with pytest.raises(Unauthenticated):
        await nudge(lcm, credential("api", "node"))
    with pytest.raises(Unauthenticated):
        await nudge(lcm, LearnerCredential("x.y"))
    assert (refused("permission-denied") - denied, refused("unauthenticated") - unknown) == (1, 2)


@pytest.mark.parametrize("wrong_s", [-3600, 3600])
async def test_a_service_whose_clock_is_an_hour_wrong_is_served(lcm: str, wrong_s: int) -> None:
    await nudge(lcm, ServiceCredential(pair("api"), "lcm", now_s=lambda: time.time() + wrong_s))
