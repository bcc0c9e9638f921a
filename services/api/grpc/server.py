"""The gRPC server for users: its services, health, reflection, and its limits for clients."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from services.api.connection_limits import connections
from services.api.grpc.auth_interceptor import AuthInterceptor
from services.api.grpc.jobs import Jobs
from services.api.grpc.platform import Keys, Platform, Secrets
from services.api.grpc.relay import Relay
from services.api.services import ApiServices
from services.core.adapters.rpc.transport import Listening
from services.core.domain.errors import WeftError
from services.core.gen.weft.v1 import jobs_pb2_grpc, platform_pb2_grpc
from services.core.runtime.address import UNIX, Address
from services.core.runtime.home import SOCKETS
from services.core.runtime.sockets import make_private_folder

SERVICERS: Final[dict[str, tuple[Callable[[ApiServices], Any], Callable[[Any, grpc.aio.Server], None]]]] = {
    "weft.v1.Jobs": (Jobs, jobs_pb2_grpc.add_JobsServicer_to_server),
    "weft.v1.Platform": (Platform, platform_pb2_grpc.add_PlatformServicer_to_server),
    "weft.v1.Keys": (Keys, platform_pb2_grpc.add_KeysServicer_to_server),
    "weft.v1.Secrets": (Secrets, platform_pb2_grpc.add_SecretsServicer_to_server),
}
"""Name of a service -> the class that answers it, and the function that registers it."""
_OVERHEAD: Final = 64 * 1024
_PIECE: Final = 4 * 2**20
_SHUTDOWN_S: Final = 5.0
_BEHIND_RELAY: Final = "api-behind-grpc"
OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # A client that vanished is noticed within 40 s, and its streams are ended.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Clients may ping every ten seconds, also on quiet streams; a client that pings more often is disconnected.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_concurrent_streams", 1_000),
    # No bandwidth probe: it lets each stream send megabytes before its message is received, without a key too.
    ("grpc.http2.bdp_probe", 0),
)


async def serve(address: str, services: ApiServices, *, held: socket.socket | None = None) -> None:
    """Serves at ``host:port`` until the service stops. Raises WeftError if the port is taken.

    ``held``: a socket that listens there already; see ``Relay``. It is closed at the end.
    """
    largest = max(_PIECE, services.settings.max_spec_bytes + _OVERHEAD)
    with _relay(address, services, held) as relay:
        server = grpc.aio.server(
            interceptors=(AuthInterceptor(services, relay.cut),),
            options=(*OPTIONS, ("grpc.max_receive_message_length", largest)),
        )
        health_servicer = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        for name, (servicer, register) in SERVICERS.items():
            register(servicer(services), server)
            await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        reflection.enable_server_reflection((*SERVICERS, HEALTH, reflection.SERVICE_NAME), server)
        async with _listening(server, relay):
            await services.stopping.wait()
            await health_servicer.enter_graceful_shutdown()


@contextmanager
def _relay(address: str, services: ApiServices, held: socket.socket | None) -> Generator[Relay]:
    """The relay, before it carries connections. It bounds them, which gRPC does not, so it is there without a held
    socket, too.
    """
    with ExitStack() as stack:
        if held is None:
            held = _listen(address)
            stack.callback(held.close)
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="weft-")))
            make_private_folder(folder)  # in a pod's volume it has the setgid bit
        else:
            folder = services.settings.installation / SOCKETS
        yield Relay(held, folder / _BEHIND_RELAY, connections("grpc", services.settings, services.instrumentation))


@asynccontextmanager
async def _listening(server: grpc.aio.Server, relay: Relay) -> AsyncGenerator[None]:
    """Within it the server serves. At the end running calls get ``_SHUTDOWN_S`` to finish."""
    listening = Listening(server, Address(f"{UNIX}{relay.path}"))
    await listening.start()
    try:
        await relay.start()
        yield
    finally:
        relay.refuse_new()
        await asyncio.shield(listening.stop(_SHUTDOWN_S))
        await relay.close()


def _listen(address: str) -> socket.socket:
    """A socket that listens at ``host:port``. Raises WeftError if it cannot, e.g. because the port is taken."""
    host, port = Address(address).host_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::")
    except OSError as error:
        why = "the port is taken" if error.errno == errno.EADDRINUSE else error.strerror
        raise WeftError(f"cannot listen on {address}: {why}") from None
