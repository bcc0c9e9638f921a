"""What a job reported: progress, log lines, metric points; as pages or as live streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Final, Literal, overload

from msgspec import UNSET, structs
from pydantic import Field

from services.api.access import Principal
from services.api.answers import Answer, Time, as_time, doc, number
from services.api.following import Changed, End
from services.api.job_answer import Job, JobEvent, event_answer, job_answer
from services.api.params import END_OF_SEQ, Params, Seq, Small, Step, unix_ms, wrong_parameter
from services.api.services import ApiServices
from services.api.usage import LearnerUsage, usage_answer
from services.core.domain.errors import Unavailable
from services.core.domain.job import Event
from services.core.domain.job import Job as StoredJob
from services.core.domain.status import Status
from services.core.ports.metric_store import LineQuery, PointQuery, StoredLine, StoredPoint

_SEARCH_CHECK_S = 2.0
MOST_NAMES: Final = 1_000
"""Metrics that a request names."""
_FETCHED = frozenset({Status.PENDING, Status.DOWNLOADING, Status.PROCESSING})
"""Statuses in which helpers may fetch; a learner that is started again fetches while others run."""


class LinesParams(Params):
    """Which log lines to get."""

    after: Seq = Field(default=None, description="Only lines after the line with this `seq`.")
    before: Seq = Field(default=None, description="Only lines before the line with this `seq`.")
    order: Literal["stored", "time"] | None = Field(
        default=None,
        description="stored (the default): in order of `seq`, as they arrived. time: in the order of their times, over "
        "all learners; not for a stream. `after` and `before` name lines in this order.",
    )
    limit: int = Field(default=1000, ge=1, le=10_000, description="Most lines in the answer.")
    rank: Small = Field(default=None, description="Only lines of the learner with this rank in its role.")
    role: str | None = Field(default=None, description="Only lines of learners with this role.")
    attempt: Small = Field(default=None, description="Only lines of this attempt.")
    stream: str | None = Field(default=None, description="Only lines of this stream, e.g. stdout or stderr.")
    since: str | None = Field(default=None, description="Only lines from this time on (RFC 3339).")
    until: str | None = Field(default=None, description="Only lines up to this time (RFC 3339).")
    search: str | None = Field(
        default=None, max_length=1000, description="Only lines in which this regular expression (RE2) matches."
    )
    tail: int | None = Field(
        default=None, ge=0, le=10_000, description="Only the last lines, this many of those that match."
    )


class PointsParams(Params):
    """Which metric points to get."""

    after: Seq = Field(default=None, description="Only points with a higher `seq`.")
    limit: int = Field(default=10_000, ge=1, le=50_000, description="Most points in the answer.")
    name: list[str] | None = Field(
        default=None,
        max_length=MOST_NAMES,
        description="Only metrics of these names; repeat it for several, at most 1000. Default: all that the training "
        "reports. Usage of the hardware has the names system/cpu (cores), system/memory (bytes), system/gpu (GPUs in "
        "use) and system/gpu_memory (bytes), and the label weft=usage.",
    )
    rank: Small = Field(default=None, description="Only points of the learner with this rank in its role.")
    attempt: Small = Field(default=None, description="Only points of this attempt.")
    max_points: int | None = Field(
        default=None,
        ge=2,
        le=100_000,
        description="Roughly the most points of each curve; minima and maxima are kept. Only for curves; default 1000.",
    )
    from_step: Step = Field(default=None, description="Only points of this step or a later one.")
    to_step: Step = Field(default=None, description="Only points of this step or an earlier one.")
    since: str | None = Field(default=None, description="Only points from this time on (RFC 3339).")
    until: str | None = Field(default=None, description="Only points up to this time (RFC 3339).")


class EventsParams(Params):
    """Where a stream of events begins."""

    after: Seq = Field(default=None, description="Only events with a higher `seq`.")


class JobLine(Answer):
    """A stored log line."""

    seq: Annotated[int, doc("Counts the lines of the job from 1.")]
    time: Annotated[Time, doc("When the helper read it.")]
    attempt: Annotated[int, doc("Number of the attempt that wrote it.")]
    role: Annotated[str, doc("Role of the learner that wrote it.")]
    rank: Annotated[int, doc("Rank of the learner in its role.")]
    run: Annotated[int, doc("Counts the starts of the learner's process within the attempt, from 1.")]
    stream: Annotated[str, doc("stdout, stderr or the name of a log file.")]
    text: Annotated[str, doc("The line without its newline.")]
    partial: Annotated[bool, doc("The line continues in the next one: it was too long.")]


class GetLogsReply(Answer):
    """A page of log lines, oldest first."""

    lines: Annotated[list[JobLine], doc("Lines of this page.")]
    next: Annotated[int, doc("Send it as `after` to get the next page.")]
    more: Annotated[bool, doc("There are more lines beyond this page.")]
    previous: Annotated[
        int | None, doc("With `tail`: send it as `before` to get the lines before these; null if there are none.")
    ]
    partial: Annotated[
        bool,
        doc("The search reached its time limit before its end: continue at `next`, with `tail` at `previous`."),
    ]


class JobPoint(Answer):
    """A stored metric point."""

    seq: Annotated[int, doc("Counts the points of the job from 1.")]
    time: Annotated[Time, doc("When it was measured.")]
    attempt: Annotated[int, doc("Number of the attempt that wrote it.")]
    role: Annotated[str, doc("Role of the learner that wrote it.")]
    rank: Annotated[int, doc("Rank of the learner in its role.")]
    run: Annotated[int, doc("Counts the starts of the learner's process within the attempt, from 1.")]
    source: Annotated[str, doc("Name of the file that it was read from.")]
    name: Annotated[str, doc("Name of the metric.")]
    step: Annotated[int | None, doc("Training step; null if none was given.")]
    value: Annotated[float | str, doc('A number; "NaN", "Infinity" or "-Infinity" if it is not finite.')]
    context: Annotated[dict[str, str], doc("Labels that the training gave it.")]


class GetMetricsReply(Answer):
    """A page of metric points in the order in which they were stored."""

    points: Annotated[list[JobPoint], doc("Points of this page.")]
    next: Annotated[int, doc("Send it as `after` to get the next page.")]
    more: Annotated[bool, doc("There are more points beyond this page.")]


class JobSeries(Answer):
    """A curve in columns; item n of each column belongs to point n."""

    name: Annotated[str, doc("Name of the metric.")]
    context: Annotated[dict[str, str], doc("Labels that the training gave it.")]
    role: Annotated[str, doc("Role of the learner that wrote it.")]
    rank: Annotated[int, doc("Rank of the learner in its role.")]
    steps: Annotated[list[int | None], doc("Training steps; null where none was given.")]
    values: Annotated[list[float | str], doc('Numbers; "NaN", "Infinity" or "-Infinity" where not finite.')]
    times: Annotated[list[Time], doc("When each point was measured.")]
    attempts: Annotated[list[int], doc("Number of the attempt that wrote each point.")]


class GetSeriesReply(Answer):
    """Curves, one for each metric, context, role and rank."""

    series: Annotated[list[JobSeries], doc("Curves in the order of their first points.")]
    through: Annotated[int, doc("Follow the points after this `seq`: the curves lack none before it.")]


class JobFetching(Answer):
    """A step of the start-up that is carried out for a learner now."""

    learner: Annotated[str, doc("Name of the learner, e.g. worker-0.")]
    step: Annotated[str, doc("code, data, environment or checkpoint.")]
    began: Annotated[Time, doc("When the step began.")]
    message: Annotated[str, doc("The current activity, in words.")]
    done_bytes: Annotated[int | None, doc("Bytes that are there; null if the activity counts none.")]
    total_bytes: Annotated[int | None, doc("Bytes in all, an estimate for environments; null if unknown.")]


class JobBar(Answer):
    """A progress bar that a learner draws."""

    learner: Annotated[str, doc("Name of the learner, e.g. worker-0.")]
    text: Annotated[str, doc("The bar as it was within the last seconds.")]


class JobProgress(Answer):
    """How far a job is."""

    status: Annotated[str, doc("Status of the job.")]
    progress: Annotated[float | None, doc("Share of the training that is done, 0 to 1; null if unknown.")]
    eta_ms: Annotated[int | None, doc("Milliseconds until the training ends, as estimated; null if unknown.")]
    lines: Annotated[int, doc("Log lines that are stored.")]
    points: Annotated[int, doc("Metric points that are stored.")]
    latest: Annotated[dict[str, JobPoint], doc("The last point of each metric, by its name.")]
    fetching: Annotated[
        list[JobFetching],
        doc("What is fetched for its learners now, by learner; at most 100. Empty once they run."),
    ]
    usage: Annotated[
        list[LearnerUsage], doc("What each learner of the newest attempt uses; empty until it was measured.")
    ]
    bars: Annotated[
        list[JobBar], doc("Progress bars that learners draw with carriage returns now, by learner; at most 100.")
    ]


class LogStart(Answer):
    """The first item of a live stream of lines that was requested with ``start``."""

    seq: Annotated[int, doc("What follows has a higher `seq`.")]


class JobEnd(Answer):
    """The last item of a live stream: the job is at rest, and all that is stored was sent."""

    id: Annotated[str, doc("Id of the job.")]
    status: Annotated[str, doc("Its status; empty if the job no longer exists.")]
    reason: Annotated[str, doc("Stable code of why it has this status; may be empty.")]
    message: Annotated[str, doc("The reason in words; may be empty.")]
    exit_code: Annotated[int | None, doc("Exit code of the learner that decided the end; null if there is none.")]
    at_rest: Annotated[bool, doc("It has released all of its hardware.")]
    deleted: Annotated[bool, doc("It was deleted.")]


async def get_progress(services: ApiServices, principal: Principal, job_id: str) -> JobProgress:
    """How far the job is."""
    job = await services.jobs.get(principal, job_id)
    summary = await services.telemetry.summary(job_id)
    return JobProgress(
        status=job.status.value,
        progress=summary.progress,
        eta_ms=summary.eta_ms,
        lines=summary.lines,
        points=summary.points,
        latest={name: _point(point) for name, point in summary.latest.items()},
        fetching=[
            JobFetching(
                learner=entry.learner,
                step=entry.step,
                began=as_time(entry.began),
                message=entry.message,
                done_bytes=entry.done,
                total_bytes=entry.total,
            )
            for entry in summary.fetching
            if job.status in _FETCHED and entry.attempt == job.attempt.number
        ],
        usage=usage_answer(summary.usage),
        bars=[
            JobBar(learner=bar.learner, text=bar.text)
            for bar in summary.bars
            if job.status is Status.PROCESSING and bar.attempt == job.attempt.number
        ],
    )


async def get_logs(services: ApiServices, principal: Principal, job_id: str, params: LinesParams) -> GetLogsReply:
    """A page of log lines. Raises NotFound, InvalidRequest, Unavailable while the metrics service is away,
    ResourceExhausted for a search of a tenant that has searched too much.
    """
    job = await services.jobs.get(principal, job_id)
    limit = params.limit if params.tail is None else max(params.tail, 1)
    query = _line_query(params)
    with services.searches.searching(job.tenant) if query.search is not None else contextlib.nullcontext():
        page = await services.telemetry.lines(job_id, query, limit=limit)
    lines, through, partial = page.lines, page.through, page.stopped_at is not None
    if query.by_time or (partial and query.tail is None):
        more = page.more
    else:
        # Only a page that was cut ends with its last line; there may still be nothing beyond it.
        more = bool(lines) and through == lines[-1].seq and (await services.telemetry.summary(job_id)).lines > through
    previous: int | None = None
    if query.tail is not None and partial:
        previous = page.stopped_at
    elif query.tail is not None and lines and page.more:
        previous = lines[0].seq
    return GetLogsReply(
        lines=[_line(line) for line in lines], next=through, more=more, previous=previous, partial=partial
    )


@overload
async def follow_logs(
    services: ApiServices, principal: Principal, job_id: str, params: LinesParams, *, resumed: int | None
) -> AsyncGenerator[Sequence[JobLine] | JobEnd]: ...
@overload
async def follow_logs(
    services: ApiServices, principal: Principal, job_id: str, params: LinesParams, *, resumed: int | None, start: bool
) -> AsyncGenerator[LogStart | Sequence[JobLine] | JobEnd]: ...
async def follow_logs(
    services: ApiServices,
    principal: Principal,
    job_id: str,
    params: LinesParams,
    *,
    resumed: int | None,
    start: bool = False,
) -> AsyncGenerator[LogStart | Sequence[JobLine] | JobEnd] | AsyncGenerator[Sequence[JobLine] | JobEnd]:
    """Batches of lines as they are stored, then the end. ``resumed``: the last ``seq`` that the reader has; it replaces
    ``tail``. ``start``: first an item that says where the stream begins, so that a reader that is cut off before the
    first line can continue there. Raises before the stream begins: NotFound, InvalidRequest.
    """
    job = await services.jobs.get(principal, job_id)
    if params.order == "time":
        raise wrong_parameter("order", "a stream is in the order in which lines are stored")
    query = _line_query(params)
    if resumed is not None:
        query = replace(query, after_seq=resumed, tail=None)
    await _check_search(services, job_id, query)
    return _with_start(services, job, query) if start else _line_batches(services.following.lines(job, query))


async def download_logs(
    services: ApiServices, principal: Principal, job_id: str, params: LinesParams
) -> AsyncGenerator[Sequence[JobLine]]:
    """All lines that match and are stored now, in batches. Raises before the first one: NotFound, InvalidRequest."""
    job = await services.jobs.get(principal, job_id)
    if params.tail is not None:
        raise wrong_parameter("tail", "a file has all lines that match")
    query = _line_query(params)
    await _check_search(services, job_id, query)
    return _stored_batches(services.following.stored_lines(job, query))


async def get_metrics(
    services: ApiServices, principal: Principal, job_id: str, params: PointsParams
) -> GetMetricsReply:
    """A page of metric points. Raises NotFound, Unavailable while the metrics service is away."""
    await services.jobs.get(principal, job_id)
    points, through = await services.telemetry.points(job_id, _point_query(params), limit=params.limit)
    more = bool(points) and through == points[-1].seq and (await services.telemetry.summary(job_id)).points > through
    return GetMetricsReply(points=[_point(point) for point in points], next=through, more=more)


async def get_series(services: ApiServices, principal: Principal, job_id: str, params: PointsParams) -> GetSeriesReply:
    """Curves. Raises NotFound, Unavailable while the metrics service is away."""
    await services.jobs.get(principal, job_id)
    points, through = await services.telemetry.series(job_id, _point_query(params))
    return GetSeriesReply(series=_curves(points), through=through)


async def follow_metrics(
    services: ApiServices, principal: Principal, job_id: str, params: PointsParams, *, resumed: int | None
) -> AsyncGenerator[Sequence[JobPoint] | JobEnd]:
    """Batches of points as they are stored, then the end. ``resumed``: the last ``seq`` that the reader has."""
    job = await services.jobs.get(principal, job_id)
    query = replace(_point_query(params), after_seq=resumed or 0)
    return _point_batches(services.following.points(job, query))


async def follow_events(
    services: ApiServices, principal: Principal, job_id: str, params: EventsParams, *, beyond_end: bool = False
) -> AsyncGenerator[JobEvent | Job | JobEnd]:
    """History as it is written, the job without its spec after each visible change, then the end.

    ``beyond_end``: goes on until the job is deleted, also while it is at rest.
    """
    job = await services.jobs.get(principal, job_id)
    return _events(services.following.events(job, after_seq=params.after or 0, beyond_end=beyond_end))


async def _with_start(
    services: ApiServices, job: StoredJob, query: LineQuery
) -> AsyncGenerator[LogStart | Sequence[JobLine] | JobEnd]:
    query = await services.following.without_tail(job, query)
    yield LogStart(seq=query.after_seq)
    async with aclosing(_line_batches(services.following.lines(job, query))) as batches:
        async for batch in batches:
            yield batch


async def _line_batches(
    batches: AsyncGenerator[Sequence[StoredLine] | End],
) -> AsyncGenerator[Sequence[JobLine] | JobEnd]:
    async with aclosing(batches):
        async for batch in batches:
            yield _end(batch) if isinstance(batch, End) else [_line(line) for line in batch]


async def _stored_batches(batches: AsyncGenerator[Sequence[StoredLine]]) -> AsyncGenerator[Sequence[JobLine]]:
    async with aclosing(batches):
        async for batch in batches:
            yield [_line(line) for line in batch]


async def _point_batches(
    batches: AsyncGenerator[Sequence[StoredPoint] | End],
) -> AsyncGenerator[Sequence[JobPoint] | JobEnd]:
    async with aclosing(batches):
        async for batch in batches:
            yield _end(batch) if isinstance(batch, End) else [_point(point) for point in batch]


async def _events(items: AsyncGenerator[Event | Changed | End]) -> AsyncGenerator[JobEvent | Job | JobEnd]:
    shown: Job | None = None
    ended = False
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Event):
                yield event_answer(item)
            elif isinstance(item, End):
                if not ended or item.job is None or item.job.deleted is not None:
                    yield _end(item)
                ended = True
            else:
                job = structs.replace(job_answer(item.job), spec=UNSET)
                # Claims and trims change the document, but nothing that users see: `updated` alone is no news.
                if shown is None or structs.replace(job, updated=shown.updated) != shown:
                    shown, ended = job, False
                    yield job


def _line(stored: StoredLine) -> JobLine:
    source = stored.source
    return JobLine(
        seq=stored.seq,
        time=as_time(stored.line.time_ms),
        attempt=source.attempt,
        role=source.role,
        rank=source.rank,
        run=source.run,
        stream=stored.stream,
        text=stored.line.text,
        partial=stored.line.partial,
    )


def _point(stored: StoredPoint) -> JobPoint:
    source, point = stored.source, stored.point
    return JobPoint(
        seq=stored.seq,
        time=as_time(point.time_ms),
        attempt=source.attempt,
        role=source.role,
        rank=source.rank,
        run=source.run,
        source=source.source,
        name=point.name,
        step=point.step,
        value=number(point.value),
        context=dict(point.context),
    )


def _curves(points: Sequence[StoredPoint]) -> list[JobSeries]:
    """One curve for each (name, context, role, rank), in the order of their first points."""
    curves: dict[tuple[object, ...], JobSeries] = {}
    for stored in points:
        point, source = stored.point, stored.source
        key = (point.name, tuple(sorted(point.context.items())), source.role, source.rank)
        if key not in curves:
            curves[key] = JobSeries(
                name=point.name,
                context=dict(point.context),
                role=source.role,
                rank=source.rank,
                steps=[],
                values=[],
                times=[],
                attempts=[],
            )
        curve = curves[key]
        curve.steps.append(point.step)
        curve.values.append(number(point.value))
        curve.times.append(as_time(point.time_ms))
        curve.attempts.append(source.attempt)
    return list(curves.values())


def _end(end: End) -> JobEnd:
    job = end.job
    if job is None:
        return JobEnd(id=end.job_id, status="", reason="", message="", exit_code=None, at_rest=True, deleted=True)
    return JobEnd(
        id=job.id,
        status=job.status.value,
        reason=job.state.reason,
        message=job.state.message,
        exit_code=job.verdict.exit_code if job.verdict else None,
        at_rest=job.at_rest,
        deleted=job.deleted is not None,
    )


def _line_query(params: LinesParams) -> LineQuery:
    return LineQuery(
        by_time=params.order == "time",
        after_seq=params.after or 0,
        before_seq=params.before,
        rank=params.rank,
        role=params.role,
        attempt=params.attempt,
        stream=params.stream,
        since_ms=unix_ms("since", params.since),
        until_ms=unix_ms("until", params.until),
        search=params.search,
        tail=params.tail,
    )


def _point_query(params: PointsParams) -> PointQuery:
    return PointQuery(
        after_seq=params.after or 0,
        names=tuple(params.name or ()),
        rank=params.rank,
        attempt=params.attempt,
        max_points=params.max_points,
        from_step=params.from_step,
        to_step=params.to_step,
        since_ms=unix_ms("since", params.since),
        until_ms=unix_ms("until", params.until),
    )


async def _check_search(services: ApiServices, job_id: str, query: LineQuery) -> None:
    """Raises InvalidRequest for an invalid pattern, by a search that finds nothing. The metrics service compiles it."""
    if query.search is not None:
        try:
            async with asyncio.timeout(_SEARCH_CHECK_S):
                await services.telemetry.lines(job_id, replace(query, tail=None, after_seq=END_OF_SEQ), limit=1)
        except (Unavailable, TimeoutError):
            return
