"""The transport over the HTTP library: TLS, proxies, uploads and streams. Its errors are the SDK's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx2

from weft._errors import InvalidRequest
from weft._httpx_errors import client_options, timeout, typed_errors
from weft._profile import Profile
from weft.http_exchange import Answer, is_success


class AsyncStream:
    """An answer whose body is read while it comes. To be closed."""

    def __init__(self, response: httpx2.Response, url: str) -> None:
        self.status: int = response.status_code
        self._response = response
        self._url = url

    @property
    def is_success(self) -> bool:
        return is_success(self.status)

    async def read(self) -> Answer:
        """The whole answer."""
        with typed_errors(self._url):
            await self._response.aread()
        return _answer(self._response)

    async def aiter_bytes(self) -> AsyncGenerator[bytes, None]:
        """The body in pieces, as they come."""
        with typed_errors(self._url):
            async for chunk in self._response.aiter_bytes():
                yield chunk

    async def events(self) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """The events of a body of the type text/event-stream. Raises Internal for another body."""
        with typed_errors(self._url):
            async for event in httpx2.EventSource(self._response):
                yield event

    async def aclose(self) -> None:
        await self._response.aclose()


class AsyncHttpx:
    """Speaks to one platform with one key; any number of requests at a time.

    Redirects are not followed; nothing on loopback goes through a proxy.
    """

    def __init__(self, profile: Profile, *, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._url, self._home = profile.url, profile.home
        try:
            self._client = httpx2.AsyncClient(**client_options(profile), transport=transport)
        except httpx2.InvalidURL as wrong:
            raise InvalidRequest(f"the address of this profile cannot be used: {wrong}") from None

    async def close(self) -> None:
        await self._client.aclose()

    async def request(
        self, method: str, path: str, *, params: Mapping[str, Any], body: object, headers: Mapping[str, str]
    ) -> Answer:
        """``body``: sent as JSON; None: no body."""
        with typed_errors(self._url, home=self._home):
            return _answer(await self._client.request(method, path, params=params, json=body, headers=headers))

    async def upload(
        self, path: str, *, parts: Sequence[tuple[str, Any]], headers: Mapping[str, str], answer_s: float
    ) -> Answer:
        """POST a multipart form. ``answer_s``: the longest time for the answer after the form is sent."""
        with typed_errors(self._url, home=self._home):
            sent = self._client.post(path, files=parts, headers=headers, timeout=timeout(answer_s))
            return _answer(await sent)

    async def open(
        self, path: str, *, params: Mapping[str, Any], headers: Mapping[str, str], silence_s: float
    ) -> AsyncStream:
        """A GET. ``silence_s``: the longest time between two pieces of the body."""
        with typed_errors(self._url, home=self._home):
            request = self._client.build_request(
                "GET", path, params=params, headers=headers, timeout=timeout(silence_s)
            )
            return AsyncStream(await self._client.send(request, stream=True), self._url)


def _answer(response: httpx2.Response) -> Answer:
    return Answer(
        response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.content
    )
