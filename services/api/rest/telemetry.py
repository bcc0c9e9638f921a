"""What a job said: log lines, metric points, progress, events; as pages or as live streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from services.api import actions
from services.api.asked import EventsAsked, LinesAsked, PointsAsked
from services.api.following import End
from services.api.rest import sse
from services.api.rest.answers import answer
from services.api.rest.openapi import ok
from services.api.rest.permissions import Reader, Uses
from services.api.shapes import JobJson, LinesJson, MetricsJson, ProgressJson
from services.api.writing import end_json, event_json, line_json, point_json
from services.core.domain.job import Event
from services.core.ports.metric_store import StoredLine, StoredPoint

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["telemetry"])

Follow = Annotated[bool | None, Field(description="Stream (SSE), as with Accept: text/event-stream")]
_SSE: Final = {"text/event-stream": {"schema": {"type": "string"}}}


class LinesQuery(LinesAsked):
    follow: Follow = None


class PointsQuery(PointsAsked):
    follow: Follow = None
    series: bool = False


@router.get("/logs", **ok(LinesJson, "Lines, oldest first; or a stream of them"))
async def get_logs(
    uses: Uses, who: Reader, request: Request, job_id: str, asked: Annotated[LinesQuery, Query()]
) -> Response:
    if not sse.wanted(request, follow=asked.follow):
        return answer(await actions.get_logs(uses, who, job_id, asked))
    resumed = sse.resumed_at(request, asked.after)
    return sse.streamed(
        request, uses, _line_frames(await actions.follow_logs(uses, who, job_id, asked, resumed=resumed))
    )


@router.get("/metrics", **ok(MetricsJson, "Points in order, or curves; or a stream of points"))
async def get_metrics(
    uses: Uses, who: Reader, request: Request, job_id: str, asked: Annotated[PointsQuery, Query()]
) -> Response:
    if asked.series:
        return answer(await actions.get_series(uses, who, job_id, asked))
    if not sse.wanted(request, follow=asked.follow):
        return answer(await actions.get_metrics(uses, who, job_id, asked))
    resumed = sse.resumed_at(request, asked.after)
    return sse.streamed(
        request, uses, _point_frames(await actions.follow_metrics(uses, who, job_id, asked, resumed=resumed))
    )


@router.get("/progress", **ok(ProgressJson, "How far it is"))
async def get_progress(uses: Uses, who: Reader, job_id: str) -> Response:
    return answer(await actions.get_progress(uses, who, job_id))


@router.get("/events", responses={200: {"description": "A stream of history and of changes", "content": _SSE}})
async def get_events(
    uses: Uses, who: Reader, request: Request, job_id: str, asked: Annotated[EventsAsked, Query()]
) -> Response:
    resumed = EventsAsked(after=sse.resumed_at(request, asked.after))
    return sse.streamed(request, uses, _event_frames(await actions.follow_events(uses, who, job_id, resumed)))


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
