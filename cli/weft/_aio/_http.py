"""Requests to the platform: keys, retries, problem documents and proxies are handled here only.

What this module keeps true:

* Every request outlives a restart of the platform: 429, 503 and broken connections are tried again with growing,
  jittered pauses, or when Retry-After says so. How long: a couple of seconds while the platform has never answered (it
  is probably not there, and somebody waits for that news), longer once it has. The time is counted from the end of the
  first failure, so that a request that fails late, an upload for example, is tried again as well.
* A request that is sent again acts once: each POST has an Idempotency-Key, and a DELETE whose repetition finds nothing
  has succeeded.
* Every answer that is no success becomes a typed error (`weft._errors`).
* The key goes to the configured address alone: redirects are not followed, and nothing on this machine's loopback ever
  goes through a proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from weft._aio._transport import AsyncTransport
from weft._errors import NotFound, WeftError
from weft._profile import Profile
from weft._wire import (
    DELETED,
    FIRST_RETRY_FOR_S,
    RETRY_FOR_S,
    NeverSent,
    json_object,
    once_only,
    pause_s,
    perhaps_done,
    present,
    problem_of,
    worth_retrying,
)

if TYPE_CHECKING:
    import httpx2

    from weft._aio._httpx import AsyncStream
    from weft.http_exchange import Answer

T = TypeVar("T")
_UPLOAD_ANSWER_S = 300.0


class AsyncHttp:
    """Speaks to one platform with one key; any number of requests at a time.

    ``on_wait`` hears why a request is tried again.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        on_wait: Callable[[WeftError], None] = lambda _why: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.profile = profile
        self._on_wait = on_wait
        self._clock = clock
        self._sleep = sleep
        self.answered = False
        """Whether the platform has answered this client."""
        self._transport = AsyncTransport(profile, transport=transport)

    async def close(self) -> None:
        await self._transport.close()

    async def json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a GET, POST, PUT or DELETE, and read a JSON object."""
        sent, query = once_only(method, headers), present(params)
        answer = await self._send(
            lambda: self._transport.request(method, path, params=query, body=body, headers=sent),
            deletes=method == "DELETE",
        )
        return json_object(answer)

    async def text(self, path: str, *, params: Mapping[str, Any] | None = None) -> str:
        """GET a text in UTF-8."""
        query = present(params)
        answer = await self._send(
            lambda: self._transport.request("GET", path, params=query, body=None, headers={}),
        )
        return answer.body.decode(errors="replace")

    async def upload(self, path: str, *, parts: Callable[[], list[tuple[str, Any]]], key: str) -> dict[str, Any]:
        """POST a multipart form under an idempotency key. ``parts`` gives fresh, rewound parts for each try."""
        headers = {"Idempotency-Key": key}
        # No limit on writing: the network decides how long an upload takes. A long read: the platform stores it.
        answer = await self._send(
            lambda: self._transport.upload(path, parts=parts(), headers=headers, answer_s=_UPLOAD_ANSWER_S)
        )
        return json_object(answer)

    async def _send(self, request: Callable[[], Awaitable[Answer]], *, deletes: bool = False) -> Answer:
        """The answer to the request, tried again as the module says; a typed error otherwise."""
        perhaps_deleted = False

        async def once() -> Answer:
            nonlocal perhaps_deleted
            try:
                answer = await request()
                self.answered = True
                if not answer.is_success:
                    raise problem_of(answer)
            except NotFound:
                if not perhaps_deleted:
                    raise
                return DELETED
            except WeftError as failed:
                perhaps_deleted = perhaps_deleted or (deletes and perhaps_done(failed))
                raise
            return answer

        return await self._with_retries(once)

    @asynccontextmanager
    async def open(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float = 60.0,
    ) -> AsyncGenerator[AsyncStream, None]:
        """A GET whose body is read while it comes. Tried again until it begins; the caller handles a later cut."""

        async def once() -> AsyncStream:
            stream = await self._transport.open(
                path, params=present(params), headers=dict(headers or {}), silence_s=silence_s
            )
            self.answered = True
            if not stream.is_success:
                async with aclosing(stream):
                    raise problem_of(await stream.read())
            return stream

        async with aclosing(await self._with_retries(once)) as stream:
            yield stream

    async def _with_retries(self, once: Callable[[], Awaitable[T]]) -> T:
        failing_since, attempt = self._clock(), 0
        while True:
            try:
                return await once()
            except WeftError as failed:
                if not worth_retrying(failed):
                    raise
                absent = isinstance(failed, NeverSent) and not self.answered
                if attempt == 0 and not absent:
                    failing_since = self._clock()
                pause = pause_s(attempt) if failed.retry_after_s is None else failed.retry_after_s
                retry_for_s = RETRY_FOR_S if self.answered else FIRST_RETRY_FOR_S
                if self._clock() - failing_since + pause > retry_for_s:
                    raise
                self._on_wait(failed)
                await self._sleep(pause)
                attempt += 1
