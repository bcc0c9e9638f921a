"""``python -m services.lcm``: the life-cycle manager."""

from __future__ import annotations

import asyncio
import sys

import grpc.aio
import structlog

from services.core.adapters.rpc.server import serve
from services.core.domain.errors import WeftError
from services.core.gen.weft.v1 import control_pb2_grpc
from services.core.members import Membership
from services.core.service import Service, run
from services.lcm.dispatcher import Dispatcher, sweep
from services.lcm.rpc import Control, Queue
from services.lcm.settings import LcmSettings
from services.lcm.wiring import LcmPorts, connect

log = structlog.get_logger()


async def _sweeping(ports: LcmPorts, settings: LcmSettings, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        try:
            await sweep(ports.jobs, limit=settings.history_batch)
        except WeftError as error:
            log.warning("sweep.interrupted", why=str(error))
        await ports.clock.sleep(settings.sweep_s)


async def _watching(dispatcher: Dispatcher, ports: LcmPorts) -> None:
    """What happens on the cluster may have freed something."""
    async for _ in ports.cluster.watch():
        dispatcher.wake()


async def main(service: Service) -> None:
    settings = LcmSettings()
    ports = await connect(settings)
    service.checks |= {"jobs": ports.jobs.ping, "status": ports.status.ping, "cluster": ports.cluster.ping}
    membership = Membership("lcm", ports.status, ports.clock, settings)
    await membership.start()
    dispatcher = Dispatcher(ports.jobs, ports.status, ports.cluster, ports.hints, ports.clock, settings, membership)

    def register(server: grpc.aio.Server) -> None:
        control_pb2_grpc.add_ControlServicer_to_server(Control(dispatcher), server)
        control_pb2_grpc.add_QueueServicer_to_server(Queue(dispatcher), server)

    server = await serve(settings.place.address("lcm"), ports.secret, register)
    service.started = True
    background = [
        asyncio.ensure_future(_sweeping(ports, settings, service.stopping)),
        asyncio.ensure_future(_watching(dispatcher, ports)),
    ]
    try:
        await dispatcher.run(service.stopping)
    finally:
        for task in background:
            task.cancel()
        await server.stop(1)
        await membership.leave()
        await ports.hints.close()
        await ports.cluster.close()
        await ports.status.close()
        await ports.jobs.close()


if __name__ == "__main__":
    sys.exit(run("lcm", LcmSettings(), main))
