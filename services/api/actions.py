"""Everything that users can ask for, in the words in which it is answered: who asks, what is asked -> a shape.

Each function is one use case behind every door. A door (``rest``, ``grpc``) authenticates, checks the permission, reads
the request and writes the answer its own way, and decides nothing. A test compares which actions the doors call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Final

from services.api.access import PERMISSIONS, Principal
from services.api.artifacts import Artifact
from services.api.asked import (
    ArtifactsAsked,
    EventsAsked,
    HistoryAsked,
    JobsAsked,
    KeyAsked,
    LinesAsked,
    PointsAsked,
    unix_ms,
    wrong,
)
from services.api.explaining import explain_json
from services.api.following import Changed, End
from services.api.gateway import Gateway
from services.api.shapes import (
    FIELDS,
    ArtifactsJson,
    ClusterJson,
    ExplainJson,
    FrameworksJson,
    HistoryJson,
    JobJson,
    JobsJson,
    KeyJson,
    KeysJson,
    LinesJson,
    MetricsJson,
    PlanJson,
    ProgressJson,
    QuarantineJson,
    QueueJson,
    SizesJson,
    VersionJson,
    WhoJson,
)
from services.api.uploads import Upload, code_key
from services.api.writing import (
    artifact_json,
    cluster_json,
    event_json,
    framework_json,
    job_json,
    key_json,
    line_json,
    plan_json,
    point_json,
    progress_json,
    quarantine_json,
    series_json,
    size_json,
    waiting_json,
)
from services.core.domain.errors import Unavailable
from services.core.domain.ids import is_id
from services.core.domain.job import Event
from services.core.domain.sizes import SIZES
from services.core.domain.spec import JobSpec, nearest
from services.core.domain.status import Desired, Status
from services.core.frameworks import library
from services.core.ports.job_store import JobQuery
from services.core.ports.metric_store import LineQuery, PointQuery, StoredLine, StoredPoint

VERSION: Final = version("weft-platform")
CAPABILITIES: Final = (
    "artifacts.ranges", "jobs.code_digest", "jobs.dry_run", "jobs.events", "jobs.idempotency", "keys", "logs.follow",
    "logs.search", "metrics.follow", "metrics.series",
)  # fmt: skip
_MOST_WAITING: Final = 1000


@dataclass(slots=True)
class Incoming:
    """A submission as it came in: its spec read and sound, its code perhaps in the spool."""

    spec: JobSpec
    code_digest: str = ""
    upload: Upload | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to a change, and whether that was made before, under the same idempotency key."""

    answer: Any
    replayed: bool


async def submit_job(
    uses: Gateway, who: Principal, tenant: str, incoming: Incoming, *, key: str | None, trace: str
) -> Done:
    """The job's JSON with ``warnings``; it is durable, and so is its code."""
    await _code_of(uses, tenant, incoming, keep=True)
    done = await uses.submissions.submit(
        who, tenant, incoming.spec, code_digest=incoming.code_digest, key=key, trace=trace
    )
    made: JobJson = {**job_json(done.job), "warnings": list(done.warnings)}
    return Done(made, done.replayed)


async def plan_job(uses: Gateway, tenant: str, incoming: Incoming) -> PlanJson:
    """What would become of it."""
    await _code_of(uses, tenant, incoming, keep=False)
    plan = await uses.submissions.plan(tenant, incoming.spec, incoming.code_digest)
    limits = uses.settings
    return plan_json(plan, {"max_code_bytes": limits.max_code_bytes, "max_spec_bytes": limits.max_spec_bytes})


async def _code_of(uses: Gateway, tenant: str, incoming: Incoming, *, keep: bool) -> None:
    with uses.measures.counting_refused_code():
        if incoming.upload is not None:
            incoming.code_digest = (await incoming.upload.finish()).digest
            if keep:
                await uses.submissions.keep_code(incoming.upload, code_key(tenant, incoming.code_digest))
        elif incoming.code_digest and keep:
            await uses.submissions.known_code(tenant, incoming.code_digest)


async def list_jobs(uses: Gateway, who: Principal, asked: JobsAsked) -> JobsJson:
    """A page, newest first."""
    if asked.after is not None and not is_id(asked.after, "j"):
        raise wrong("after", "after is the `next` of the page before")
    query = JobQuery(
        tenant=who.listed_tenant(asked.tenant), user=asked.user, name=asked.name, tag=asked.tag, after=asked.after,
        statuses=_statuses(asked.status or []),
    )  # fmt: skip
    wanted = _fields(asked.fields)
    found, following = await uses.jobs.find(query, limit=asked.limit)
    queued = [job.id for job in found if job.status is Status.QUEUED]
    waiting = await uses.platform.waiting(queued) if queued else {}
    jobs: list[Any] = [job_json(job, waiting.get(job.id)) for job in found]
    if wanted:
        jobs = [{key: value for key, value in job.items() if key in wanted} for job in jobs]
    return {"jobs": jobs, "next": following}


async def get_job(uses: Gateway, who: Principal, job_id: str) -> JobJson:
    """With its place in the queue while it waits."""
    job = await uses.jobs.look(who, job_id)
    waiting = await uses.platform.waiting([job.id]) if job.status is Status.QUEUED else {}
    return job_json(job, waiting.get(job.id))


async def halt_job(uses: Gateway, who: Principal, job_id: str, *, generation: int | None, key: str | None) -> Done:
    """It keeps its results and checkpoint."""
    return await _wish(uses, who, job_id, Desired.HALT, generation=generation, key=key)


async def resume_job(uses: Gateway, who: Principal, job_id: str, *, generation: int | None, key: str | None) -> Done:
    """It goes on from its checkpoint."""
    return await _wish(uses, who, job_id, Desired.RUN, generation=generation, key=key)


async def kill_job(uses: Gateway, who: Principal, job_id: str, *, generation: int | None, key: str | None) -> Done:
    """Nothing is stored."""
    return await _wish(uses, who, job_id, Desired.KILL, generation=generation, key=key)


async def _wish(
    uses: Gateway, who: Principal, job_id: str, wish: Desired, *, generation: int | None, key: str | None
) -> Done:
    done = await uses.jobs.wish(who, job_id, wish, generation=generation, key=key)
    return Done(job_json(done.job), done.replayed)


async def delete_job(uses: Gateway, who: Principal, job_id: str, *, kill: bool) -> None:
    """Softly; ``kill``: first, where it is live."""
    await uses.jobs.delete(who, job_id, kill=kill)


async def get_history(uses: Gateway, who: Principal, job_id: str, asked: HistoryAsked) -> HistoryJson:
    """Oldest first."""
    events = await uses.jobs.history(who, job_id, after_seq=asked.after)
    return {"events": [event_json(event) for event in events]}


async def explain_job(uses: Gateway, who: Principal, job_id: str) -> ExplainJson:
    """Why it is as it is."""
    job = await uses.jobs.get(who, job_id)
    waiting = await uses.platform.waiting([job_id]) if job.status is Status.QUEUED else {}
    return explain_json(job, waiting.get(job_id), now=uses.jobs.now())


async def get_progress(uses: Gateway, who: Principal, job_id: str) -> ProgressJson:
    """How far it is."""
    job = await uses.jobs.get(who, job_id)
    return progress_json(job, await uses.telemetry.summary(job_id))


async def get_logs(uses: Gateway, who: Principal, job_id: str, asked: LinesAsked) -> LinesJson:
    """A page of lines."""
    await uses.jobs.get(who, job_id)
    limit = asked.limit if asked.tail is None else max(asked.tail, 1)
    found, through = await uses.telemetry.lines(job_id, _line_query(asked), limit=limit)
    # Only a page that was cut ends with its last line; and then there may still be nothing beyond.
    more = bool(found) and through == found[-1].seq and (await uses.telemetry.summary(job_id)).lines > through
    return {"lines": [line_json(one) for one in found], "next": through, "more": more}


async def follow_logs(
    uses: Gateway, who: Principal, job_id: str, asked: LinesAsked, *, resumed: int | None
) -> AsyncGenerator[Sequence[StoredLine] | End]:
    """Lines as they are stored, then the end. ``resumed``: the last one that the reader has; then no tail is given."""
    job = await uses.jobs.get(who, job_id)
    query = _line_query(asked)
    if resumed is not None:
        query = replace(query, after_seq=resumed, tail=None)
    await _check_search(uses, job_id, query)
    return uses.following.lines(job, query)


async def get_metrics(uses: Gateway, who: Principal, job_id: str, asked: PointsAsked) -> MetricsJson:
    """A page of points."""
    await uses.jobs.get(who, job_id)
    found, through = await uses.telemetry.points(job_id, _point_query(asked), limit=asked.limit)
    more = bool(found) and through == found[-1].seq and (await uses.telemetry.summary(job_id)).points > through
    return {"points": [point_json(one) for one in found], "next": through, "more": more}


async def get_series(uses: Gateway, who: Principal, job_id: str, asked: PointsAsked) -> MetricsJson:
    """Curves."""
    await uses.jobs.get(who, job_id)
    return {"series": series_json(await uses.telemetry.series(job_id, _point_query(asked)))}


async def follow_metrics(
    uses: Gateway, who: Principal, job_id: str, asked: PointsAsked, *, resumed: int | None
) -> AsyncGenerator[Sequence[StoredPoint] | End]:
    """Points as they are stored, then the end."""
    job = await uses.jobs.get(who, job_id)
    return uses.following.points(job, replace(_point_query(asked), after_seq=resumed or 0))


async def follow_events(
    uses: Gateway, who: Principal, job_id: str, asked: EventsAsked
) -> AsyncGenerator[Event | JobJson | End]:
    """History as it is written, the job without its spec at each change that shows, then the end."""
    job = await uses.jobs.get(who, job_id)
    return _events(uses.following.events(job, after_seq=asked.after or 0))


async def _events(items: AsyncGenerator[Event | Changed | End]) -> AsyncGenerator[Event | JobJson | End]:
    shown: Mapping[str, Any] = {}
    async with aclosing(items):
        async for item in items:
            if not isinstance(item, Changed):
                yield item
                continue
            # Claims and trims change the document, and nothing that anybody is shown.
            body = job_json(item.job)
            body.pop("spec", None)
            same = {**body, "updated": ""}
            if same != shown:
                shown = same
                yield body


async def list_artifacts(uses: Gateway, who: Principal, job_id: str, asked: ArtifactsAsked) -> ArtifactsJson:
    """A page of files, by path."""
    job = await uses.jobs.get(who, job_id)
    prefix = asked.prefix
    if asked.attempt is not None and not prefix:
        prefix = f"attempts/{asked.attempt}/"
    if prefix and not (prefix.startswith("attempts/") and prefix.endswith("/")):
        raise wrong("prefix", "a prefix begins with attempts/ and ends with /")
    found, following = await uses.artifacts.list(job, prefix=prefix, after=asked.after, limit=asked.limit)
    return {"artifacts": [artifact_json(one) for one in found], "next": following}


async def get_artifact(uses: Gateway, who: Principal, job_id: str, path: str) -> Artifact:
    """One file; its bytes come from ``uses.artifacts.read``."""
    return await uses.artifacts.find(await uses.jobs.get(who, job_id), path)


def whoami(who: Principal) -> WhoJson:
    """The key's holder."""
    return {
        "user": who.user,
        "tenant": who.tenant,
        "scope": who.scope,
        "key_id": who.key_id,
        "permissions": sorted(PERMISSIONS[who.scope]),
    }


async def list_keys(uses: Gateway, who: Principal) -> KeysJson:
    """One's own; an admin's answer has everybody's."""
    return {"keys": [key_json(key) for key in await uses.keys.list(who)]}


async def create_key(uses: Gateway, who: Principal, asked: KeyAsked, *, key: str | None) -> Done:
    """The new key with its text, which is shown this once (and to retries under the same idempotency key)."""
    made = await uses.keys.create(
        who, name=asked.name, user=asked.user, tenant=asked.tenant, scope=asked.scope, idempotency_key=key
    )
    shown: KeyJson = {**key_json(made.key), "key": made.text}
    return Done(shown, made.replayed)


async def revoke_key(uses: Gateway, who: Principal, key_id: str) -> None:
    """It no longer works."""
    await uses.keys.revoke(who, key_id)


def get_version() -> VersionJson:
    """What this service is and can."""
    return {"version": VERSION, "api": "v1", "capabilities": list(CAPABILITIES)}


async def get_queue(uses: Gateway, who: Principal, tenant: str | None) -> QueueJson:
    """Jobs that wait, first in line first."""
    query = JobQuery(tenant=who.listed_tenant(tenant), statuses=(Status.QUEUED,))
    jobs = await uses.jobs.waiting(query, limit=_MOST_WAITING)
    waiting = await uses.platform.waiting() if jobs else {}
    shown = [waiting_json(job, waiting.get(job.id)) for job in jobs]
    shown.sort(key=lambda one: one.get("position", 2**31))
    return {"waiting": shown}


async def get_cluster(uses: Gateway, who: Principal, tenant: str | None) -> ClusterJson:
    """Nodes, and what is in use."""
    return cluster_json(await uses.platform.cluster(who.listed_tenant(tenant)))


def get_frameworks() -> FrameworksJson:
    """What a spec's ``framework`` may name."""
    return {"frameworks": [framework_json(entry) for entry in library()]}


def get_sizes() -> SizesJson:
    """What ``resources.size`` may name."""
    return {"sizes": [{"name": name, **size_json(size)} for name, size in SIZES.items()]}


def _line_query(asked: LinesAsked) -> LineQuery:
    return LineQuery(
        after_seq=asked.after or 0, rank=asked.rank, role=asked.role, attempt=asked.attempt, stream=asked.stream,
        since_ms=unix_ms("since", asked.since), until_ms=unix_ms("until", asked.until), search=asked.search,
        tail=asked.tail,
    )  # fmt: skip


def _point_query(asked: PointsAsked) -> PointQuery:
    return PointQuery(
        after_seq=asked.after or 0, names=tuple(asked.name or ()), rank=asked.rank, attempt=asked.attempt,
        max_points=asked.max_points,
    )  # fmt: skip


async def _check_search(uses: Gateway, job_id: str, query: LineQuery) -> None:
    """A pattern that is none is refused before the stream begins."""
    if query.search is not None:
        try:
            async with asyncio.timeout(2):
                await uses.telemetry.lines(job_id, replace(query, tail=None, after_seq=2**53), limit=1)
        except (Unavailable, TimeoutError):
            return


def _statuses(given: Sequence[str]) -> tuple[Status, ...]:
    out: list[Status] = []
    for word in (word.strip().upper() for one in given for word in one.split(",")):
        if word not in Status.__members__:
            raise wrong("status", f"there is no status of this name; {nearest(word[:40], list(Status.__members__))}")
        out.append(Status(word))
    return tuple(out)


def _fields(given: str | None) -> frozenset[str]:
    names = [name.strip() for name in (given or "").split(",") if name.strip()]
    for name in names:
        if name not in FIELDS:
            raise wrong("fields", f"a job has no field of this name; {nearest(name[:40], list(FIELDS))}")
    return frozenset((*names, "id")) if names else frozenset()


async def get_quarantine(uses: Gateway) -> QuarantineJson:
    """Of all services."""
    return quarantine_json(await uses.platform.quarantined())
