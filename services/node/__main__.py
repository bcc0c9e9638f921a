"""``python -m services.node``: the node agent as a service."""

from __future__ import annotations

import asyncio

import grpc.aio
import prometheus_client
import structlog

from services.core.adapters.rpc.operations import add_operations
from services.core.adapters.rpc.server import serve
from services.core.bootstrap.service import Service, end_process, load, run
from services.core.bootstrap.wiring import clock, guard, identity
from services.core.gen.weft.v1 import node_pb2_grpc
from services.core.runtime.quarantine import FOLDER, LEARNER, Quarantine
from services.node.agent import Agent
from services.node.instrumentation import Instrumentation
from services.node.rpc import NodeServicer
from services.node.settings import NodeSettings

_GRACE_S = 2.0
_CHECK_FILES_S = 5.0
log = structlog.get_logger()


async def serve_node(service: Service, settings: NodeSettings) -> None:
    """Serves until the service is stopped. Learners live on."""
    authenticating = await guard(settings, await identity(settings, "node"))
    agent = await Agent.start(settings, Instrumentation(prometheus_client.REGISTRY))
    quarantine = Quarantine(clock().now_ms, prometheus_client.REGISTRY)
    checking = asyncio.create_task(_check_files(agent, quarantine))
    try:
        servicer = NodeServicer(agent)

        def register(server: grpc.aio.Server) -> None:
            node_pb2_grpc.add_NodeServicer_to_server(servicer, server)
            add_operations(server, quarantine)

        server = await serve(settings.installation.address("node"), authenticating, register)
        service.started = True
        await service.stopping.wait()
        agent.end_watches()
        await server.stop(_GRACE_S)
        await servicer.changes_done()
    finally:
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)
        await agent.close()


async def _check_files(agent: Agent, quarantine: Quarantine) -> None:
    """Reports unreadable learner files, and folders that cannot be removed, until cancelled."""
    while True:
        try:
            for kind, find in ((LEARNER, agent.unreadable_files), (FOLDER, agent.leftovers)):
                places = find()
                for path, (job, why) in places.items():
                    quarantine.hold(kind, path, why, job=job)
                quarantine.keep_only(kind, places)
        except OSError as error:  # a learner that is removed at this moment
            log.info("files.not_checked", why=str(error))
        await asyncio.sleep(_CHECK_FILES_S)


def main() -> int:
    """Runs the agent. Returns the exit code."""
    settings = load("node", NodeSettings)
    return run("node", settings, lambda service: serve_node(service, settings))


if __name__ == "__main__":
    end_process(main())
