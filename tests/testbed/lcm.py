"""A life-cycle manager over a running api's job store and a cluster in memory, served over gRPC as in the platform."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

import grpc.aio
from prometheus_client import CollectorRegistry

from services.core.adapters.rpc.server import serve
from services.core.adapters.system_clock import SystemClock
from services.core.gen.weft.v1 import control_pb2_grpc
from services.core.ports.cluster import Node
from services.core.ports.job_store import JobStore
from services.core.runtime.membership import Membership
from services.core.runtime.quarantine import Quarantine
from services.lcm.dispatcher import Dispatcher
from services.lcm.instrumentation import Instrumentation
from services.lcm.rpc import Control, Queue
from services.lcm.settings import LcmSettings
from tests.testbed.control_plane import Direct
from tests.testbed.identities import guard
from tests.testbed.memory.cluster import MemoryCluster
from tests.testbed.memory.status_store import MemoryStatusStore
from tests.waiting import until


@asynccontextmanager
async def running_lcm(
    settings: LcmSettings, jobs: JobStore, nodes: Sequence[Node], *, address: str
) -> AsyncGenerator[Dispatcher]:
    """It leads. Its learners never start: there is no Guardian."""
    clock, registry, stopping = SystemClock(), CollectorRegistry(), asyncio.Event()
    status, cluster = MemoryStatusStore(clock=clock.boottime), MemoryCluster(nodes, now_ms=clock.now_ms)
    membership = Membership("lcm", status, clock, settings)
    await membership.start()
    dispatcher = Dispatcher(
        jobs,
        status,
        cluster,
        Direct(),
        clock,
        settings,
        membership,
        Instrumentation(registry),
        Quarantine(clock.now_ms, registry),
    )

    def register(server: grpc.aio.Server) -> None:
        control_pb2_grpc.add_ControlServicer_to_server(Control(dispatcher), server)
        control_pb2_grpc.add_QueueServicer_to_server(Queue(dispatcher), server)

    server = await serve(address, guard("lcm"), register)
    leading = asyncio.create_task(dispatcher.run(stopping))
    try:
        await until(lambda: dispatcher.term > 0)
        yield dispatcher
    finally:
        stopping.set()
        with suppress(asyncio.CancelledError):
            await leading
        await server.stop(None)
        await membership.leave()
