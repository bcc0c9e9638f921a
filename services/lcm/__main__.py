"""``python -m services.lcm``: the life-cycle manager."""

from __future__ import annotations

import asyncio

import grpc.aio
import prometheus_client

from services.core.adapters.rpc.operations import add_operations
from services.core.adapters.rpc.server import serve
from services.core.bootstrap import wiring as core
from services.core.bootstrap.service import Service, end_process, load, run
from services.core.gen.weft.v1 import control_pb2_grpc
from services.core.runtime.home import STOPPING
from services.core.runtime.membership import Membership
from services.core.runtime.processes import read_live_process
from services.core.runtime.quarantine import Quarantine
from services.lcm.background import BackgroundTasks
from services.lcm.collector import Collector
from services.lcm.dispatcher import Dispatcher
from services.lcm.erasure import Eraser
from services.lcm.guardian_jobs import GuardianJobs
from services.lcm.instrumentation import Instrumentation
from services.lcm.rpc import Control, Queue
from services.lcm.settings import LcmSettings
from services.lcm.wiring import connect, connect_erasure, free_space


async def main(service: Service) -> None:
    """Serves until ``service.stopping`` is set."""
    settings = LcmSettings()
    ports, guard = await connect(settings)
    service.checks |= {"jobs": ports.jobs.ping, "status": ports.status.ping, "cluster": ports.cluster.ping}
    membership = Membership("lcm", ports.status, ports.clock, settings)
    await membership.start()
    instrumentation = Instrumentation(prometheus_client.REGISTRY)
    quarantine = Quarantine(ports.clock.now_ms, prometheus_client.REGISTRY)
    dispatcher = Dispatcher(
        ports.jobs,
        ports.status,
        ports.cluster,
        ports.hints,
        ports.clock,
        settings,
        membership,
        instrumentation,
        quarantine,
        overhead=core.learner_overhead(settings),
        free_space=free_space(settings),
        stopping=lambda: read_live_process(settings.installation / STOPPING) is not None,
    )

    def register(server: grpc.aio.Server) -> None:
        control_pb2_grpc.add_ControlServicer_to_server(Control(dispatcher), server)
        control_pb2_grpc.add_QueueServicer_to_server(Queue(dispatcher), server)
        add_operations(server, quarantine)

    server = await serve(settings.installation.address("lcm"), guard, register)
    service.started = True
    collector = Collector(ports.jobs, ports.status, ports.cluster, instrumentation)
    background = BackgroundTasks(ports, settings, dispatcher, collector)
    erasure = await connect_erasure(settings, ports)
    eraser = Eraser(erasure, settings, instrumentation, all_readable=lambda: not dispatcher.unreadable.any)
    launcher = ports.launcher
    guardians = GuardianJobs(ports.jobs, launcher, instrumentation) if launcher is not None else None
    tasks = [asyncio.create_task(loop()) for loop in background.loops(guardians)]
    tasks += [asyncio.create_task(loop(eraser)) for loop in (background.erase, background.mark_unnamed_code)]
    try:
        await dispatcher.run(service.stopping)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop(1)
        await membership.leave()
        await erasure.telemetry.close()
        await erasure.records.close()
        await ports.close()


if __name__ == "__main__":
    end_process(run("lcm", load("lcm", LcmSettings), main))
