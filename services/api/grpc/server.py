"""The gRPC server for users: its services, health, reflection, and what it takes from strangers."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from services.api.grpc.auth_interceptor import AuthInterceptor
from services.api.grpc.jobs import Jobs
from services.api.grpc.platform import Keys, Platform
from services.api.services import ApiServices
from services.core.domain.errors import WeftError
from services.core.gen.weft.v1 import jobs_pb2, jobs_pb2_grpc, platform_pb2, platform_pb2_grpc

_OVERHEAD: Final = 64 * 1024
_PIECE: Final = 4 * 2**20
_GOODBYE_S: Final = 5.0
OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # A client that has gone without a word is noticed, and what it followed is let go, within 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Clients may ask each ten seconds whether we live, on quiet streams too; who asks more often is sent away.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_concurrent_streams", 1_000),
)
SERVICES: Final = tuple(
    service.full_name
    for file in (jobs_pb2.DESCRIPTOR, platform_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
)


async def serve(address: str, services: ApiServices) -> None:
    """Serves at ``host:port`` until the gateway stops. WeftError where the port is taken."""
    most = max(_PIECE, services.settings.max_spec_bytes + _OVERHEAD)
    server = grpc.aio.server(
        interceptors=(AuthInterceptor(services),), options=(*OPTIONS, ("grpc.max_receive_message_length", most))
    )
    jobs_pb2_grpc.add_JobsServicer_to_server(Jobs(services), server)
    platform_pb2_grpc.add_PlatformServicer_to_server(Platform(services), server)
    platform_pb2_grpc.add_KeysServicer_to_server(Keys(services), server)
    well = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(well, server)
    for service in SERVICES:
        await well.set(service, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((*SERVICES, HEALTH, reflection.SERVICE_NAME), server)
    try:
        server.add_insecure_port(address)
    except RuntimeError:
        raise WeftError(f"cannot listen on {address}: the port is taken") from None
    await server.start()
    try:
        await services.stopping.wait()
        await well.enter_graceful_shutdown()
    finally:
        await asyncio.shield(server.stop(_GOODBYE_S))
