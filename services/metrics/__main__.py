"""``python -m services.metrics``: the training metrics service."""

from __future__ import annotations

import asyncio
import sys

import grpc.aio
import prometheus_client

from services.core.adapters.rpc.operations import add_operations
from services.core.adapters.rpc.server import serve
from services.core.gen.weft.v1 import metrics_pb2_grpc
from services.core.members import Membership
from services.core.quarantine import Quarantine
from services.core.service import Service, run
from services.core.wiring import object_urls
from services.metrics.attempts import Attempts
from services.metrics.damage import watch_damage
from services.metrics.following import Bells, Follower
from services.metrics.instruments import Instruments
from services.metrics.presence import Presence
from services.metrics.reports import Reports
from services.metrics.rpc.intake import Intake
from services.metrics.rpc.telemetry import Telemetry
from services.metrics.settings import MetricsSettings
from services.metrics.signing import Signing
from services.metrics.wiring import connect


async def main(service: Service) -> None:
    """Serves until the service is told to stop; then followers are sent away, and running appends end."""
    settings = MetricsSettings()
    ports = await connect(settings)
    service.checks |= {"metric store": ports.store.ping, "status store": ports.status.ping}
    instruments, bells, attempts = Instruments(), Bells(), Attempts(ports.status)
    presence = Presence(ports.clock, remember_s=settings.metrics_remember_s)
    instruments.learners.set_function(lambda: len(presence))
    reports = Reports(ports.status, attempts)
    signing = Signing(attempts, object_urls(settings))
    intake = Intake(ports.store, attempts, reports, presence, bells, instruments, settings.metrics_gather_s, signing)
    pace = (bells, service.stopping, settings.metrics_keep_alive_s, settings.metrics_follow_pause_s)
    telemetry = Telemetry(ports.store, attempts, presence, Follower(*pace), Follower(*pace), instruments)

    def register(server: grpc.aio.Server) -> None:
        metrics_pb2_grpc.add_IntakeServicer_to_server(intake, server)
        metrics_pb2_grpc.add_TelemetryServicer_to_server(telemetry, server)
        add_operations(server, quarantine)

    quarantine = Quarantine(ports.clock.now_ms, prometheus_client.REGISTRY)
    membership = Membership("metrics", ports.status, ports.clock, settings)
    server = await serve(settings.place.address("metrics"), ports.secret, register)
    try:
        async with asyncio.TaskGroup() as group:
            # Joining is not waited for either: etcd may be away, and logs do not depend on it.
            damage = watch_damage(ports.store, quarantine, ports.clock)
            endless = (membership.start(), attempts.follow(), presence.forget_old(), damage)
            tasks = [group.create_task(one) for one in endless]
            service.started = True
            await service.stopping.wait()
            await server.stop(settings.metrics_drain_s)
            for task in tasks:
                task.cancel()
    finally:
        await server.stop(0)
        await membership.leave()
        await ports.close()


if __name__ == "__main__":
    sys.exit(run("metrics", MetricsSettings(), main))
