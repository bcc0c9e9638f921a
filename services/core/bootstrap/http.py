"""HTTP servers inside a service: its operations address, and the api's REST."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import uvicorn

from services.core.bootstrap.http_limits import HttpLimits, LimitedProtocol
from services.core.domain.errors import WeftError
from services.core.runtime.address import Address
from services.core.runtime.sockets import SocketPlace, set_connection_options
from services.core.runtime.timers import aligned

_BACKLOG: Final = 2048
_TICK_S: Final = 1.0
"""How often an idle server wakes up, for the date in its answers. A supervisor notices by it that the process lives."""


class _Server(uvicorn.Server):
    """Waits for its end instead of looking for it ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.exiting = asyncio.Event()

    async def main_loop(self) -> None:
        # Without asyncio.timeout, which ends the wait by a cancellation: four times the cost, in each service.
        loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            self.exiting.clear()
            tick = loop.call_at(aligned(loop.time() + _TICK_S), self.exiting.set)
            await self.exiting.wait()
            tick.cancel()

    def exit(self) -> None:
        """Makes ``serve`` return soon."""
        self.should_exit = True
        self.exiting.set()


class HttpServer:
    """An HTTP server without signal handlers or logs of its own.

    ``held``: a socket that listens at the address already, e.g. one that the supervisor keeps. This server closes it.
    """

    def __init__(
        self, app: Any, address: Address, *, held: socket.socket | None = None, limits: HttpLimits | None = None
    ) -> None:
        self._address, self._held = address, held
        if held is not None:
            set_connection_options(held)
        files = address.files()
        options: dict[str, Any] = {}
        if files is not None:
            options = {
                "ssl_certfile": files.certificate,
                "ssl_keyfile": files.key,
                "ssl_ca_certs": str(files.authority),
                "ssl_cert_reqs": ssl.CERT_REQUIRED,
            }
        if limits is not None:
            options["http"] = partial(LimitedProtocol, limits=limits)
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=30,
                timeout_graceful_shutdown=5,
                server_header=False,
                **options,
            )
        )
        self._server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # run() handles signals

    @property
    def started(self) -> bool:
        return self._server.started

    async def serve(self, stopping: asyncio.Event) -> None:
        """Serves until ``stopping`` is set. Raises WeftError where it cannot listen at its address."""
        with self._held if self._held is not None else listening(self._address) as listener:
            task = asyncio.ensure_future(self._server.serve(sockets=[listener]))
            await stopping.wait()
            self._server.exit()
            await task


@contextmanager
def listening(address: Address) -> Generator[socket.socket]:
    """A listening socket at the address. Raises WeftError if another process serves there."""
    if address.socket is not None:
        place = SocketPlace.take(address.socket)
        try:
            with place.listen(_BACKLOG) as listener:
                yield listener
        finally:
            place.release()
        return
    with listen_tcp(address) as listener:
        yield listener


def listen_tcp(address: Address) -> socket.socket:
    """A socket that listens on a port. Raises WeftError if it is taken."""
    host, port = address.host_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:  # uvicorn itself would end the whole process with SystemExit
        raise WeftError(f"cannot listen on {address}: {error.strerror}") from None
    set_connection_options(listener)
    return listener
