"""What a job reported, over HTTP: log lines, metric points, progress, events; as pages or as live streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from starlette.responses import StreamingResponse

from services.api.answers import rfc3339
from services.api.job_answer import Job, JobEvent
from services.api.rest import sse
from services.api.rest.answers import answer
from services.api.rest.openapi import JobId, ok, response
from services.api.rest.permissions import Reader, Services
from services.api.use_cases import telemetry
from services.api.use_cases.telemetry import (
    EventsParams,
    GetLogsReply,
    GetMetricsReply,
    GetSeriesReply,
    JobEnd,
    JobLine,
    JobPoint,
    JobProgress,
    LinesParams,
    LogStart,
    PointsParams,
)

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["telemetry"])

Follow = Annotated[
    bool | None, Field(description="Answer with a live stream (SSE), as `Accept: text/event-stream` does.")
]
_SSE: Final = {"text/event-stream": {"schema": {"type": "string"}}}


class LinesQuery(LinesParams):
    """Which log lines to get, and how."""

    follow: Follow = None
    start: bool = Field(
        default=False,
        description="Begin a stream with `event: start`. Its id is the resume token of a reader that is cut off before "
        "the first line.",
    )
    download: bool = Field(
        default=False,
        description="Answer with all lines that are stored and match, as a text file: time, learner, stream and text "
        "of each. `limit` has no effect on it.",
    )


class PointsQuery(PointsParams):
    """Which metric points to get, and how."""

    follow: Follow = None
    series: bool = Field(default=False, description="Answer with curves in place of single points.")


@router.get("/logs", **ok(GetLogsReply, "Lines, oldest first; or a stream of them, or a text file"))
async def get_logs(
    services: Services, principal: Reader, request: Request, job_id: JobId, params: Annotated[LinesQuery, Query()]
) -> Response:
    if params.download:
        headers = {"Content-Disposition": f"attachment; filename={job_id}.log", "X-Content-Type-Options": "nosniff"}
        text = _text(await telemetry.download_logs(services, principal, job_id, params))
        return StreamingResponse(text, headers=headers, media_type="text/plain")
    if not sse.wanted(request, follow=params.follow):
        return answer(await telemetry.get_logs(services, principal, job_id, params))
    resumed = sse.resumed_at(request, params.after)
    batches = await telemetry.follow_logs(services, principal, job_id, params, resumed=resumed, start=params.start)
    return sse.streamed(request, services, principal, _frames("line", batches))


@router.get(
    "/metrics",
    response_model=None,
    responses={200: response("Points in order, or curves; or a stream of points", GetMetricsReply, GetSeriesReply)},
)
async def get_metrics(
    services: Services, principal: Reader, request: Request, job_id: JobId, params: Annotated[PointsQuery, Query()]
) -> Response:
    if params.series:
        return answer(await telemetry.get_series(services, principal, job_id, params))
    if not sse.wanted(request, follow=params.follow):
        return answer(await telemetry.get_metrics(services, principal, job_id, params))
    resumed = sse.resumed_at(request, params.after)
    batches = await telemetry.follow_metrics(services, principal, job_id, params, resumed=resumed)
    return sse.streamed(request, services, principal, _frames("point", batches))


@router.get("/progress", **ok(JobProgress, "How far it is"))
async def get_progress(services: Services, principal: Reader, job_id: JobId) -> Response:
    return answer(await telemetry.get_progress(services, principal, job_id))


@router.get("/events", responses={200: {"description": "A stream of its history and its changes", "content": _SSE}})
async def get_events(
    services: Services, principal: Reader, request: Request, job_id: JobId, params: Annotated[EventsParams, Query()]
) -> Response:
    resumed = EventsParams(after=sse.resumed_at(request, params.after))
    events = await telemetry.follow_events(services, principal, job_id, resumed)
    return sse.streamed(request, services, principal, _event_frames(events))


async def _text(batches: AsyncGenerator[Sequence[JobLine]]) -> AsyncGenerator[bytes]:
    async with aclosing(batches):
        async for batch in batches:
            lines = (f"{rfc3339(line.time)} {line.role}-{line.rank} {line.stream} {line.text}\n" for line in batch)
            yield "".join(lines).encode(errors="replace")


async def _frames(
    event: str, batches: AsyncGenerator[LogStart | Sequence[JobLine | JobPoint] | JobEnd]
) -> AsyncGenerator[bytes]:
    async with aclosing(batches):
        async for batch in batches:
            if isinstance(batch, JobEnd):
                yield sse.frame("end", batch)
            elif isinstance(batch, LogStart):
                yield sse.frame("start", batch, batch.seq)
            else:
                yield b"".join(sse.frame(event, item, item.seq) for item in batch)


async def _event_frames(events: AsyncGenerator[JobEvent | Job | JobEnd]) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        async for event in events:
            if isinstance(event, JobEvent):
                yield sse.frame("history", event, event.seq)
            else:
                yield sse.frame("end" if isinstance(event, JobEnd) else "status", event)
