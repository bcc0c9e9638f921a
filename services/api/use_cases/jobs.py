"""Jobs: list, get, halt, resume, kill, delete, history, explanation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Final, Literal

from msgspec import UNSET
from msgspec.structs import replace
from pydantic import Field

from services.api.access import Principal
from services.api.answers import Answer, Done, doc, number
from services.api.causes import LAST_LINES, Cause, find_cause
from services.api.event_loop import Turns
from services.api.explain import JobExplanation, explain
from services.api.job_answer import Job, JobEvent, event_answer, job_answer
from services.api.job_filter import parse_filter
from services.api.job_metrics import WantedMetrics, wanted_metrics
from services.api.job_search import matching
from services.api.params import END_OF_SEQ, MOST_VALUES, Params, wrong_parameter
from services.api.platform import spec_of
from services.api.services import ApiServices
from services.api.usage import usage_answer
from services.core.domain.errors import Unavailable, WeftError
from services.core.domain.ids import is_id
from services.core.domain.job import Job as JobDocument
from services.core.domain.spec import nearest
from services.core.domain.status import Desired, Status
from services.core.ports.job_store import JobQuery
from services.core.ports.metric_store import Aggregate, LineQuery, PointQuery, StoredLine

_OWN_FAILURES: Final = frozenset({"ExitCode", "Signalled", "OOMKilled"})
"""Reasons whose cause is in the output of the learner."""
_FIELDS: Final = Job.__struct_fields__
_MOST_CURVES: Final = 100
_CURVES_AT_A_TIME: Final = 8


_METRICS: Final = (
    "Names of metrics, separated by commas, that each job has as `metrics`; `NAME:min` and `NAME:max` say which value "
    "is best. `*`: all metrics, at most 20."
)


class JobsParams(Params):
    """Which jobs to list."""

    tenant: str | None = Field(
        default=None, description="Tenant whose jobs are listed; default: the caller's. Admins: any, or * for all."
    )
    status: list[str] | None = Field(
        default=None,
        max_length=MOST_VALUES,
        description="Statuses to list, in any case; repeated or separated by commas. Default: all.",
    )
    name: str | None = Field(default=None, description="Only jobs of this name.")
    tag: str | None = Field(default=None, description="Only jobs with this tag.")
    user: str | None = Field(default=None, description="Only jobs of this user.")
    deleted: bool = Field(default=False, description="Also jobs that were deleted; these have the field `deleted`.")
    after: str | None = Field(default=None, description="`next` of the previous page.")
    limit: int = Field(default=50, ge=1, le=500, description="Most jobs in the answer.")
    q: str | None = Field(
        default=None,
        description="Only jobs that match this filter, e.g. `status=FAILED and created<2d and metric.loss<0.3`. A page "
        "may then have fewer jobs, or none, while `next` is not null.",
    )
    metrics: str | None = Field(default=None, description=_METRICS)
    curve_points: int | None = Field(
        default=None,
        ge=2,
        le=200,
        description="The first of `metrics` has its `curve`, of about so many values; at most 100 jobs in the answer.",
    )
    progress: bool = Field(default=False, description="Jobs have `progress` and `eta_ms`, if they are known.")
    order: Literal["newest", "oldest"] = Field(default="newest", description="Which jobs come first.")
    fields: str | None = Field(
        default=None,
        description="Names of top-level fields of a job, separated by commas. Default: all. `id` is always included.",
    )


class JobParams(Params):
    """What to answer of a job besides its document."""

    metrics: str | None = Field(default=None, description=_METRICS)
    progress: bool = Field(
        default=False, description="The job has `progress`, `eta_ms` and `usage`, if they are known."
    )


class HistoryParams(Params):
    """Which events of a job's history to get."""

    after: int = Field(default=0, ge=0, lt=END_OF_SEQ, description="Only events with a higher `seq`.")


class ListJobsReply(Answer):
    """A page of jobs, newest first unless the request says otherwise."""

    jobs: Annotated[list[Job], doc("Jobs of this page; with `fields` only these fields of each.")]
    next: Annotated[str | None, doc("Send it as `after` to get the next page; null on the last page.")]


class GetHistoryReply(Answer):
    """The history of a job."""

    events: Annotated[list[JobEvent], doc("Events, oldest first.")]


async def list_jobs(services: ApiServices, principal: Principal, params: JobsParams) -> ListJobsReply:
    """A page of jobs. Raises InvalidRequest, PermissionDenied; Unavailable for a filter by metrics while the metrics
    service is away.
    """
    if params.after is not None and not is_id(params.after, "j"):
        raise wrong_parameter("after", "after is the `next` of the page before")
    if params.curve_points is not None and params.limit > _MOST_CURVES:
        raise wrong_parameter("limit", f"at most {_MOST_CURVES} jobs with curves")
    query = JobQuery(
        tenant=principal.listed_tenant(params.tenant),
        user=params.user,
        name=params.name,
        tag=params.tag,
        deleted=params.deleted,
        after=params.after,
        statuses=_statuses(params.status or []),
    )
    fields, wanted, chosen = _fields(params.fields), wanted_metrics(params.metrics), parse_filter(params.q)
    newest_first = params.order == "newest"
    if chosen is None:
        documents, following = await services.jobs.page(query, limit=params.limit, newest_first=newest_first)
    else:
        documents, following = await services.jobs.search(
            chosen.query(query),
            partial(matching, services, chosen),
            limit=params.limit,
            newest_first=newest_first,
        )
    queued = [document.id for document in documents if document.status is Status.QUEUED]
    waiting = await services.platform.waiting(queued) if queued else {}
    jobs, turns = [], Turns()
    for document in documents:
        await turns.let_others_run()
        jobs.append(replace(job_answer(document, waiting.get(document.id)), startup=UNSET))
    if fields:
        jobs = [_cut(job, fields) for job in jobs]
    if wanted:
        jobs = await _with_metrics(services, jobs, wanted)
        if params.curve_points is not None:
            jobs = await _with_curves(services, jobs, points=params.curve_points)
    if params.progress:
        running = {document.id for document in documents if not document.at_rest}
        of_jobs: Mapping[str, tuple[float, int | None]] = {}
        with contextlib.suppress(Unavailable):  # the list does not depend on the metrics service
            of_jobs = await services.telemetry.progress([job.id for job in jobs if job.id in running])
        jobs = [_with_progress(job, *of_jobs.get(job.id, (None, None))) for job in jobs]
    return ListJobsReply(jobs=jobs, next=following)


async def get_job(services: ApiServices, principal: Principal, job_id: str, params: JobParams) -> Job:
    """The job, with its place in the queue while it waits. Raises NotFound, Quarantined, InvalidRequest."""
    wanted = wanted_metrics(params.metrics)
    document = await services.jobs.get_maybe_stale(principal, job_id)
    waiting = await services.platform.waiting([job_id]) if document.status is Status.QUEUED else {}
    job = job_answer(document, waiting.get(job_id))
    if wanted:
        [job] = await _with_metrics(services, [job], wanted)
    if params.progress and document.attempt.number:
        with contextlib.suppress(Unavailable):  # the job is shown without it
            summary = await services.telemetry.summary(job_id)
            job = replace(job, usage=usage_answer(summary.usage))
            if not document.at_rest:
                job = _with_progress(job, summary.progress, summary.eta_ms)
    return job


async def halt_job(
    services: ApiServices, principal: Principal, job_id: str, *, generation: int | None, key: str | None
) -> Done[Job]:
    """Stops the job; its results and checkpoints are kept. Errors as of ``Jobs.set_desired``."""
    return await _set_desired(services, principal, job_id, Desired.HALT, generation=generation, key=key)


async def resume_job(
    services: ApiServices, principal: Principal, job_id: str, *, generation: int | None, key: str | None
) -> Done[Job]:
    """Queues a halted job again; it continues from its checkpoints. Errors as of ``Jobs.set_desired``."""
    return await _set_desired(services, principal, job_id, Desired.RUN, generation=generation, key=key)


async def kill_job(
    services: ApiServices, principal: Principal, job_id: str, *, generation: int | None, key: str | None
) -> Done[Job]:
    """Stops the job at once; nothing is stored. Errors as of ``Jobs.set_desired``."""
    return await _set_desired(services, principal, job_id, Desired.KILL, generation=generation, key=key)


async def delete_job(
    services: ApiServices, principal: Principal, job_id: str, *, kill: bool, generation: int | None
) -> None:
    """Hides the job; its data is erased later. Raises Conflict while it is live, unless ``kill``.

    ``generation``: raises PreconditionFailed if it is not the job's; None: any.
    """
    await services.jobs.delete(principal, job_id, kill=kill, generation=generation)


async def get_history(
    services: ApiServices, principal: Principal, job_id: str, params: HistoryParams
) -> GetHistoryReply:
    """What happened to the job, oldest first."""
    events = await services.jobs.history(principal, job_id, after_seq=params.after)
    return GetHistoryReply(events=[event_answer(event) for event in events])


async def explain_job(services: ApiServices, principal: Principal, job_id: str) -> JobExplanation:
    """Why the job is in its state, and what its owner can do."""
    document = await services.jobs.get(principal, job_id)
    waiting = await services.platform.waiting([job_id]) if document.status is Status.QUEUED else {}
    left_out: Mapping[str, int] = {}
    if document.attempt.started is not None:
        with contextlib.suppress(WeftError):  # the explanation does not depend on the metrics service
            left_out = (await services.telemetry.summary(job_id)).left_out
    cause = await _cause(services, document)
    return explain(document, waiting.get(job_id), now=services.jobs.now(), left_out=left_out, cause=cause)


async def _with_curves(services: ApiServices, jobs: Sequence[Job], *, points: int) -> list[Job]:
    """The jobs, whose first metric has its curve, unless it cannot be read: the list does not depend on it."""
    limited = asyncio.Semaphore(_CURVES_AT_A_TIME)

    async def of(job: Job) -> Job:
        if not job.metrics:
            return job
        first, *others = job.metrics
        query = PointQuery(names=(first.name,), rank=first.rank, max_points=points)
        async with limited:
            try:
                stored, _ = await services.telemetry.series(job.id, query)
            except WeftError:
                return job
        curve = [number(entry.point.value) for entry in stored if entry.point.context == first.context]
        return replace(job, metrics=[replace(first, curve=curve), *others])

    return list(await asyncio.gather(*map(of, jobs)))


async def _with_metrics(services: ApiServices, jobs: Sequence[Job], wanted: WantedMetrics) -> list[Job]:
    aggregates: Mapping[str, Sequence[Aggregate]] = {}
    with contextlib.suppress(Unavailable):  # the jobs are shown without them
        aggregates = await services.telemetry.aggregates([job.id for job in jobs], wanted.names)
    return [replace(job, metrics=wanted.of(aggregates.get(job.id, ()))) for job in jobs]


def _with_progress(job: Job, progress: float | None, eta_ms: int | None) -> Job:
    return replace(job, progress=UNSET if progress is None else progress, eta_ms=UNSET if eta_ms is None else eta_ms)


async def _cause(services: ApiServices, job: JobDocument) -> Cause | None:
    """The cause of the failure that ended the last attempt; None: there was none, or nothing is recognised."""
    verdict, spec = job.verdict, spec_of(job)
    if verdict is None or spec is None or verdict.reason not in _OWN_FAILURES:
        return None
    role, _, number = verdict.learner.rpartition("-")
    rank = int(number) if len(spec.roles) == 1 and number.isdigit() else None
    query = LineQuery(role=role or None, rank=rank, attempt=job.attempt.number, tail=LAST_LINES)
    lines: Sequence[StoredLine] = ()
    with contextlib.suppress(WeftError):  # the explanation does not depend on the metrics service
        lines = (await services.telemetry.lines(job.id, query, limit=LAST_LINES)).lines
    is_known = verdict.reason == "OOMKilled"  # the signal says less than the reason
    return find_cause(
        [line.line.text for line in lines],
        exit_code=None if is_known else verdict.exit_code,
        signal_number=None if is_known else verdict.signal,
    )


async def _set_desired(
    services: ApiServices,
    principal: Principal,
    job_id: str,
    desired: Desired,
    *,
    generation: int | None,
    key: str | None,
) -> Done[Job]:
    change = await services.jobs.set_desired(principal, job_id, desired, generation=generation, key=key)
    return Done(job_answer(change.job), change.replayed)


def _statuses(texts: Sequence[str]) -> tuple[Status, ...]:
    statuses: dict[Status, None] = {}
    for word in (word.strip().upper() for text in texts for word in text.split(",")):
        if word not in Status.__members__:
            names = [status.value for status in Status if status is not Status.RESUMED]  # only an entry of histories
            raise wrong_parameter("status", f"there is no status of this name; {nearest(word[:40], names)}")
        statuses[Status(word)] = None
    return tuple(statuses)


def _fields(text: str | None) -> frozenset[str]:
    """The names that ``text`` lists, and ``id``; empty if it lists none."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in _FIELDS:
            raise wrong_parameter("fields", f"a job has no field of this name; {nearest(name[:40], list(_FIELDS))}")
    return frozenset((*names, "id")) if names else frozenset()


def _cut(job: Job, fields: frozenset[str]) -> Job:
    """The job with these fields only: the others are UNSET, which no entry point writes."""
    return replace(job, **dict.fromkeys(set(_FIELDS) - fields, UNSET))
