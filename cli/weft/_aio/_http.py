"""Requests to the platform: keys, retries, problem documents and proxies are handled here only.

What this module keeps true:

* A request that may safely be sent twice (GET, and every POST: each has an Idempotency-Key) outlives a
  restart of the platform: 429, 503 and broken connections are tried again with growing, jittered pauses, or when
  Retry-After says so. How long: a couple of seconds while the platform has never answered (it is probably not there,
  and somebody waits for that news), longer once it has.
* A request that never left (no connection) is always safe to send again.
* Every answer that is no success becomes a typed error (`weft._errors`).
* The key goes to the configured address alone: redirects are not followed, and nothing on this machine's loopback ever
  goes through a proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from typing import Any

import httpx2

from weft._errors import InvalidRequest, WeftError
from weft._profile import Profile
from weft._wire import (
    FIRST_RETRY_FOR_S,
    RETRY_FOR_S,
    NeverSent,
    client_options,
    json_object,
    once_only,
    pause_s,
    present,
    problem_of,
    typed_errors,
    worth_retrying,
)


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
        self._answered = False
        try:
            self._client = httpx2.AsyncClient(**client_options(profile), transport=transport)
        except httpx2.InvalidURL as wrong:
            raise InvalidRequest(f"the address of this profile cannot be used: {wrong}") from None

    async def close(self) -> None:
        await self._client.aclose()

    async def json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        safe: bool | None = None,
    ) -> dict[str, Any]:
        """Send and read a JSON object. ``safe``: may be sent twice; by default, GET and POST are."""
        sent = once_only(method, headers)
        response = await self.send(
            lambda: self._client.build_request(method, path, params=present(params), json=body, headers=sent),
            safe=method in {"GET", "POST"} if safe is None else safe,
        )
        return json_object(response)

    async def upload(self, path: str, *, parts: Callable[[], list[tuple[str, Any]]], key: str) -> dict[str, Any]:
        """POST a multipart form under an idempotency key. ``parts`` gives fresh, rewound parts for each try."""
        headers = {"Idempotency-Key": key}
        # No limit on writing: the network decides how long an upload takes. A long read: the platform stores it.
        slow = httpx2.Timeout(300.0, connect=5.0)
        response = await self.send(
            lambda: self._client.build_request("POST", path, files=parts(), headers=headers, timeout=slow), safe=True
        )
        return json_object(response)

    async def send(self, build: Callable[[], httpx2.Request], *, safe: bool) -> httpx2.Response:
        """The answer to the request that ``build`` makes, tried again as the module says; a typed error otherwise."""

        async def once() -> httpx2.Response:
            with self._wrapped():
                response = await self._client.send(build())
            self._answered = True
            if not response.is_success:
                raise problem_of(response)
            return response

        return await self._with_retries(once, safe=safe)

    @asynccontextmanager
    async def open(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float = 60.0,
    ) -> AsyncGenerator[httpx2.Response, None]:
        """A GET whose body is read while it comes. Tried again until it begins; the caller handles a later cut."""
        timeout = httpx2.Timeout(silence_s, connect=5.0)

        async def once() -> httpx2.Response:
            request = self._client.build_request(
                "GET", path, params=present(params), headers=dict(headers or {}), timeout=timeout
            )
            with self._wrapped():
                response = await self._client.send(request, stream=True)
                self._answered = True
                if not response.is_success:
                    async with aclosing(response):
                        await response.aread()
                    raise problem_of(response)
            return response

        response = await self._with_retries(once, safe=True)
        async with aclosing(response):
            with self._wrapped():
                yield response

    async def _with_retries(self, once: Callable[[], Awaitable[httpx2.Response]], *, safe: bool) -> httpx2.Response:
        began, attempt = self._clock(), 0
        while True:
            try:
                return await once()
            except WeftError as failed:
                if not (safe and worth_retrying(failed)) and not isinstance(failed, NeverSent):
                    raise
                pause = pause_s(attempt) if failed.retry_after_s is None else failed.retry_after_s
                retry_for_s = RETRY_FOR_S if self._answered else FIRST_RETRY_FOR_S
                if self._clock() - began + pause > retry_for_s:
                    raise
                self._on_wait(failed)
                await self._sleep(pause)
                attempt += 1

    def _wrapped(self) -> AbstractContextManager[None]:
        return typed_errors(self.profile.url)
