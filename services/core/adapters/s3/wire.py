"""One HTTP connection for requests of signed URLs, one at a time. Every wait has a time limit and can be cancelled.

It uses the standard library in a thread: helpers use it too, and a learner waits for all its helper's imports.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final, TypeVar
from urllib.parse import urlsplit

from services.core.adapters.s3.answers import RETRY_AFTER_S, Answer, raise_for
from services.core.adapters.s3.proxies import authorization, proxy_of
from services.core.domain.errors import Unavailable

T = TypeVar("T")

CONNECT_S: Final = 5.0
ANSWER_S: Final = 20.0
"""Time limit of each wait to send or to receive."""
CHUNK: Final = 2**20
_BODY_MAX: Final = 8 * 2**20
_CLOSED: Final = (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected)


class Wire:
    def __init__(self, *, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._connection: http.client.HTTPConnection | None = None
        self._to = ("", "")
        self._used = False

    async def send(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        within_s: float | None = None,
    ) -> Answer:
        """The server's answer, with any status. Raises Unavailable after ``within_s`` seconds of silence."""

        def work() -> Answer:
            response = self._request(method, url, body, headers or {}, within_s or self._answer_s)
            content = response.read(_BODY_MAX)
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, content)

        return await self._in_thread(work)

    async def stream(self, url: str, key: str, *, start: int, end: int | None) -> AsyncGenerator[bytes]:
        """The object's bytes [start, end) in chunks of at most 1 MiB. ``start`` is within the object, or 0."""
        last = "" if end is None else str(end - 1)
        wanted = {"Range": f"bytes={start}-{last}"} if start or end is not None else {}

        def begin() -> http.client.HTTPResponse:
            response = self._request("GET", url, None, wanted, self._answer_s)
            if response.status not in {200, 206}:
                heads = {name.lower(): value for name, value in response.getheaders()}
                raise_for(Answer(response.status, heads, response.read(_BODY_MAX)), key)
            return response

        response = await self._in_thread(begin)
        try:
            while chunk := await self._in_thread(lambda: response.read(CHUNK)):
                yield chunk
            if response.length:  # read() raises no error if the connection ended early
                raise Unavailable(f"the object store ended in the middle of {key}", retry_after_s=RETRY_AFTER_S)
        finally:
            if not response.isclosed():
                self.close()

    def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _request(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], within_s: float
    ) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}"
        proxy = proxy_of(url) if parts.scheme == "http" else None
        if proxy is not None:  # an http proxy gets the whole URL; https uses a tunnel
            target, headers = url, {**headers, **authorization(proxy)}
        while True:
            connection = self._connected(parts.scheme, parts.netloc, within_s)
            was_used = self._used
            try:
                self._used = True
                # A server that refuses may answer and close before it has read everything.
                with contextlib.suppress(*_CLOSED):
                    connection.request(method, target, body=body, headers={"Host": parts.netloc, **headers})
                return connection.getresponse()
            except _CLOSED:
                self.close()
                if not was_used:  # a server may close an idle connection, but this one was new
                    raise

    def _connected(self, scheme: str, place: str, within_s: float) -> http.client.HTTPConnection:
        if self._to != (scheme, place):
            self.close()
        if self._connection is None:
            self._to = (scheme, place)
            self._connection = _new(scheme, place)
        if self._connection.sock is None:  # new, or closed after the last answer
            self._used = False
            self._connection.connect()
        if self._connection.sock is not None:
            self._connection.sock.settimeout(within_s)
        return self._connection

    async def _in_thread(self, work: Callable[[], T]) -> T:
        running = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._shut_down()
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # retrieved, so that asyncio does not report it
            self.close()
            raise
        except (OSError, http.client.HTTPException) as error:
            place = self._to[1]
            self.close()
            why = str(error) or type(error).__name__
            raise Unavailable(
                f"the object store at {place} does not answer ({why})", retry_after_s=RETRY_AFTER_S
            ) from error

    def _shut_down(self) -> None:
        """Shuts the socket down, which ends the thread's wait."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)


def _new(scheme: str, place: str) -> http.client.HTTPConnection:
    """A connection, not opened yet, to the server or to its proxy."""
    proxy = proxy_of(f"{scheme}://{place}")
    to = urlsplit(proxy).netloc.rpartition("@")[2] if proxy is not None else place
    if scheme == "http":
        return http.client.HTTPConnection(to, timeout=CONNECT_S)
    connection = http.client.HTTPSConnection(to, timeout=CONNECT_S, context=ssl.create_default_context())
    if proxy is not None:
        connection.set_tunnel(place, headers=authorization(proxy))
    return connection
