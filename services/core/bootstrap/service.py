"""The service process: JSON logs, an operations address, clean shutdown, one event loop.

    /healthz  the event loop runs   /readyz  the ports answer   /metrics  Prometheus, with a key

A service is ``async def main(service: Service)``. After ``service.stopping`` is set (SIGTERM, SIGINT) it accepts no new
work, finishes what is under way, releases its leases and claims, and returns. At a second signal ``main`` is cancelled:
only its ``finally`` blocks still run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TextIO, cast

import prometheus_client
import structlog
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from services.core.adapters.rpc.server import REFUSED
from services.core.bootstrap.http import HttpServer
from services.core.bootstrap.operations_access import OperationsAccess
from services.core.bootstrap.wiring import operations_access
from services.core.domain.errors import PermissionDenied, Unauthenticated, WeftError, row
from services.core.failpoints.ports import failpoints
from services.core.runtime.settings import Settings

_READY_TIMEOUT_S: Final = 2.0


@dataclass
class Service:
    """A running service process."""

    name: str
    """lcm, guardian, ...: its name in logs and addresses."""
    settings: Settings
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the service should stop."""
    checks: dict[str, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    """Name of a port -> its ping, for readiness."""
    started: bool = False
    """Set by ``main`` when it serves. The service is not ready before."""

    async def failing(self) -> dict[str, str]:
        """Returns port -> reason for the ports that do not answer within 2 s each; empty: the service is ready."""
        if not self.started:
            return {self.name: "starting"}
        reasons: dict[str, str] = {}
        for name, ping in self.checks.items():
            try:
                await asyncio.wait_for(ping(), _READY_TIMEOUT_S)
            except (WeftError, TimeoutError, OSError) as error:
                reasons[name] = str(error) or type(error).__name__
        return reasons


class _Stderr:
    """Standard error that drops what it cannot write: the work that logs must not fail because a disk is full."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            return os.write(2, text.encode(errors="backslashreplace"))
        return 0

    def flush(self) -> None:
        """No effect: there is no buffer."""


def configure_logging(name: str, level: str) -> None:
    """Makes structlog write one JSON object per line to stderr, with ``service``, ``pid``, level and time.

    ``level``: debug | info | warning | error.
    """
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


def operations_app(service: Service, access: OperationsAccess) -> Starlette:
    """Returns the application of the operations address: health and readiness for everybody, the rest with a key."""

    async def refusal(request: Request) -> WeftError | None:
        try:
            await access.check(request.headers.get("authorization", ""))
        except (Unauthenticated, PermissionDenied) as error:
            return error
        return None

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(request: Request) -> Response:
        """Without a key without the reasons: they name stores and their errors."""
        failing = await service.failing()
        reasons = {"failing": failing} if await refusal(request) is None else {}
        return JSONResponse({"ready": not failing, **reasons}, status_code=503 if failing else 200)

    async def metrics(request: Request) -> Response:
        error = await refusal(request)
        if error is not None:
            REFUSED.labels(row(error).code).inc()
            structlog.get_logger().warning("call.refused", method=request.url.path, why=error.message)
            headers = {"WWW-Authenticate": "Bearer"}
            return PlainTextResponse(f"{error.message}\n", status_code=row(error).http, headers=headers)
        return Response(prometheus_client.generate_latest(), media_type=prometheus_client.CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/healthz", health), Route("/readyz", ready), Route("/metrics", metrics)])


def raise_file_limit() -> int:
    """Raises the soft limit of open files to the hard one, and returns what holds then.

    The soft limit of a shell (1,024 mostly) is for programs that use select(). Strangers' connections would exhaust it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def watch_failpoints(name: str) -> None:
    """Where failpoints are on, makes each change of a file a failpoint, and logs a warning."""
    points = failpoints(name)
    if points is not None:
        why = "failpoints can kill this process: never use them in production"
        structlog.get_logger().warning("failpoints.turned_on", folder=points.folder, why=why)
        points.watch_files()


def run(name: str, settings: Settings, main: Callable[[Service], Awaitable[None]]) -> int:
    """Runs a service until it stops. Returns the exit code: 1 where it failed with a WeftError, which is logged."""
    configure_logging(name, settings.log_level)
    log = structlog.get_logger()
    raise_file_limit()
    watch_failpoints(name)

    async def body() -> None:
        service = Service(name, settings)
        loop = asyncio.get_running_loop()
        body_task = asyncio.current_task()

        def stop() -> None:
            if service.stopping.is_set() and body_task is not None:
                body_task.cancel()
            log.info("service.cancelled" if service.stopping.is_set() else "service.stopping")
            service.stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        async with asyncio.TaskGroup() as group:
            operations = HttpServer(
                operations_app(service, operations_access(settings, name)),
                settings.installation.address(f"{name}-ops").inner,
            )
            group.create_task(operations.serve(service.stopping))
            await main(service)
            service.stopping.set()

    log.info("service.starting")
    try:
        with suppress(asyncio.CancelledError):  # after the second signal
            uvloop.run(body())
    except BaseExceptionGroup as failed:
        weft_errors, others = failed.split(WeftError)
        if others is not None or weft_errors is None:
            raise
        log.error("service.start_refused", why=[str(error) for error in weft_errors.exceptions])  # noqa: TRY400 - the message is enough
        return 1
    log.info("service.stopped")
    return 0
