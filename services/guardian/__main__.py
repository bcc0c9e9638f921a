"""``python -m services.guardian``: a pool of Guardians."""

from __future__ import annotations

import grpc.aio
import prometheus_client

from services.core.adapters.rpc.operations import add_operations
from services.core.adapters.rpc.server import serve
from services.core.bootstrap.service import Service, end_process, load, run
from services.core.gen.weft.v1 import control_pb2_grpc
from services.core.runtime.membership import Membership
from services.core.runtime.quarantine import Quarantine
from services.guardian.instrumentation import Instrumentation
from services.guardian.pool import SERVICE, Pool
from services.guardian.rpc import Control
from services.guardian.settings import GuardianSettings
from services.guardian.wiring import connect


async def main(service: Service) -> None:
    """Serves until ``service.stopping`` is set."""
    settings = GuardianSettings()
    ports, guard = await connect(settings)
    service.checks |= {"jobs": ports.jobs.ping, "status": ports.status.ping, "cluster": ports.cluster.ping}
    membership = Membership(SERVICE, ports.status, ports.clock, settings)
    await membership.start()
    quarantine = Quarantine(ports.clock.now_ms, prometheus_client.REGISTRY)
    pool = Pool(ports, settings, membership, Instrumentation(prometheus_client.REGISTRY), quarantine)

    def register(server: grpc.aio.Server) -> None:
        control_pb2_grpc.add_ControlServicer_to_server(Control(pool), server)
        add_operations(server, quarantine)

    server = await serve(settings.installation.address("guardian"), guard, register)
    service.started = True
    try:
        await pool.run(service.stopping)
    finally:
        await server.stop(1)
        await membership.leave()
        await ports.close()


if __name__ == "__main__":
    end_process(run("guardian", load("guardian", GuardianSettings), main))
