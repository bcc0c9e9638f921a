"""The service process: JSON logs, an operations address, clean shutdown, one event loop.

    /healthz   the event loop runs                     /readyz   the ports answer, too: it can do all its work
    /servingz  it serves, and shall get the traffic    /metrics  Prometheus, with a key

While a store is away a service is not ready, and still serving: it answers clear errors, and does the work that needs
no store. A load balancer that took it out, and all its replicas with it, would leave clients with refused connections.

A service is ``async def main(service: Service)``. After ``service.stopping`` is set (SIGTERM, SIGINT) it accepts no new
work, finishes what is under way, releases its leases and claims, and returns. At a second signal ``main`` is cancelled:
only its ``finally`` blocks still run.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeVar

import prometheus_client
import structlog
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from services.core.adapters.certificates import valid_until
from services.core.adapters.rpc.server import REFUSED
from services.core.bootstrap.http import HttpServer
from services.core.bootstrap.log import configure_logging
from services.core.bootstrap.operations_access import OperationsAccess
from services.core.bootstrap.wiring import operations_access
from services.core.domain.errors import PermissionDenied, Unauthenticated, WeftError, row
from services.core.failpoints.ports import failpoints
from services.core.runtime.address import Address
from services.core.runtime.garbage_collection import end_of_imports
from services.core.runtime.settings import Settings

S = TypeVar("S", bound=Settings)
_READY_TIMEOUT_S: Final = 2.0
READY: Final = prometheus_client.Gauge(
    "weft_ready", "Whether the service serves, and each port that it needs answers: 1 or 0", ("check",)
)
CERTIFICATE: Final = prometheus_client.Gauge(
    "weft_certificate_seconds",
    "Seconds until the certificate that the service has read at its start is no longer valid; negative: since then",
    ("component",),  # ``service`` is a label that Prometheus gives to what it scrapes
)


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

    @property
    def serving(self) -> bool:
        """True if it shall get traffic: it answers, if only that a store is away."""
        return self.started and not self.stopping.is_set()

    async def failing(self) -> dict[str, str]:
        """Returns port -> reason for the ports that do not answer within 2 s; empty: the service is ready."""
        READY.labels(self.name).set(self.started)
        if not self.started:
            return {self.name: "starting"}
        reasons = dict(zip(self.checks, await asyncio.gather(*map(_why_failing, self.checks.values())), strict=True))
        for name, reason in reasons.items():
            READY.labels(name).set(not reason)
        return {name: reason for name, reason in reasons.items() if reason}


async def _why_failing(ping: Callable[[], Awaitable[object]]) -> str:
    """Returns why a port does not answer; empty if it does."""
    try:
        await asyncio.wait_for(ping(), _READY_TIMEOUT_S)
    except (WeftError, TimeoutError, OSError) as error:
        return str(error) or type(error).__name__
    return ""


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

    async def serving(_: Request) -> Response:
        return JSONResponse({"serving": service.serving}, status_code=200 if service.serving else 503)

    async def metrics(request: Request) -> Response:
        error = await refusal(request)
        if error is not None:
            REFUSED.labels(row(error).code).inc()
            structlog.get_logger().warning("call.refused", method=request.url.path, why=error.message)
            headers = {"WWW-Authenticate": "Bearer"}
            return PlainTextResponse(f"{error.message}\n", status_code=row(error).http, headers=headers)
        await service.failing()  # sets ``READY``
        return Response(prometheus_client.generate_latest(), media_type=prometheus_client.CONTENT_TYPE_LATEST)

    routes = {"/healthz": health, "/readyz": ready, "/servingz": serving, "/metrics": metrics}
    return Starlette(routes=[Route(path, answer) for path, answer in routes.items()])


def raise_file_limit() -> int:
    """Raises the soft limit of open files to the hard one, and returns what holds then.

    The soft limit of a shell (1,024 mostly) is for programs that use select(). Strangers' connections would exhaust it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def operations_server(service: Service) -> HttpServer:
    """The server of the operations address. Raises WeftError if the service has no such address, or no certificate."""
    address = service.settings.installation.address(f"{service.name}-ops").inner
    _measure_certificate(service.name, address)
    return HttpServer(operations_app(service, operations_access(service.settings, service.name)), address)


def _measure_certificate(name: str, address: Address) -> None:
    """Measures the time that is left of the certificate of a service; no effect without TLS. Raises WeftError.

    Connections that this process opens show the certificate of its start: a renewed file needs a restart.
    """
    files = address.files()
    if files is not None:
        until_s = valid_until(files.certificate).timestamp()
        CERTIFICATE.labels(name).set_function(lambda: until_s - time.time())


def watch_failpoints(name: str) -> None:
    """Where failpoints are on, makes each change of a file a failpoint, and logs a warning."""
    points = failpoints(name)
    if points is not None:
        why = "failpoints can kill this process: never use them in production"
        structlog.get_logger().warning("failpoints.turned_on", folder=points.folder, why=why)
        points.watch_files()


def load(name: str, kind: type[S]) -> S:
    """The settings of the service. Ends the process with exit code 1 if one is wrong: the log says which."""
    try:
        return kind()
    except (WeftError, OSError) as error:  # OSError: the file of WEFT_SETTINGS_FILE
        configure_logging(name, "info")
        structlog.get_logger().error("service.start_refused", why=[str(error)])
        end_process(1)


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
            group.create_task(operations_server(service).serve(service.stopping))
            await main(service)
            service.stopping.set()

    log.info("service.starting")
    end_of_imports()
    try:
        with suppress(asyncio.CancelledError):  # after the second signal
            uvloop.run(body())
    except BaseExceptionGroup as failed:
        weft_errors, others = failed.split(WeftError)
        if others is not None or weft_errors is None:
            raise
        why = [str(error) for error in _single_errors(weft_errors)]
        log.error("service.start_refused", why=why)  # noqa: TRY400 - the message is enough
        return 1
    log.info("service.stopped")
    return 0


def end_process(code: int) -> NoReturn:
    """Ends the process without the interpreter's clean-up, which takes up to half a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _single_errors(group: BaseExceptionGroup[WeftError]) -> Iterator[WeftError]:
    """The errors of a group and of the groups in it: each task group of a service wraps them once more."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _single_errors(error)
        else:
            yield error
