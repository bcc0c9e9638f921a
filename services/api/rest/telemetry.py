"""What a job said: log lines, metric points, progress, events; as pages or as live streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from services.api.following import Changed, End
from services.api.gateway import Gateway
from services.api.rest import sse
from services.api.rest.answers import answer
from services.api.rest.openapi import ok
from services.api.rest.permissions import Reader, Uses
from services.api.shapes import LinesJson, MetricsJson, ProgressJson
from services.api.writing import end_json, event_json, job_json, line_json, point_json, progress_json, series_json
from services.core.domain.errors import FieldError, InvalidRequest, Unavailable
from services.core.domain.job import Event, Job
from services.core.ports.metric_store import LineQuery, PointQuery

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["telemetry"])

Seq = Annotated[int | None, Query(ge=0, lt=2**53)]
Small = Annotated[int | None, Query(ge=0, lt=2**31)]
Follow = Annotated[bool | None, Query(description="Stream (SSE), as with Accept: text/event-stream")]
_SSE: Final = {"text/event-stream": {"schema": {"type": "string"}}}


@router.get("/logs", **ok(LinesJson, "Lines, oldest first; or a stream of them"))
async def get_logs(
    uses: Uses,
    who: Reader,
    request: Request,
    job_id: str,
    after: Seq = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    rank: Small = None,
    role: str | None = None,
    attempt: Small = None,
    stream: str | None = None,
    since: str | None = None,
    until: str | None = None,
    search: Annotated[str | None, Query(max_length=1000, description="A regular expression")] = None,
    tail: Annotated[int | None, Query(ge=0, le=10_000)] = None,
    follow: Follow = None,
) -> Response:
    job = await uses.jobs.get(who, job_id)
    query = LineQuery(
        after_seq=after or 0, rank=rank, role=role, attempt=attempt, stream=stream, since_ms=_time("since", since),
        until_ms=_time("until", until), search=search, tail=tail,
    )  # fmt: skip
    if sse.wanted(request, follow=follow):
        resumed = sse.resumed_at(request, after)
        if resumed is not None:
            query = replace(query, after_seq=resumed, tail=None)
        await _check_search(uses, job_id, query)
        return sse.streamed(request, uses, _line_frames(uses, job, query))
    found, through = await uses.telemetry.lines(job_id, query, limit=limit if tail is None else max(tail, 1))
    # Only a page that was cut ends with its last line; and then there may still be nothing beyond.
    more = bool(found) and through == found[-1].seq and (await uses.telemetry.summary(job_id)).lines > through
    return answer({"lines": [line_json(one) for one in found], "next": through, "more": more})


@router.get("/metrics", **ok(MetricsJson, "Points in order, or curves; or a stream of points"))
async def get_metrics(
    uses: Uses,
    who: Reader,
    request: Request,
    job_id: str,
    after: Seq = None,
    limit: Annotated[int, Query(ge=1, le=50_000)] = 10_000,
    name: Annotated[list[str] | None, Query()] = None,
    rank: Small = None,
    attempt: Small = None,
    max_points: Annotated[int | None, Query(ge=2, le=100_000)] = None,
    follow: Follow = None,
    *,
    series: bool = False,
) -> Response:
    job = await uses.jobs.get(who, job_id)
    query = PointQuery(after_seq=after or 0, names=tuple(name or ()), rank=rank, attempt=attempt, max_points=max_points)
    if series:
        return answer({"series": series_json(await uses.telemetry.series(job_id, query))})
    if sse.wanted(request, follow=follow):
        query = replace(query, after_seq=sse.resumed_at(request, after) or 0)
        return sse.streamed(request, uses, _point_frames(uses, job, query))
    found, through = await uses.telemetry.points(job_id, query, limit=limit)
    more = bool(found) and through == found[-1].seq and (await uses.telemetry.summary(job_id)).points > through
    return answer({"points": [point_json(one) for one in found], "next": through, "more": more})


@router.get("/progress", **ok(ProgressJson, "How far it is"))
async def get_progress(uses: Uses, who: Reader, job_id: str) -> Response:
    job = await uses.jobs.get(who, job_id)
    return answer(progress_json(job, await uses.telemetry.summary(job_id)))


@router.get("/events", responses={200: {"description": "A stream of history and of changes", "content": _SSE}})
async def get_events(uses: Uses, who: Reader, request: Request, job_id: str, after: Seq = None) -> Response:
    job = await uses.jobs.get(who, job_id)
    return sse.streamed(request, uses, _event_frames(uses, job, sse.resumed_at(request, after) or 0))


async def _line_frames(uses: Gateway, job: Job, query: LineQuery) -> AsyncGenerator[bytes]:
    async with aclosing(uses.following.lines(job, query)) as batches:
        async for batch in batches:
            if isinstance(batch, End):
                yield sse.frame("end", end_json(batch.job, batch.job_id))
            else:
                yield b"".join(sse.frame("line", line_json(one), one.seq) for one in batch)


async def _point_frames(uses: Gateway, job: Job, query: PointQuery) -> AsyncGenerator[bytes]:
    async with aclosing(uses.following.points(job, query)) as batches:
        async for batch in batches:
            if isinstance(batch, End):
                yield sse.frame("end", end_json(batch.job, batch.job_id))
            else:
                yield b"".join(sse.frame("point", point_json(one), one.seq) for one in batch)


async def _event_frames(uses: Gateway, job: Job, after_seq: int) -> AsyncGenerator[bytes]:
    shown = b""
    async with aclosing(uses.following.events(job, after_seq=after_seq)) as items:
        async for item in items:
            if isinstance(item, Event):
                yield sse.frame("history", event_json(item), item.seq)
            elif isinstance(item, Changed):
                # Claims and trims change the document, and nothing that anybody is shown.
                body = job_json(item.job)
                body.pop("spec", None)
                status = sse.frame("status", body)
                same = sse.frame("status", {**body, "updated": ""})
                if same != shown:
                    shown = same
                    yield status
            else:
                yield sse.frame("end", end_json(item.job, item.job_id))


async def _check_search(uses: Gateway, job_id: str, query: LineQuery) -> None:
    """A pattern that is none is refused with a status, before the stream begins."""
    if query.search is not None:
        try:
            async with asyncio.timeout(2):
                await uses.telemetry.lines(job_id, replace(query, tail=None, after_seq=2**53), limit=1)
        except (Unavailable, TimeoutError):
            return


def _time(name: str, given: str | None) -> int | None:
    """Unix milliseconds of an RFC 3339 time; without an offset it is UTC."""
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given.replace(" ", "+"))
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        message = "a time is written as 2026-11-21T13:20:00Z"
        raise InvalidRequest(message, errors=(FieldError(f"/query/{name}", message),)) from None
