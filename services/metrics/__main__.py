"""``python -m services.metrics``: the training metrics service."""

from __future__ import annotations

import asyncio

import grpc.aio
import prometheus_client

from services.core.adapters.rpc.operations import add_operations
from services.core.adapters.rpc.server import serve
from services.core.bootstrap.service import Service, end_process, load, run
from services.core.bootstrap.wiring import guard, identity, job_store, object_urls
from services.core.gen.weft.v1 import metrics_pb2_grpc
from services.core.runtime.membership import Membership
from services.core.runtime.quarantine import Quarantine
from services.metrics.attempt_ends import AttemptEnds
from services.metrics.attempts import Attempts
from services.metrics.control import Control
from services.metrics.damaged_files import watch_damaged_files
from services.metrics.data_signing import DataSigning
from services.metrics.following import Follower, Notifier
from services.metrics.heartbeats import Heartbeats
from services.metrics.instrumentation import Instrumentation
from services.metrics.object_calls import ObjectCalls
from services.metrics.reports import Reports
from services.metrics.rpc.intake import Intake
from services.metrics.rpc.telemetry import Telemetry
from services.metrics.settings import MetricsSettings
from services.metrics.sharding import sharding
from services.metrics.signing import Signing
from services.metrics.wiring import connect, objects_for_pods


async def main(service: Service) -> None:
    """Serves until the service is to stop; then ends the followers and lets running appends finish."""
    settings = MetricsSettings()
    instrumentation = Instrumentation()
    ports = await connect(settings, lambda bound, count: instrumentation.left_out.labels(bound).inc(count))
    own_identity = await identity(settings, "metrics")
    authenticating = await guard(settings, own_identity, learners=True)
    service.checks |= {"metric store": ports.store.ping, "status store": ports.status.ping}
    notifier, changes = Notifier(), Notifier()
    attempts = Attempts(ports.status, changes.notify)
    heartbeats = Heartbeats(ports.clock, remember_s=settings.metrics_remember_s)
    instrumentation.learners.set_function(lambda: len(heartbeats))
    reports = Reports(ports.status, attempts)
    signing = Signing(attempts, object_urls(settings))
    ends = AttemptEnds(lambda: job_store(settings), attempts, ports.clock, late_s=settings.metrics_late_s)
    data = DataSigning(signing, lambda: settings.installation.address("api-inner"), own_identity.credential("api"))
    control = Control(attempts, changes, service.stopping, settings.metrics_keep_alive_s)
    intake = Intake(
        ports.store,
        attempts,
        reports,
        heartbeats,
        notifier,
        instrumentation,
        settings.metrics_gather_s,
        signing,
        ends,
        control,
        ObjectCalls(signing, objects_for_pods(settings)),
        data,
    )
    pace = (notifier, service.stopping, settings.metrics_keep_alive_s, settings.metrics_follow_pause_s)
    telemetry = Telemetry(
        ports.store, attempts, heartbeats, Follower(*pace), Follower(*pace), instrumentation, ports.store
    )
    credential = own_identity.credential("metrics")
    shards = await sharding(settings, ports.store, ports.clock, credential, instrumentation.moving)
    intake, telemetry = shards.routed(intake, telemetry)

    def register(server: grpc.aio.Server) -> None:
        metrics_pb2_grpc.add_IntakeServicer_to_server(intake, server)
        metrics_pb2_grpc.add_TelemetryServicer_to_server(telemetry, server)
        metrics_pb2_grpc.add_ShardServicer_to_server(shards.servicer, server)
        add_operations(server, quarantine, shards.quarantine_of_others)

    def register_for_learners(server: grpc.aio.Server) -> None:
        metrics_pb2_grpc.add_IntakeServicer_to_server(intake, server)

    quarantine = Quarantine(ports.clock.now_ms, prometheus_client.REGISTRY)
    membership = Membership("metrics", ports.status, ports.clock, settings)
    servers = [await serve(settings.installation.address("metrics"), authenticating, register)]
    try:
        if (address := settings.learners_address) is not None:
            only_learners = await guard(settings, own_identity, services=False, learners=True)
            servers.append(await serve(address, only_learners, register_for_learners, client_certificates=False))
        async with asyncio.TaskGroup() as group:
            damaged_files = watch_damaged_files(ports.store, quarantine, ports.clock)
            # Serving does not wait for membership: etcd may be away, and logs do not depend on it.
            background = (
                membership.start(),
                attempts.follow(),
                heartbeats.forget_old(),
                damaged_files,
                shards.complete(),
            )
            tasks = [group.create_task(coroutine) for coroutine in background]
            service.started = True
            await service.stopping.wait()
            await asyncio.gather(*(server.stop(settings.metrics_drain_s) for server in servers))
            for task in tasks:
                task.cancel()
    finally:
        await asyncio.gather(*(server.stop(0) for server in servers))
        await membership.leave()
        await asyncio.gather(ends.close(), data.close(), shards.close())
        await ports.close()


if __name__ == "__main__":
    end_process(run("metrics", load("metrics", MetricsSettings), main))
