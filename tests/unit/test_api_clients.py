"""What the api reads from the metrics service, while that one is restarted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from services.api.clients import ServiceClient, TelemetryClient
from services.core.adapters.rpc.server import serve
from services.core.adapters.rpc.transport import Listening
from services.core.domain.errors import Unavailable
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.ports.metric_store import LineQuery
from services.core.runtime.home import Home
from tests.testbed.identities import credential, guard
from tests.testbed.server import free_address
from tests.waiting import HANG_S


class Logs:
    """A server that has one job, whose log has seven lines. ``hangs``: it answers no call."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.hangs, self.called = hangs, asyncio.Event()

    def answering(self, reply: Message) -> grpc.RpcMethodHandler[bytes, Message]:
        async def answer(request: bytes, context: object) -> Message:
            self.called.set()
            if self.hangs:
                await asyncio.Event().wait()
            return reply

        return grpc.unary_unary_rpc_method_handler(answer, None, lambda message: message.SerializeToString())

    async def serve(self, address: str) -> Listening:
        job = pb.JobAggregates(job_id="j-1", aggregates=[pb.Aggregate(name="loss")])
        replies: dict[str, Message] = {
            "Lines": pb.LinesReply(through_seq=7),
            "Summary": pb.SummaryReply(lines=7),
            "Aggregates": pb.AggregatesReply(jobs=[job]),
        }
        methods = {name: self.answering(reply) for name, reply in replies.items()}
        handler = grpc.method_handlers_generic_handler("weft.v1.Telemetry", methods)
        return await serve(address, guard("metrics"), lambda server: server.add_generic_rpc_handlers((handler,)))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "run").mkdir()
    home = Home(tmp_path)
    home.addresses_file.write_text(json.dumps({"metrics": free_address()}))
    return home


async def log(telemetry: TelemetryClient) -> bool:
    return (await telemetry.lines("j-1", LineQuery(), limit=10)).through == 7


async def progress(telemetry: TelemetryClient) -> bool:
    return (await telemetry.summary("j-1")).lines == 7


async def metrics_of_a_list(telemetry: TelemetryClient) -> bool:
    return [metric.name for metric in (await telemetry.aggregates(["j-1"], ["loss"]))["j-1"]] == ["loss"]


@pytest.mark.parametrize("read", [log, progress, metrics_of_a_list])
async def test_what_a_job_reported_is_shown_although_the_metrics_service_is_restarted_while_it_is_read(
    home: Home, read: Callable[[TelemetryClient], Awaitable[bool]]
) -> None:
    """The page said "the metrics service does not answer (unavailable)", and showed the log two seconds later.

    A list with metrics, and the progress of a job, were still refused after that was mended for logs.
    """
    client = ServiceClient(home, "metrics", credential("api", "metrics"), reconnect_s=HANG_S)
    address = str(home.address("metrics"))
    before = Logs(hangs=True)
    server = await before.serve(address)
    reading = asyncio.ensure_future(read(TelemetryClient(client)))
    try:
        async with asyncio.timeout(HANG_S):
            await before.called.wait()
            await server.stop(None)
            server = await Logs().serve(address)
            assert await reading
    finally:
        reading.cancel()
        await client.close()
        await server.stop(None)


async def test_a_log_is_shown_although_the_metrics_service_moves_while_it_is_read(home: Home) -> None:
    """The next request closed the connection of the first, whose task was cancelled: it had no answer at all."""
    client = ServiceClient(home, "metrics", credential("api", "metrics"), reconnect_s=HANG_S)
    before = Logs(hangs=True)
    former = await before.serve(str(home.address("metrics")))
    reading = asyncio.ensure_future(TelemetryClient(client).lines("j-1", LineQuery(), limit=10))
    current: Listening | None = None
    try:
        async with asyncio.timeout(HANG_S):
            await before.called.wait()
            home.addresses_file.write_text(json.dumps({"metrics": free_address()}))
            current = await Logs().serve(str(home.address("metrics")))
            assert (await TelemetryClient(client).lines("j-1", LineQuery(), limit=10)).through == 7
            assert not reading.done()
            await former.stop(None)
            assert (await reading).through == 7
    finally:
        reading.cancel()
        await client.close()
        await former.stop(None)
        if current is not None:
            await current.stop(None)


async def test_a_log_is_refused_soon_if_the_metrics_service_stays_away(home: Home) -> None:
    client = ServiceClient(home, "metrics", credential("api", "metrics"), reconnect_s=0.05)
    try:
        async with asyncio.timeout(HANG_S):
            with pytest.raises(Unavailable, match="the metrics service does not answer"):
                await TelemetryClient(client).lines("j-1", LineQuery(), limit=10)
    finally:
        await client.close()
