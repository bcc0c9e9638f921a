"""What a job said: log lines, metric points, progress, events; as pages or as live streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from services.api import use_cases
from services.api.following import End
from services.api.params import EventsParams, LinesParams, PointsParams
from services.api.rest import sse
from services.api.rest.answers import answer
from services.api.rest.openapi import ok
from services.api.rest.permissions import Reader, Services
from services.api.schemas import JobJson, LinesJson, MetricsJson, ProgressJson
from services.api.serializers import end_json, event_json, line_json, point_json
from services.core.domain.job import Event
from services.core.ports.metric_store import StoredLine, StoredPoint

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["telemetry"])

Follow = Annotated[bool | None, Field(description="Stream (SSE), as with Accept: text/event-stream")]
_SSE: Final = {"text/event-stream": {"schema": {"type": "string"}}}


class LinesQuery(LinesParams):
    follow: Follow = None


class PointsQuery(PointsParams):
    follow: Follow = None
    series: bool = False


@router.get("/logs", **ok(LinesJson, "Lines, oldest first; or a stream of them"))
async def get_logs(
    services: Services, principal: Reader, request: Request, job_id: str, params: Annotated[LinesQuery, Query()]
) -> Response:
    if not sse.wanted(request, follow=params.follow):
        return answer(await use_cases.get_logs(services, principal, job_id, params))
    resumed = sse.resumed_at(request, params.after)
    return sse.streamed(
        request,
        services,
        _line_frames(await use_cases.follow_logs(services, principal, job_id, params, resumed=resumed)),
    )


@router.get("/metrics", **ok(MetricsJson, "Points in order, or curves; or a stream of points"))
async def get_metrics(
    services: Services, principal: Reader, request: Request, job_id: str, params: Annotated[PointsQuery, Query()]
) -> Response:
    if params.series:
        return answer(await use_cases.get_series(services, principal, job_id, params))
    if not sse.wanted(request, follow=params.follow):
        return answer(await use_cases.get_metrics(services, principal, job_id, params))
    resumed = sse.resumed_at(request, params.after)
    return sse.streamed(
        request,
        services,
        _point_frames(await use_cases.follow_metrics(services, principal, job_id, params, resumed=resumed)),
    )


@router.get("/progress", **ok(ProgressJson, "How far it is"))
async def get_progress(services: Services, principal: Reader, job_id: str) -> Response:
    return answer(await use_cases.get_progress(services, principal, job_id))


@router.get("/events", responses={200: {"description": "A stream of history and of changes", "content": _SSE}})
async def get_events(
    services: Services, principal: Reader, request: Request, job_id: str, params: Annotated[EventsParams, Query()]
) -> Response:
    resumed = EventsParams(after=sse.resumed_at(request, params.after))
    return sse.streamed(
        request, services, _event_frames(await use_cases.follow_events(services, principal, job_id, resumed))
    )


async def _line_frames(batches: AsyncGenerator[Sequence[StoredLine] | End]) -> AsyncGenerator[bytes]:
    async with aclosing(batches):
        async for batch in batches:
            if isinstance(batch, End):
                yield _end(batch)
            else:
                yield b"".join(sse.frame("line", line_json(one), one.seq) for one in batch)


async def _point_frames(batches: AsyncGenerator[Sequence[StoredPoint] | End]) -> AsyncGenerator[bytes]:
    async with aclosing(batches):
        async for batch in batches:
            if isinstance(batch, End):
                yield _end(batch)
            else:
                yield b"".join(sse.frame("point", point_json(one), one.seq) for one in batch)


async def _event_frames(items: AsyncGenerator[Event | JobJson | End]) -> AsyncGenerator[bytes]:
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Event):
                yield sse.frame("history", event_json(item), item.seq)
            elif isinstance(item, End):
                yield _end(item)
            else:
                yield sse.frame("status", item)


def _end(end: End) -> bytes:
    return sse.frame("end", end_json(end.job, end.job_id))
