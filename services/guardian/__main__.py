"""``python -m services.guardian``: a pool of Guardians."""

from __future__ import annotations

import sys
from typing import Any

import grpc.aio

from services.core.adapters.rpc.server import serve
from services.core.gen.weft.v1 import control_pb2, control_pb2_grpc
from services.core.members import Membership
from services.core.service import Service, run
from services.guardian.pool import Pool
from services.guardian.settings import GuardianSettings
from services.guardian.wiring import connect


class Control(control_pb2_grpc.ControlServicer):
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def Nudge(self, request: control_pb2.NudgeRequest, context: Any) -> control_pb2.NudgeReply:  # noqa: N802
        self._pool.nudge(request.job_id)
        return control_pb2.NudgeReply()


async def main(service: Service) -> None:
    settings = GuardianSettings()
    ports = await connect(settings)
    service.checks |= {"jobs": ports.jobs.ping, "status": ports.status.ping, "cluster": ports.cluster.ping}
    membership = Membership("guardian", ports.status, ports.clock, settings)
    await membership.start()
    pool = Pool(ports, settings, membership)

    def register(server: grpc.aio.Server) -> None:
        control_pb2_grpc.add_ControlServicer_to_server(Control(pool), server)

    server = await serve(settings.place.address("guardian"), ports.secret, register)
    service.started = True
    try:
        await pool.run(service.stopping)
    finally:
        await server.stop(1)
        await membership.leave()
        await ports.hints.close()
        await ports.cluster.close()
        await ports.status.close()
        await ports.jobs.close()


if __name__ == "__main__":
    sys.exit(run("guardian", GuardianSettings(), main))
