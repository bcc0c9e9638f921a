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

from services.api.gateway import Gateway
from services.api.rest.answers import encode, problem
from services.api.rest.gate import trace_id_of
from services.core.domain.errors import FieldError, Internal, InvalidRequest, WeftError

KEEPALIVE: Final = b": \n\n"
_MAX_SEQ: Final = 2**53
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
    return format_sse_event(event=event, data_str=encode(data).decode(), id=None if event_id is None else str(event_id))


def streamed(request: Request, uses: Gateway, frames: AsyncGenerator[bytes]) -> StreamingResponse:
    """The frames as a response that outlives silence and ends with the service."""
    return StreamingResponse(
        _kept_alive(request, uses, frames),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _kept_alive(request: Request, uses: Gateway, frames: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    trace_id = trace_id_of(request.scope)
    stopping = asyncio.ensure_future(uses.stopping.wait())
    reading: asyncio.Task[bytes] | None = None
    uses.measures.followers.inc()
    try:
        async with aclosing(frames):
            yield KEEPALIVE  # the head goes out at once, and with it the news that this works
            try:
                while not stopping.done():
                    if reading is None:
                        reading = asyncio.create_task(anext(frames))
                    await asyncio.wait(
                        {reading, stopping}, timeout=uses.settings.keepalive_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    if not reading.done():
                        yield KEEPALIVE
                        continue
                    done, reading = reading, None
                    if out := done.result():
                        yield out
            except StopAsyncIteration:
                return
            except WeftError as failed:
                yield frame("error", problem(failed, trace_id))
            except Exception:  # the edge of the stream: its head is sent, so the error becomes its last event
                log.exception("api.stream_failed", path=request.url.path)
                yield frame("error", problem(Internal("an internal error; the service's log has its trace"), trace_id))
            finally:
                if reading is not None:
                    reading.cancel()
                    await asyncio.wait({reading})
    finally:
        stopping.cancel()
        uses.measures.followers.dec()
