"""Credentials over a real gRPC server: refusals are counted, and a caller with a wrong clock is still served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from services.core.adapters.identity import ServiceCredential
from services.core.adapters.rpc.client import Credential, LearnerCredential, connect, streaming
from services.core.adapters.rpc.server import REFUSED, serve
from services.core.domain.errors import PermissionDenied, Unauthenticated
from services.core.gen.weft.v1 import node_pb2, node_pb2_grpc
from tests.testbed.hints import add_nudged, nudge
from tests.testbed.identities import credential, guard, pair
from tests.testbed.server import free_address


@pytest.fixture
async def lcm() -> AsyncGenerator[str]:
    """The address of a server of the lcm."""
    address = free_address()

    server = await serve(address, guard("lcm"), add_nudged)
    yield address
    await server.stop(None)


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


class Watched(node_pb2_grpc.NodeServicer):
    """Sends one event, and ends when ``ended`` is set."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def Watch(self, request: node_pb2.WatchRequest, context: Any) -> AsyncGenerator[node_pb2.WatchEvent]:  # noqa: N802 - proto
        yield node_pb2.WatchEvent(job_id="j1")
        await self.ended.wait()


@asynccontextmanager
async def node_watched_by(caller: Credential) -> AsyncGenerator[tuple[Watched, AsyncGenerator[Any]]]:
    """A server of the node agent, and the events that the caller gets from it."""
    # Only one RPC of the generated base class is needed: mypy counts the others as abstract.
    address, watched = free_address(), Watched()  # type: ignore[abstract]

    def register(server: grpc.aio.Server) -> None:
        node_pb2_grpc.add_NodeServicer_to_server(watched, server)

    server, channel = await serve(address, guard("node"), register), connect(address, caller)
    try:
        yield watched, streaming(node_pb2_grpc.NodeStub(channel).Watch(node_pb2.WatchRequest()))
    finally:
        await channel.close()
        await server.stop(None)


@pytest.mark.parametrize("wrong_s", [0, -3600, 3600])
async def test_a_stream_of_a_service_whose_clock_is_an_hour_wrong_is_served(wrong_s: int) -> None:
    caller = ServiceCredential(pair("guardian"), "node", now_s=lambda: time.time() + wrong_s)
    async with node_watched_by(caller) as (watched, events):
        assert (await anext(events)).job_id == "j1"
        watched.ended.set()
        assert [event async for event in events] == []


async def test_a_stream_without_the_right_is_refused() -> None:
    async with node_watched_by(credential("metrics", "node")) as (_, events):
        with pytest.raises(PermissionDenied):
            await anext(events)


async def test_a_reader_that_leaves_ends_its_stream() -> None:
    async with node_watched_by(credential("guardian", "node")) as (_, events):
        assert (await anext(events)).job_id == "j1"
        await events.aclose()
