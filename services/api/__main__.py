"""``python -m services.api``: serves REST on ``api``, gRPC on ``api-grpc``, and other services on ``api-inner``."""

from __future__ import annotations

import asyncio

import prometheus_client

from services.api.grpc.inner import serving_inner
from services.api.grpc.server import serve as serve_grpc
from services.api.rest.server import rest_server
from services.api.settings import ApiSettings
from services.api.wiring import open_services
from services.core.bootstrap import wiring
from services.core.bootstrap.service import Service, end_process, load, run
from services.core.runtime.held_sockets import hand_over, take_inherited
from services.core.runtime.home import SOCKETS


def main() -> int:
    """Serves until a signal stops it; returns the exit code."""
    settings = load("api", ApiSettings)

    held = take_inherited()

    async def serve(service: Service) -> None:
        identity = await wiring.identity(settings, "api")
        guard, learners = await wiring.guard(settings, identity), wiring.learner_token_verifier(identity)
        home = settings.installation
        async with (
            open_services(settings, stopping=service.stopping, registry=prometheus_client.REGISTRY) as (services, _),
            serving_inner(home.address("api-inner"), guard, services.data_urls, services.pull_secrets, learners),
        ):
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
    end_process(main())
