"""Server-sent events: frames, keep-alive comments, and an end only for a complete stream.

A stream that stops without ``event: end`` was cut (the service stops, the network failed): readers connect again with
the last ``id``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, Final

import structlog
from fastapi import Request
from fastapi.sse import format_sse_event
from starlette.responses import StreamingResponse

from services.api.access import Principal
from services.api.access_end import until_access_ends
from services.api.answers import to_json
from services.api.params import END_OF_SEQ
from services.api.rest.answers import problem
from services.api.rest.auth_middleware import trace_id_of
from services.api.services import ApiServices
from services.core.domain.errors import FieldError, Internal, InvalidRequest, WeftError
from services.core.runtime.edges import log_unexpected

KEEPALIVE: Final = b": \n\n"
_AHEAD: Final = 4
"""Frames that are read ahead of a slow reader; beyond that, reading waits."""
log = structlog.get_logger()


def wanted(request: Request, *, follow: bool | None) -> bool:
    """True if the client wants a stream."""
    return follow if follow is not None else "text/event-stream" in request.headers.get("accept", "")


def resumed_at(request: Request, after: int | None) -> int | None:
    """The ``seq`` of the last item that the client has: of ``Last-Event-ID``, else ``after``. Raises InvalidRequest."""
    event_id = request.headers.get("last-event-id")
    if not event_id:
        return after
    if not (event_id.isascii() and event_id.isdecimal()) or int(event_id[:17]) >= END_OF_SEQ or len(event_id) > 16:
        message = "Last-Event-ID is the id of an event of this stream"
        raise InvalidRequest(message, errors=(FieldError("/header/last-event-id", message),))
    return int(event_id)


def frame(event: str, data: object, event_id: int | None = None) -> bytes:
    """One event with its data as JSON."""
    return format_sse_event(
        event=event, data_str=to_json(data).decode(), id=None if event_id is None else str(event_id)
    )


def streamed(
    request: Request, services: ApiServices, principal: Principal, frames: AsyncGenerator[bytes]
) -> StreamingResponse:
    """The frames as a response with keep-alive comments. It ends when the service stops, and with ``event: error`` when
    the caller loses access.
    """
    return StreamingResponse(
        _kept_alive(request, services, principal, frames),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _kept_alive(
    request: Request, services: ApiServices, principal: Principal, frames: AsyncGenerator[bytes]
) -> AsyncIterator[bytes]:
    """The frames, and a comment after ``keepalive_s`` without one.

    A separate task reads them: a client that leaves cancels this generator at every await, so the frames are closed in
    that task.
    """
    ready: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=_AHEAD)
    reading = asyncio.create_task(_read(request, services, principal, frames, ready))
    stopping = asyncio.create_task(services.stopping.wait())
    getting = asyncio.create_task(ready.get())
    services.instrumentation.followers.inc()
    try:
        yield KEEPALIVE  # sends the response's head at once, so that the client sees that the request succeeded
        while not stopping.done():
            await asyncio.wait(
                {getting, stopping}, timeout=services.settings.keepalive_s, return_when=asyncio.FIRST_COMPLETED
            )
            if stopping.done():
                return
            if not getting.done():
                yield KEEPALIVE
            elif (next_frame := getting.result()) is None:
                return
            else:
                getting = asyncio.create_task(ready.get())
                yield next_frame
    finally:
        for task in (reading, stopping, getting):
            task.cancel()
        services.instrumentation.followers.dec()


async def _read(
    request: Request,
    services: ApiServices,
    principal: Principal,
    frames: AsyncGenerator[bytes],
    ready: asyncio.Queue[bytes | None],
) -> None:
    """Puts the frames into the queue until the caller loses access, and None after the last."""
    trace_id = trace_id_of(request.scope)
    try:  # the response's head is sent, so an error becomes its last event
        with log_unexpected("stream.failed", expected=WeftError, path=request.url.path) as edge:
            await _until_first(_forward(frames, ready), until_access_ends(services.sessions, principal))
        if edge.failed:
            raise Internal("an internal error; the service's log has its trace")
    except WeftError as error:
        await ready.put(frame("error", problem(error, trace_id)))
    await ready.put(None)


async def _forward(frames: AsyncGenerator[bytes], ready: asyncio.Queue[bytes | None]) -> None:
    async with aclosing(frames):
        async for next_frame in frames:
            if next_frame:
                await ready.put(next_frame)


async def _until_first(*work: Coroutine[Any, Any, None]) -> None:
    """Runs all until the first ends, and cancels the others. Raises what that one raises."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in ended:
        task.result()
