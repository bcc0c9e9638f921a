"""What HTTP clients may take before they have authenticated: connections, and the time to send headers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.core.runtime.connections import Connections

_CLOSE: Final = b"Connection: close\r\nContent-Length: 0\r\n\r\n"
_TOO_MANY: Final = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\n" + _CLOSE
_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\n" + _CLOSE


@dataclass(frozen=True, slots=True)
class HttpLimits:
    connections: Connections
    headers_s: float
    """Seconds from the connection, or from the first byte of a later request, to the end of its headers."""


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol within limits. uvicorn itself waits for headers for ever."""

    def __init__(self, *, limits: HttpLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._is_admitted = False
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._is_admitted = self._limits.connections.admit(transport)
        if not self._is_admitted:
            self.transport = transport
            self._refuse(_TOO_MANY)
            return
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        if self._is_admitted:
            super().data_received(data)
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_waiting()
        self._limits.connections.left(self.transport)
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        """Until the headers are complete; from there on the application decides how long a request may take."""
        if self.conn.their_state is not h11.IDLE:
            self._end_waiting()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self._limits.headers_s, self._refuse, _TOO_SLOW)

    def _end_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _refuse(self, answer: bytes) -> None:
        self.transport.write(answer)
        self.transport.close()
