"""What every service process does alike: JSON logs, an operations port, clean shutdown, one event loop.

    /healthz  the process turns   /readyz  its ports answer   /metrics  Prometheus

A service is ``async def main(service: Service)``, which returns after ``service.stopping`` is set (SIGTERM, SIGINT):
it takes nothing new, finishes what is under way and lets go of what it holds. A second signal means: at once. Then
``main`` is cancelled, and only what stands in its ``finally`` is still done.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TextIO, cast

import prometheus_client
import structlog
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from services.core.domain.errors import WeftError
from services.core.failpoints.ports import failpoints
from services.core.runtime.settings import Settings

_READY_TIMEOUT_S: Final = 2.0


@dataclass
class Service:
    """The running process: what it is called, when it should stop, what must answer for it to be ready."""

    name: str
    settings: Settings
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    checks: dict[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    """Name of a port -> its ping."""
    started: bool = False
    """Set by ``main`` once it serves; not ready before."""

    async def failing(self) -> dict[str, str]:
        """What does not answer, and why; empty: ready."""
        if not self.started:
            return {self.name: "starting"}
        out: dict[str, str] = {}
        for name, ping in self.checks.items():
            try:
                await asyncio.wait_for(ping(), _READY_TIMEOUT_S)
            except (WeftError, TimeoutError, OSError) as error:
                out[name] = str(error) or type(error).__name__
        return out


class _Stderr:
    """A log that cannot be written (its disk is full) is no reason to fail in the midst of whatever was to be told."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            return os.write(2, text.encode(errors="backslashreplace"))
        return 0

    def flush(self) -> None:
        """Nothing is held back."""


def configure_logging(name: str, level: str) -> None:
    """One JSON object per line on stderr: static event names, fields, identifiers instead of objects."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Stderr())),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=name, pid=os.getpid())


def operations_app(service: Service) -> Starlette:
    """What an operator and a scheduler look at."""

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        failing = await service.failing()
        return JSONResponse({"ready": not failing, "failing": failing}, status_code=503 if failing else 200)

    async def metrics(_: Request) -> Response:
        return Response(prometheus_client.generate_latest(), media_type=prometheus_client.CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/healthz", health), Route("/readyz", ready), Route("/metrics", metrics)])


def http_server(app: Any, address: str) -> uvicorn.Server:
    """An HTTP server at ``host:port`` which leaves signals and logging to us; start it with ``serve()``."""
    host, _, port = address.rpartition(":")
    server = uvicorn.Server(
        uvicorn.Config(
            app, host=host, port=int(port), log_config=None, access_log=False, lifespan="off", timeout_keep_alive=30,
            timeout_graceful_shutdown=5, server_header=False,
        )
    )  # fmt: skip
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # ours are handled in run()
    return server


async def serve_http(server: uvicorn.Server, stopping: asyncio.Event) -> None:
    """Serves until ``stopping``; raises WeftError where the port is taken."""
    try:
        listener = socket.create_server((server.config.host, server.config.port), backlog=server.config.backlog)
    except OSError as error:  # found out here: uvicorn would end the whole process with SystemExit
        raise WeftError(f"cannot listen on port {server.config.port}: {error.strerror}") from None
    with listener:
        # Connections inherit it. asyncio sets it on sockets of its own only; without it each answer waits 40 ms for an
        # acknowledgement between its head and its body.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        await stopping.wait()
        server.should_exit = True
        await task


def watch_failpoints(name: str) -> None:
    """Where failpoints are on, each change of a file is one from now on. Said loudly."""
    points = failpoints(name)
    if points is not None:
        why = "this process may die on purpose: never in production"
        structlog.get_logger().warning("failpoints.on", folder=points.folder, why=why)
        points.watch_files()


def run(name: str, settings: Settings, main: Callable[[Service], Awaitable[None]]) -> int:
    """Runs a service to its end; the exit code. One clear line on stderr where it cannot start."""
    configure_logging(name, settings.log_level)
    log = structlog.get_logger()
    watch_failpoints(name)

    async def body() -> None:
        service = Service(name, settings)
        loop = asyncio.get_running_loop()
        serving = asyncio.current_task()

        def told() -> None:
            if service.stopping.is_set() and serving is not None:
                serving.cancel()
            log.info("service.hurried" if service.stopping.is_set() else "service.stopping")
            service.stopping.set()

        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, told)
        operations = http_server(operations_app(service), settings.installation.address(f"{name}-ops"))
        async with asyncio.TaskGroup() as group:
            group.create_task(serve_http(operations, service.stopping))
            await main(service)
            service.stopping.set()

    log.info("service.starting")
    try:
        with suppress(asyncio.CancelledError):  # told twice
            uvloop.run(body())
    except BaseExceptionGroup as failed:
        ours, others = failed.split(WeftError)
        if others is not None or ours is None:
            raise
        log.error("service.cannot_run", why=[str(error) for error in ours.exceptions])  # noqa: TRY400 - no trace for people
        return 1
    log.info("service.stopped")
    return 0
