"""Server-sent events: frames, keep-alive, and an end only where there is one.

A stream that stops without ``event: end`` was cut (we are shutting down, the network went): readers connect again with
the last ``id``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

import structlog
from fastapi import Request
from fastapi.sse import format_sse_event
from starlette.responses import StreamingResponse

from services.api.rest.answers import problem
from services.api.rest.auth_middleware import trace_id_of
from services.api.serializers import encoded
from services.api.services import ApiServices
from services.core.domain.errors import FieldError, Internal, InvalidRequest, WeftError

KEEPALIVE: Final = b": \n\n"
_MAX_SEQ: Final = 2**53
_AHEAD: Final = 4
"""Batches that are read before the last one was sent: a slow reader makes us wait, not grow."""
log = structlog.get_logger()


def wanted(request: Request, *, follow: bool | None) -> bool:
    """Whether the answer shall be a stream."""
    return follow if follow is not None else "text/event-stream" in request.headers.get("accept", "")


def resumed_at(request: Request, after: int | None) -> int | None:
    """The number of the last item that the reader has: of ``Last-Event-ID``, else ``after``."""
    given = request.headers.get("last-event-id")
    if not given:
        return after
    if not (given.isascii() and given.isdecimal()) or int(given[:17]) >= _MAX_SEQ or len(given) > 16:
        message = "Last-Event-ID is the id of an event of this stream"
        raise InvalidRequest(message, errors=(FieldError("/header/last-event-id", message),))
    return int(given)


def frame(event: str, data: object, event_id: int | None = None) -> bytes:
    return format_sse_event(
        event=event, data_str=encoded(data).decode(), id=None if event_id is None else str(event_id)
    )


def streamed(request: Request, services: ApiServices, frames: AsyncGenerator[bytes]) -> StreamingResponse:
    """The frames as a response that outlives silence and ends with the service."""
    return StreamingResponse(
        _kept_alive(request, services, frames),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _kept_alive(request: Request, services: ApiServices, frames: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """The frames, and a comment where there is none for a while.

    They are read by a task of their own, because a reader that leaves cancels us at each await, again and again: what
    has to be closed is closed over there.
    """
    ready: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=_AHEAD)
    reading = asyncio.create_task(_read(request, frames, ready))
    stopping = asyncio.create_task(services.stopping.wait())
    getting = asyncio.create_task(ready.get())
    services.instrumentation.followers.inc()
    try:
        yield KEEPALIVE  # the head goes out at once, and with it the news that this works
        while not stopping.done():
            await asyncio.wait(
                {getting, stopping}, timeout=services.settings.keepalive_s, return_when=asyncio.FIRST_COMPLETED
            )
            if stopping.done():
                return
            if not getting.done():
                yield KEEPALIVE
            elif (out := getting.result()) is None:
                return
            else:
                getting = asyncio.create_task(ready.get())
                yield out
    finally:
        for task in (reading, stopping, getting):
            task.cancel()
        services.instrumentation.followers.dec()


async def _read(request: Request, frames: AsyncGenerator[bytes], ready: asyncio.Queue[bytes | None]) -> None:
    """Puts the frames into the queue, and None after the last."""
    trace_id = trace_id_of(request.scope)
    try:
        async with aclosing(frames):
            async for out in frames:
                if out:
                    await ready.put(out)
    except WeftError as failed:
        await ready.put(frame("error", problem(failed, trace_id)))
    except Exception:  # the edge of the stream: its head is sent, so the error becomes its last event
        log.exception("api.stream_failed", path=request.url.path)
        await ready.put(
            frame("error", problem(Internal("an internal error; the service's log has its trace"), trace_id))
        )
    await ready.put(None)
