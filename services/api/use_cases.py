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
from services.api.explain import explain_json
from services.api.following import Changed, End
from services.api.params import (
    ArtifactsParams,
    EventsParams,
    HistoryParams,
    JobsParams,
    KeyParams,
    LinesParams,
    PointsParams,
    unix_ms,
    wrong,
)
from services.api.schemas import (
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
from services.api.serializers import (
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
from services.api.services import ApiServices
from services.api.uploads import Upload, code_key
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
    services: ApiServices, principal: Principal, tenant: str, incoming: Incoming, *, key: str | None, trace: str
) -> Done:
    """The job's JSON with ``warnings``; it is durable, and so is its code."""
    await _code_of(services, tenant, incoming, keep=True)
    done = await services.submissions.submit(
        principal, tenant, incoming.spec, code_digest=incoming.code_digest, key=key, trace=trace
    )
    made: JobJson = {**job_json(done.job), "warnings": list(done.warnings)}
    return Done(made, done.replayed)


async def plan_job(services: ApiServices, tenant: str, incoming: Incoming) -> PlanJson:
    """What would become of it."""
    await _code_of(services, tenant, incoming, keep=False)
    plan = await services.submissions.plan(tenant, incoming.spec, incoming.code_digest)
    limits = services.settings
    return plan_json(plan, {"max_code_bytes": limits.max_code_bytes, "max_spec_bytes": limits.max_spec_bytes})


async def _code_of(services: ApiServices, tenant: str, incoming: Incoming, *, keep: bool) -> None:
    with services.instrumentation.counting_refused_code():
        if incoming.upload is not None:
            incoming.code_digest = (await incoming.upload.finish()).digest
            if keep:
                await services.submissions.keep_code(incoming.upload, code_key(tenant, incoming.code_digest))
        elif incoming.code_digest and keep:
            await services.submissions.known_code(tenant, incoming.code_digest)


async def list_jobs(services: ApiServices, principal: Principal, params: JobsParams) -> JobsJson:
    """A page, newest first."""
    if params.after is not None and not is_id(params.after, "j"):
        raise wrong("after", "after is the `next` of the page before")
    query = JobQuery(
        tenant=principal.listed_tenant(params.tenant), user=params.user, name=params.name, tag=params.tag,
        after=params.after,
        statuses=_statuses(params.status or []),
    )  # fmt: skip
    wanted = _fields(params.fields)
    found, following = await services.jobs.find(query, limit=params.limit)
    queued = [job.id for job in found if job.status is Status.QUEUED]
    waiting = await services.platform.waiting(queued) if queued else {}
    jobs: list[Any] = [job_json(job, waiting.get(job.id)) for job in found]
    if wanted:
        jobs = [{key: value for key, value in job.items() if key in wanted} for job in jobs]
    return {"jobs": jobs, "next": following}


async def get_job(services: ApiServices, principal: Principal, job_id: str) -> JobJson:
    """With its place in the queue while it waits."""
    job = await services.jobs.look(principal, job_id)
    waiting = await services.platform.waiting([job.id]) if job.status is Status.QUEUED else {}
    return job_json(job, waiting.get(job.id))


async def halt_job(
    services: ApiServices, principal: Principal, job_id: str, *, generation: int | None, key: str | None
) -> Done:
    """It keeps its results and checkpoint."""
    return await _set_desired(services, principal, job_id, Desired.HALT, generation=generation, key=key)


async def resume_job(
    services: ApiServices, principal: Principal, job_id: str, *, generation: int | None, key: str | None
) -> Done:
    """It goes on from its checkpoint."""
    return await _set_desired(services, principal, job_id, Desired.RUN, generation=generation, key=key)


async def kill_job(
    services: ApiServices, principal: Principal, job_id: str, *, generation: int | None, key: str | None
) -> Done:
    """Nothing is stored."""
    return await _set_desired(services, principal, job_id, Desired.KILL, generation=generation, key=key)


async def _set_desired(
    services: ApiServices,
    principal: Principal,
    job_id: str,
    desired: Desired,
    *,
    generation: int | None,
    key: str | None,
) -> Done:
    done = await services.jobs.desired(principal, job_id, desired, generation=generation, key=key)
    return Done(job_json(done.job), done.replayed)


async def delete_job(services: ApiServices, principal: Principal, job_id: str, *, kill: bool) -> None:
    """Softly; ``kill``: first, where it is live."""
    await services.jobs.delete(principal, job_id, kill=kill)


async def get_history(services: ApiServices, principal: Principal, job_id: str, params: HistoryParams) -> HistoryJson:
    """Oldest first."""
    events = await services.jobs.history(principal, job_id, after_seq=params.after)
    return {"events": [event_json(event) for event in events]}


async def explain_job(services: ApiServices, principal: Principal, job_id: str) -> ExplainJson:
    """Why it is as it is."""
    job = await services.jobs.get(principal, job_id)
    waiting = await services.platform.waiting([job_id]) if job.status is Status.QUEUED else {}
    return explain_json(job, waiting.get(job_id), now=services.jobs.now())


async def get_progress(services: ApiServices, principal: Principal, job_id: str) -> ProgressJson:
    """How far it is."""
    job = await services.jobs.get(principal, job_id)
    return progress_json(job, await services.telemetry.summary(job_id))


async def get_logs(services: ApiServices, principal: Principal, job_id: str, params: LinesParams) -> LinesJson:
    """A page of lines."""
    await services.jobs.get(principal, job_id)
    limit = params.limit if params.tail is None else max(params.tail, 1)
    found, through = await services.telemetry.lines(job_id, _line_query(params), limit=limit)
    # Only a page that was cut ends with its last line; and then there may still be nothing beyond.
    more = bool(found) and through == found[-1].seq and (await services.telemetry.summary(job_id)).lines > through
    return {"lines": [line_json(one) for one in found], "next": through, "more": more}


async def follow_logs(
    services: ApiServices, principal: Principal, job_id: str, params: LinesParams, *, resumed: int | None
) -> AsyncGenerator[Sequence[StoredLine] | End]:
    """Lines as they are stored, then the end. ``resumed``: the last one that the reader has; then no tail is given."""
    job = await services.jobs.get(principal, job_id)
    query = _line_query(params)
    if resumed is not None:
        query = replace(query, after_seq=resumed, tail=None)
    await _check_search(services, job_id, query)
    return services.following.lines(job, query)


async def get_metrics(services: ApiServices, principal: Principal, job_id: str, params: PointsParams) -> MetricsJson:
    """A page of points."""
    await services.jobs.get(principal, job_id)
    found, through = await services.telemetry.points(job_id, _point_query(params), limit=params.limit)
    more = bool(found) and through == found[-1].seq and (await services.telemetry.summary(job_id)).points > through
    return {"points": [point_json(one) for one in found], "next": through, "more": more}


async def get_series(services: ApiServices, principal: Principal, job_id: str, params: PointsParams) -> MetricsJson:
    """Curves."""
    await services.jobs.get(principal, job_id)
    return {"series": series_json(await services.telemetry.series(job_id, _point_query(params)))}


async def follow_metrics(
    services: ApiServices, principal: Principal, job_id: str, params: PointsParams, *, resumed: int | None
) -> AsyncGenerator[Sequence[StoredPoint] | End]:
    """Points as they are stored, then the end."""
    job = await services.jobs.get(principal, job_id)
    return services.following.points(job, replace(_point_query(params), after_seq=resumed or 0))


async def follow_events(
    services: ApiServices, principal: Principal, job_id: str, params: EventsParams
) -> AsyncGenerator[Event | JobJson | End]:
    """History as it is written, the job without its spec at each change that shows, then the end."""
    job = await services.jobs.get(principal, job_id)
    return _events(services.following.events(job, after_seq=params.after or 0))


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


async def list_artifacts(
    services: ApiServices, principal: Principal, job_id: str, params: ArtifactsParams
) -> ArtifactsJson:
    """A page of files, by path."""
    job = await services.jobs.get(principal, job_id)
    prefix = params.prefix
    if params.attempt is not None and not prefix:
        prefix = f"attempts/{params.attempt}/"
    if prefix and not (prefix.startswith("attempts/") and prefix.endswith("/")):
        raise wrong("prefix", "a prefix begins with attempts/ and ends with /")
    found, following = await services.artifacts.list(job, prefix=prefix, after=params.after, limit=params.limit)
    return {"artifacts": [artifact_json(one) for one in found], "next": following}


async def get_artifact(services: ApiServices, principal: Principal, job_id: str, path: str) -> Artifact:
    """One file; its bytes come from ``uses.artifacts.read``."""
    return await services.artifacts.find(await services.jobs.get(principal, job_id), path)


def whoami(principal: Principal) -> WhoJson:
    """The key's holder."""
    return {
        "user": principal.user,
        "tenant": principal.tenant,
        "scope": principal.scope,
        "key_id": principal.key_id,
        "permissions": sorted(PERMISSIONS[principal.scope]),
    }


async def list_keys(services: ApiServices, principal: Principal) -> KeysJson:
    """One's own; an admin's answer has everybody's."""
    return {"keys": [key_json(key) for key in await services.keys.list(principal)]}


async def create_key(services: ApiServices, principal: Principal, params: KeyParams, *, key: str | None) -> Done:
    """The new key with its text, which is shown this once (and to retries under the same idempotency key)."""
    made = await services.keys.create(
        principal, name=params.name, user=params.user, tenant=params.tenant, scope=params.scope, idempotency_key=key
    )
    shown: KeyJson = {**key_json(made.key), "key": made.text}
    return Done(shown, made.replayed)


async def revoke_key(services: ApiServices, principal: Principal, key_id: str) -> None:
    """It no longer works."""
    await services.keys.revoke(principal, key_id)


def get_version() -> VersionJson:
    """What this service is and can."""
    return {"version": VERSION, "api": "v1", "capabilities": list(CAPABILITIES)}


async def get_queue(services: ApiServices, principal: Principal, tenant: str | None) -> QueueJson:
    """Jobs that wait, first in line first."""
    query = JobQuery(tenant=principal.listed_tenant(tenant), statuses=(Status.QUEUED,))
    jobs = await services.jobs.waiting(query, limit=_MOST_WAITING)
    waiting = await services.platform.waiting() if jobs else {}
    shown = [waiting_json(job, waiting.get(job.id)) for job in jobs]
    shown.sort(key=lambda one: one.get("position", 2**31))
    return {"waiting": shown}


async def get_cluster(services: ApiServices, principal: Principal, tenant: str | None) -> ClusterJson:
    """Nodes, and what is in use."""
    return cluster_json(await services.platform.cluster(principal.listed_tenant(tenant)))


def get_frameworks() -> FrameworksJson:
    """What a spec's ``framework`` may name."""
    return {"frameworks": [framework_json(entry) for entry in library()]}


def get_sizes() -> SizesJson:
    """What ``resources.size`` may name."""
    return {"sizes": [{"name": name, **size_json(size)} for name, size in SIZES.items()]}


def _line_query(params: LinesParams) -> LineQuery:
    return LineQuery(
        after_seq=params.after or 0, rank=params.rank, role=params.role, attempt=params.attempt, stream=params.stream,
        since_ms=unix_ms("since", params.since), until_ms=unix_ms("until", params.until), search=params.search,
        tail=params.tail,
    )  # fmt: skip


def _point_query(params: PointsParams) -> PointQuery:
    return PointQuery(
        after_seq=params.after or 0, names=tuple(params.name or ()), rank=params.rank, attempt=params.attempt,
        max_points=params.max_points,
    )  # fmt: skip


async def _check_search(services: ApiServices, job_id: str, query: LineQuery) -> None:
    """A pattern that is none is refused before the stream begins."""
    if query.search is not None:
        try:
            async with asyncio.timeout(2):
                await services.telemetry.lines(job_id, replace(query, tail=None, after_seq=2**53), limit=1)
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


async def get_quarantine(services: ApiServices) -> QuarantineJson:
    """Of all services."""
    return quarantine_json(await services.platform.quarantined())
