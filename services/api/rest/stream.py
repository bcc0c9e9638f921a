"""One live stream for each page of the dashboard, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.sse import format_sse_event

from services.api.answers import to_json
from services.api.rest import sse
from services.api.rest.permissions import Reader, Services
from services.api.use_cases.stream import StreamEvent, StreamParams, follow_page

router = APIRouter(prefix="/v1/stream", tags=["telemetry"])
_SSE: Final = {"text/event-stream": {"schema": {"type": "string"}}}


@router.get("", responses={200: {"description": "A stream of all that a page shows live", "content": _SSE}})
async def get_stream(
    services: Services, principal: Reader, request: Request, params: Annotated[StreamParams, Query()]
) -> Response:
    resumed = request.headers.get("last-event-id") or None
    events = await follow_page(services, principal, params, resumed=resumed)
    return sse.streamed(request, services, principal, _frames(events))


async def _frames(events: AsyncGenerator[StreamEvent]) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        async for event in events:
            data = event.data if isinstance(event.data, str) else to_json(event.data).decode()
            yield format_sse_event(event=event.name, data_str=data, id=event.places)
