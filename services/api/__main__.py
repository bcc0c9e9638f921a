"""``python -m services.api``: serves REST on the address ``api`` and gRPC on ``api-grpc``."""

from __future__ import annotations

import asyncio
import sys

import prometheus_client

from services.api.grpc.server import serve as serve_grpc
from services.api.rest.server import rest_server
from services.api.settings import ApiSettings
from services.api.wiring import open_services
from services.core.bootstrap.service import Service, run
from services.core.runtime.held_sockets import hand_over, take_inherited
from services.core.runtime.home import SOCKETS


def main() -> int:
    """Serves until a signal stops it; returns the exit code."""
    settings = ApiSettings()

    held = take_inherited()

    async def serve(service: Service) -> None:
        async with open_services(settings, stopping=service.stopping, registry=prometheus_client.REGISTRY) as (
            services,
            _,
        ):
            home = settings.installation
            server = rest_server(services, home.address("api"), held=held.get("api"))
            service.checks.update(services.checks)
            async with asyncio.TaskGroup() as group:
                handing_over = group.create_task(hand_over(held, home / SOCKETS)) if held else None
                group.create_task(server.serve(service.stopping))
                grpc = group.create_task(serve_grpc(str(home.address("api-grpc")), services, held=held.get("api-grpc")))
                while not server.started and not service.stopping.is_set():  # noqa: ASYNC110 - uvicorn has no event
                    await asyncio.sleep(0.01)
                service.started = True
                await asyncio.wait({grpc})
                if handing_over is not None:
                    handing_over.cancel()

    return run("api", settings, serve)


if __name__ == "__main__":
    sys.exit(main())
