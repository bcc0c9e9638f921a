"""Live streams that survive the connection: every event once, in order, until the platform says that it was the last.

A stream that ends without `event: end` was cut. It is opened again with the id of the last event that was handed out,
so nothing is lost and nothing comes twice. It is given up when no stream could be opened for `retry_for_s`: an open
stream without events is no silence, because a job may print nothing for hours. The end event carries the job's final
state: a caller that follows to the end knows how it ended without another request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from weft._aio._http import AsyncHttp
from weft._errors import ConnectionFailed, Internal, Unavailable, WeftError, from_problem
from weft._stream import RETRY_FOR_S, End, Event, end_of
from weft._wire import LONGEST_PAUSE_S, STREAM_SILENCE_S, pause_s

__all__ = ["RETRY_FOR_S", "AsyncFollow", "End", "Event"]


class AsyncFollow:
    """Iterates over the events of one stream. After the last one, `end` says how the job ended.

    on_cut: called with the error each time that the connection is lost, before it is made again; once per loss.
    """

    def __init__(
        self,
        http: AsyncHttp,
        path: str,
        params: Mapping[str, Any],
        *,
        on_cut: Callable[[WeftError], None] = lambda _error: None,
        retry_for_s: float = RETRY_FOR_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._http = http
        self._path = path
        self._params = dict(params)
        self._on_cut = on_cut
        self._retry_for_s = retry_for_s
        self._clock = clock
        self._sleep = sleep
        self._token = ""
        self._heard_at = 0.0
        """When the last stream was still open; before that, when this began."""
        self._open_s = 0.0
        """How long the last stream was open; 0 if it could not be opened."""
        self._events = self._run()
        self.end: End | None = None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def close(self) -> None:
        """Hang up. The job is not touched."""
        await self._events.aclose()

    async def _run(self) -> AsyncGenerator[Event, None]:
        attempt = 0
        self._heard_at = self._clock()
        while self.end is None:
            try:
                async with aclosing(self._connection()) as events:
                    async for event in events:
                        attempt = 0
                        yield event
                if self.end is not None:
                    return
                cut: WeftError = ConnectionFailed("the stream was cut")
            except (ConnectionFailed, Unavailable) as failed:
                cut = failed
            if self._open_s > LONGEST_PAUSE_S:  # a stream that is cut at once, again and again, is opened ever later
                attempt = 0
            if attempt == 0:
                self._on_cut(cut)
            pause = pause_s(attempt) if cut.retry_after_s is None else cut.retry_after_s
            if self._clock() - self._heard_at + pause > self._retry_for_s:
                raise cut
            await self._sleep(pause)
            attempt += 1

    async def _connection(self) -> AsyncGenerator[Event, None]:
        headers = {"Accept": "text/event-stream"}
        if self._token:
            headers["Last-Event-ID"] = self._token
        stream = self._http.open(self._path, params=self._params, headers=headers, silence_s=STREAM_SILENCE_S)
        self._open_s = 0.0
        async with stream as response, aclosing(response.events()) as events:
            opened_at = self._clock()
            try:
                async for event in events:
                    document = json.loads(event.data)
                    if event.event == "error":
                        raise from_problem(int(document.get("status") or 500), document)
                    if event.event == "end":
                        self.end = end_of(document)
                        return
                    # The id of the parser is sticky: an event without one repeats the one before.
                    self._token = event.id or self._token
                    if event.event == "start":  # nothing but the token, for a cut before the first item
                        continue
                    yield Event(event.event, document, event.id)
            except ValueError as garbled:
                raise Internal(f"the stream is garbled ({garbled}): is this the address of a Weft platform?") from None
            finally:
                self._heard_at = self._clock()
                self._open_s = self._heard_at - opened_at
