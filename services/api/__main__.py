"""``python -m services.api``: serves REST on the address ``api`` and gRPC on ``api-grpc``."""

from __future__ import annotations

import asyncio
import sys

import prometheus_client

from services.api.grpc.server import serve as serve_grpc
from services.api.rest.app import create_app
from services.api.settings import ApiSettings
from services.api.wiring import open_services
from services.core.bootstrap.service import Service, http_server, run, serve_http


def main() -> int:
    """Serves until a signal stops it; returns the exit code."""
    settings = ApiSettings()

    async def serve(service: Service) -> None:
        async with open_services(settings, stopping=service.stopping, registry=prometheus_client.REGISTRY) as (
            services,
            _,
        ):
            server = http_server(create_app(services), settings.installation.address("api"))
            service.checks.update(services.checks)
            async with asyncio.TaskGroup() as group:
                group.create_task(serve_http(server, service.stopping))
                group.create_task(serve_grpc(settings.installation.address("api-grpc"), services))
                while not server.started and not service.stopping.is_set():  # noqa: ASYNC110 - uvicorn has no event
                    await asyncio.sleep(0.01)
                service.started = True

    return run("api", settings, serve)


if __name__ == "__main__":
    sys.exit(main())
