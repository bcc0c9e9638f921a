"""``python -m services.node``: the node agent as a service."""

from __future__ import annotations

import sys

import grpc.aio
import prometheus_client

from services.core.adapters.rpc.server import serve
from services.core.gen.weft.v1 import node_pb2_grpc
from services.core.service import Service, run
from services.core.wiring import service_secret
from services.node.agent import Agent
from services.node.meters import Meters
from services.node.rpc import NodeServicer
from services.node.settings import NodeSettings
from services.node.shutdown import end_all

_GRACE_S = 2.0


async def serve_node(service: Service, settings: NodeSettings) -> None:
    """Until the service is asked to stop; learners live on."""
    secret = await service_secret(settings)
    agent = await Agent.start(settings, Meters(prometheus_client.REGISTRY))
    try:
        servicer = NodeServicer(agent)

        def register(server: grpc.aio.Server) -> None:
            node_pb2_grpc.add_NodeServicer_to_server(servicer, server)

        server = await serve(settings.place.address("node"), secret, register)
        service.started = True
        await service.stopping.wait()
        agent.end_watches()
        await server.stop(_GRACE_S)
        await servicer.settled()
    finally:
        await agent.close()


def main() -> int:
    """The exit code."""
    settings = NodeSettings()
    if sys.argv[1:] == ["end-all"]:
        return 0 if end_all(settings.place / "node") else 1
    return run("node", settings, lambda service: serve_node(service, settings))


if __name__ == "__main__":
    sys.exit(main())
