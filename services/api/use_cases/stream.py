"""One live stream for each page of the dashboard: changes of the list, histories, points and lines, in one connection.

Each part continues after its own place. The places of all parts together are the id of every event, so a page that
connects again misses nothing and gets nothing twice, but for the list: its last changes come again, and its log is in
the memory of one process (``job_changes``). Where that does not reach back, ``ready`` says that the list must be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, TypeVar

from pydantic import Field

from services.api.access import Principal
from services.api.answers import Answer, doc
from services.api.clients import Summary
from services.api.event_loop import Turns
from services.api.job_answer import Job, JobEvent
from services.api.job_changes import Change, JobChanges
from services.api.job_filter import JobFilter, parse_filter
from services.api.params import END_OF_SEQ, Params, wrong_parameter
from services.api.services import ApiServices
from services.api.use_cases import telemetry
from services.api.use_cases.telemetry import EventsParams, JobEnd, JobLine, JobPoint, LinesParams, PointsParams
from services.core.domain.errors import FieldError, InvalidRequest, NotFound, Quarantined, Unavailable
from services.core.domain.ids import is_id

_Stored = TypeVar("_Stored", JobPoint, JobLine)
_GATHER_S: Final = 0.2
"""Changes of the list are sent at most so often to one page."""
_RETRY_S: Final = 0.5
_DAMAGED_RETRY_S: Final = 5.0
_PLACE: Final = re.compile(r"([chpl]\d{0,2})-(\d{1,19})")
_PART: Final = re.compile(r"(j[0-9a-z]{22})(?::(\d{1,16}))?")


class StreamParams(Params):
    """What a page shows live."""

    listing: bool = Field(default=False, alias="list", description="Changes of jobs.")
    tenant: str | None = Field(
        default=None, description="Tenant whose jobs are listed; default: the caller's. Admins: any, or * for all."
    )
    q: str | None = Field(
        default=None,
        description="Only changes of jobs that match this filter. Metrics are not compared: a job that they would "
        "decide counts as matching.",
    )
    job: list[str] | None = Field(default=None, max_length=20, description="Id of a job: its history and its changes.")
    points: list[str] | None = Field(
        default=None, max_length=20, description="Id of a job, or ID:SEQ: its points after SEQ; default: from now on."
    )
    name: list[str] | None = Field(
        default=None, max_length=telemetry.MOST_NAMES, description="Only points of metrics of these names."
    )
    lines: list[str] | None = Field(
        default=None, max_length=4, description="Id of a job, or ID:SEQ: its log lines after SEQ; default: from now on."
    )


class StreamReady(Answer):
    """The first event."""

    resumed: Annotated[bool, doc("False: read the list (again) now.")]


class StreamStart(Answer):
    """Where the points or lines of a job begin."""

    part: Annotated[str, doc("points or lines.")]
    id: Annotated[str, doc("Id of the job.")]
    seq: Annotated[int, doc("What follows has a higher `seq`.")]


class StreamReset(Answer):
    """Changes of the list were missed: read it again."""


class StreamLeft(Answer):
    """A job that is not listed any more."""

    id: Annotated[str, doc("Id of the job.")]


class StreamHistory(Answer):
    """An entry of a job's history."""

    id: Annotated[str, doc("Id of the job.")]
    event: Annotated[JobEvent, doc("The entry.")]


class StreamPoints(Answer):
    """New points of a job."""

    id: Annotated[str, doc("Id of the job.")]
    points: Annotated[Sequence[JobPoint], doc("The points in the order in which they were stored.")]


class StreamLines(Answer):
    """New log lines of a job."""

    id: Annotated[str, doc("Id of the job.")]
    lines: Annotated[Sequence[JobLine], doc("The lines, oldest first.")]


class StreamEnd(Answer):
    """All of a part was sent and the job is at rest. The stream goes on; the part does if the job is resumed."""

    part: Annotated[str, doc("job, points or lines.")]
    end: Annotated[JobEnd, doc("How the job ended.")]


class StreamDamaged(Answer):
    """The stored data of a part cannot be read. It is tried again; the other parts go on."""

    part: Annotated[str, doc("job, points or lines.")]
    id: Annotated[str, doc("Id of the job.")]
    message: Annotated[str, doc("What is damaged.")]


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event, and where its reader continues."""

    name: str
    data: Answer | str
    """Text is JSON already."""
    places: str
    """The event's id."""


@dataclass(frozen=True, slots=True)
class _Item:
    """An event of one part. ``place``: of the part, after the event; None: unchanged."""

    name: str
    data: Answer | str
    place: int | None = None


_Items = AsyncGenerator[_Item]


async def follow_page(
    services: ApiServices, principal: Principal, params: StreamParams, *, resumed: str | None
) -> AsyncGenerator[StreamEvent]:
    """Events of all parts, ``ready`` first. ``resumed``: the id of the last event that the page has.

    Raises before the stream begins: InvalidRequest, NotFound, PermissionDenied.
    """
    places = _places(resumed)
    parts: dict[str, _Items] = {}
    for number, job_id in enumerate(params.job or ()):
        await _check_visible(services, principal, job_id)
        begin = partial(_job, services, principal, job_id)
        parts[f"h{number}"] = _outliving_damage(
            services, principal, "job", job_id, after=places.get(f"h{number}"), begin=begin
        )
    for parameter, texts, part in (("points", params.points, _points), ("lines", params.lines, _lines)):
        kind = parameter[0]
        for number, text in enumerate(texts or ()):
            job_id, after = _job_and_seq(parameter, text)
            await _check_visible(services, principal, job_id)
            after = places.get(f"{kind}{number}", after)
            begin = partial(part, services, principal, params, job_id)
            parts[f"{kind}{number}"] = _outliving_damage(
                services, principal, parameter, job_id, after=after, begin=begin
            )
    tenant = principal.listed_tenant(params.tenant)
    listing = _list(services, tenant, parse_filter(params.q), places.get("c")) if params.listing else None
    return _events(parts, listing, dict(places), resumed=resumed is not None)


async def _events(
    parts: Mapping[str, _Items],
    listing: _Items | None,
    places: dict[str, int],
    *,
    resumed: bool,
) -> AsyncGenerator[StreamEvent]:
    ready = _Item("ready", StreamReady(resumed=resumed))
    every = {**parts, **({"c": listing} if listing is not None else {})}
    try:
        if listing is not None:
            ready = await anext(listing)
        if ready.place is not None:
            places["c"] = ready.place
        yield StreamEvent(ready.name, ready.data, _id_of(places))
        async with aclosing(_merged(every)) as items:
            async for part, item in items:
                if item.place is not None:
                    places[part] = item.place
                yield StreamEvent(item.name, item.data, _id_of(places))
    finally:
        for items_of_part in every.values():
            await items_of_part.aclose()


async def _merged(parts: Mapping[str, _Items]) -> AsyncGenerator[tuple[str, _Item]]:
    """The items of all parts as they come, until a part raises. A slow reader slows every part."""
    queue: asyncio.Queue[tuple[str, _Item]] = asyncio.Queue(maxsize=1)

    async def read(name: str, part: _Items) -> None:
        async with aclosing(part):
            async for item in part:
                await queue.put((name, item))

    running = {asyncio.create_task(read(name, part)) for name, part in parts.items()}
    getting = asyncio.create_task(queue.get())
    try:
        while True:
            await asyncio.wait({getting, *running}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                item, getting = getting.result(), asyncio.create_task(queue.get())
                yield item
                continue
            ended = {task for task in running if task.done()}
            for task in ended:
                task.result()
            running -= ended
    finally:
        getting.cancel()
        for task in running:
            task.cancel()
        await asyncio.wait({getting, *running})


async def _list(services: ApiServices, tenant: str | None, chosen: JobFilter | None, position: int | None) -> _Items:
    """``ready``, then the changes of jobs of the tenant (None: of all tenants) that match."""

    def listed(change: Change) -> bool:
        job = None if change.deleted or chosen is None else change.job
        matches = chosen is None or job is None or chosen.match(job, None, now=services.jobs.now()) is not False
        return not change.deleted and matches

    async with services.watcher.follow_all() as changes:
        place = changes.place_of(position) if position is not None else None
        yield _Item("ready", StreamReady(resumed=place is not None), changes.position if place is None else None)
        place = changes.number if place is None else place
        while True:
            changed = changes.changed
            place, items = await _batch(changes, place, tenant, listed)
            for item in items:
                yield item
            if items:
                await asyncio.sleep(_GATHER_S)
            else:
                await changed.wait()


async def _batch(
    changes: JobChanges, place: int, tenant: str | None, listed: Callable[[Change], bool]
) -> tuple[int, list[_Item]]:
    """The next place and the events of a page. The last one has the position, so that a page that is cut off in between
    gets all of them again.
    """
    batch = changes.after(place)
    items = [_Item("reset", StreamReset())] if batch.missed else []
    turns = Turns()
    for change in batch.changes:
        if tenant is None or change.tenant == tenant:
            await turns.let_others_run()
            left = StreamLeft(id=change.job_id)
            items.append(_Item("job", change.data) if listed(change) else _Item("left", left))
    if items:
        last = items[-1]
        items[-1] = _Item(last.name, last.data, batch.position)
    return batch.place, items


async def _check_visible(services: ApiServices, principal: Principal, job_id: str) -> None:
    """Raises NotFound for a job that the caller may not read. A damaged one is reported in the stream."""
    with contextlib.suppress(Quarantined):
        await services.jobs.get(principal, job_id)


async def _outliving_damage(
    services: ApiServices,
    principal: Principal,
    part: str,
    job_id: str,
    *,
    after: int | None,
    begin: Callable[[int | None], _Items],
) -> _Items:
    """The items of a part of one job. Damaged data of this job is an item, and ends no other part.

    ``begin``: the part from a place on. It begins again after the last item as soon as the data can be read.
    """
    while True:
        try:
            async with aclosing(begin(after)) as items:
                async for item in items:
                    after = after if item.place is None else item.place
                    yield item
            return
        except Quarantined as damage:
            message = damage.message
        except NotFound:  # deleted meanwhile
            break
        yield _Item("damaged", StreamDamaged(part=part, id=job_id, message=message))
        await _until_readable(services, principal, part, job_id)
    if part == "job":
        yield _Item("left", StreamLeft(id=job_id))


async def _until_readable(services: ApiServices, principal: Principal, part: str, job_id: str) -> None:
    """Waits until the job and, for points and lines, its metrics can be read, or the job is deleted."""
    while True:
        await asyncio.sleep(_DAMAGED_RETRY_S)
        try:
            await services.jobs.get(principal, job_id)
            if part != "job":
                await services.telemetry.summary(job_id)
        except (Quarantined, Unavailable):
            continue
        except NotFound:
            pass
        return


async def _job(services: ApiServices, principal: Principal, job_id: str, after: int | None) -> _Items:
    """History and changes of a job until it is deleted. One at rest may be resumed, and a HALTED one killed."""
    events = await telemetry.follow_events(services, principal, job_id, EventsParams(after=after), beyond_end=True)
    async with aclosing(events):
        async for event in events:
            if isinstance(event, JobEvent):
                yield _Item("history", StreamHistory(id=job_id, event=event), event.seq)
            elif isinstance(event, Job):
                yield _Item("job", event)
            elif not event.deleted:
                yield _Item("end", StreamEnd(part="job", end=event))
    yield _Item("left", StreamLeft(id=job_id))


def _points(
    services: ApiServices, principal: Principal, params: StreamParams, job_id: str, after: int | None
) -> _Items:
    wanted = PointsParams(name=params.name)
    return _followed(
        services,
        principal,
        "points",
        job_id,
        after,
        count=lambda summary: summary.points,
        follow=lambda last: telemetry.follow_metrics(services, principal, job_id, wanted, resumed=last),
        event=lambda batch: StreamPoints(id=job_id, points=batch),
    )


def _lines(
    services: ApiServices, principal: Principal, _params: StreamParams, job_id: str, after: int | None
) -> _Items:
    return _followed(
        services,
        principal,
        "lines",
        job_id,
        after,
        count=lambda summary: summary.lines,
        follow=lambda last: telemetry.follow_logs(services, principal, job_id, LinesParams(), resumed=last),
        event=lambda batch: StreamLines(id=job_id, lines=batch),
    )


async def _followed(
    services: ApiServices,
    principal: Principal,
    part: str,
    job_id: str,
    after: int | None,
    *,
    count: Callable[[Summary], int],
    follow: Callable[[int], Awaitable[AsyncGenerator[Sequence[_Stored] | JobEnd]]],
    event: Callable[[Sequence[_Stored]], Answer],
) -> _Items:
    """Points or lines of a job, also after it was at rest and was resumed."""
    if after is None:
        after = await _count(services, job_id, count)
    yield _Item("start", StreamStart(part=part, id=job_id, seq=after), after)
    ended: JobEnd | None = None
    while True:
        # Read first: an attempt that begins and ends while nothing looks is another one than this.
        attempt = (await services.jobs.get(principal, job_id)).attempt.number
        batches = await follow(after)
        async with aclosing(batches):
            async for batch in batches:
                if isinstance(batch, JobEnd):
                    if batch != ended:
                        yield _Item("end", StreamEnd(part=part, end=batch))
                    ended = batch
                elif batch:
                    after, ended = batch[-1].seq, None
                    yield _Item(part, event(batch), after)
        if not await _resumed(services, principal, job_id, attempt):
            return


async def _resumed(services: ApiServices, principal: Principal, job_id: str, attempt: int) -> bool:
    """Waits until a job that is at rest after an attempt goes on. False: it was deleted."""
    try:
        await services.following.until_resumed(await services.jobs.get(principal, job_id), attempt=attempt)
    except NotFound:
        return False
    return True


async def _count(services: ApiServices, job_id: str, count: Callable[[Summary], int]) -> int:
    """How many there are now. Waits while the metrics service is away."""
    while True:
        try:
            return count(await services.telemetry.summary(job_id))
        except Unavailable:
            await asyncio.sleep(_RETRY_S)


def _job_and_seq(parameter: str, text: str) -> tuple[str, int | None]:
    match = _PART.fullmatch(text)
    after = int(match[2]) if match is not None and match[2] else None
    if match is None or not is_id(match[1], "j") or (after or 0) >= END_OF_SEQ:
        raise wrong_parameter(parameter, "a part is the id of a job, or ID:SEQ")
    return match[1], after


def _id_of(places: Mapping[str, int]) -> str:
    return ".".join(f"{part}-{place}" for part, place in places.items()) or "c-0"


def _places(text: str | None) -> dict[str, int]:
    """The places of an event's id. Raises InvalidRequest for any other text."""
    places: dict[str, int] = {}
    for part in (text or "").split(".") if text else ():
        match = _PLACE.fullmatch(part)
        if match is None or int(match[2]) >= END_OF_SEQ or len(places) > 50:
            message = "Last-Event-ID is the id of an event of this stream"
            raise InvalidRequest(message, errors=(FieldError("/header/last-event-id", message),))
        places[match[1]] = int(match[2])
    return places
