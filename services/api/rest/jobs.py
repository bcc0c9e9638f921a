"""Jobs over HTTP: list, look, wish, delete, history, explanation."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from services.api.access import Principal
from services.api.explaining import explain_json
from services.api.gateway import Gateway
from services.api.idempotency import checked_key
from services.api.rest.answers import answer
from services.api.rest.bodies import body_schema, read_model
from services.api.rest.openapi import ok
from services.api.rest.permissions import Reader, Uses, Writer
from services.api.shapes import FIELDS, ExplainJson, HistoryJson, JobJson, JobsJson
from services.api.writing import event_json, job_json
from services.core.domain.errors import FieldError, InvalidRequest, PreconditionFailed
from services.core.domain.ids import is_id
from services.core.domain.job import Job
from services.core.domain.spec import nearest
from services.core.domain.status import Desired, Status
from services.core.ports.job_store import JobQuery

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
_ETAG: Final = re.compile(r'"(\d{1,18})"')


class Wish(BaseModel):
    """A merge patch of what a job's owner wants."""

    model_config = ConfigDict(extra="forbid")
    desired: Literal["run", "halt", "kill"]


@router.get("", **ok(JobsJson, "A page of jobs, newest first"))
async def list_jobs(
    uses: Uses,
    who: Reader,
    tenant: str | None = None,
    status: Annotated[list[str] | None, Query()] = None,
    name: str | None = None,
    tag: str | None = None,
    user: str | None = None,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    fields: str | None = None,
) -> Response:
    if after is not None and not is_id(after, "j"):
        raise _wrong("after", "after is the `next` of the page before")
    query = JobQuery(
        tenant=who.listed_tenant(tenant), user=user, name=name, tag=tag, after=after, statuses=_statuses(status or [])
    )
    wanted = _fields(fields)
    found, following = await uses.jobs.find(query, limit=limit)
    queued = [job.id for job in found if job.status is Status.QUEUED]
    waiting = await uses.platform.waiting(queued) if queued else {}
    jobs: list[Any] = [job_json(job, waiting.get(job.id)) for job in found]
    if wanted:
        jobs = [{key: value for key, value in job.items() if key in wanted} for job in jobs]
    return answer({"jobs": jobs, "next": following})


@router.get("/{job_id}", **ok(JobJson, "The job"))
async def get_job(uses: Uses, who: Reader, job_id: str) -> Response:
    return await shown(uses, await uses.jobs.get(who, job_id))


@router.patch("/{job_id}", **ok(JobJson, "The wish was written down", 202), openapi_extra=body_schema(Wish))
async def patch_job(uses: Uses, who: Writer, request: Request, job_id: str) -> Response:
    await uses.jobs.get(who, job_id)
    wish = await read_model(request, Wish)
    return await _wish(uses, who, request, job_id, Desired(wish.desired))


@router.post("/{job_id}/halt", **ok(JobJson, "It will be halted: results and checkpoints are kept", 202))
async def halt_job(uses: Uses, who: Writer, request: Request, job_id: str) -> Response:
    return await _wish(uses, who, request, job_id, Desired.HALT)


@router.post("/{job_id}/resume", **ok(JobJson, "It is queued again", 202))
async def resume_job(uses: Uses, who: Writer, request: Request, job_id: str) -> Response:
    return await _wish(uses, who, request, job_id, Desired.RUN)


@router.post("/{job_id}/kill", **ok(JobJson, "It will be killed: nothing is stored", 202))
async def kill_job(uses: Uses, who: Writer, request: Request, job_id: str) -> Response:
    return await _wish(uses, who, request, job_id, Desired.KILL)


@router.delete("/{job_id}", status_code=204, responses={204: {"description": "It is deleted"}})
async def delete_job(uses: Uses, who: Writer, job_id: str, *, kill: bool = False) -> Response:
    await uses.jobs.delete(who, job_id, kill=kill)
    return Response(status_code=204)


@router.get("/{job_id}/history", **ok(HistoryJson, "What happened, in order"))
async def get_history(
    uses: Uses, who: Reader, job_id: str, after: Annotated[int, Query(ge=0, lt=2**53)] = 0
) -> Response:
    events = await uses.jobs.history(who, job_id, after_seq=after)
    return answer({"events": [event_json(event) for event in events]})


@router.get("/{job_id}/explain", **ok(ExplainJson, "Why it is as it is"))
async def explain_job(uses: Uses, who: Reader, job_id: str) -> Response:
    job = await uses.jobs.get(who, job_id)
    waiting = await uses.platform.waiting([job_id]) if job.status is Status.QUEUED else {}
    return answer(explain_json(job, waiting.get(job_id), now=uses.jobs.now()))


async def shown(uses: Gateway, job: Job, *, status: int = 200) -> Response:
    """The job with its ETag; with its place in the queue while it waits."""
    waiting = await uses.platform.waiting([job.id]) if job.status is Status.QUEUED else {}
    return answer(job_json(job, waiting.get(job.id)), status=status, headers={"ETag": f'"{job.generation}"'})


async def _wish(uses: Gateway, who: Principal, request: Request, job_id: str, wish: Desired) -> Response:
    generation = _if_match(request.headers.get("if-match"))
    key = checked_key(request.headers.get("idempotency-key"))
    done = await uses.jobs.wish(who, job_id, wish, generation=generation, key=key)
    headers = {"ETag": f'"{done.job.generation}"', **({"Idempotency-Replayed": "true"} if done.replayed else {})}
    return answer(job_json(done.job), status=202, headers=headers)


def _if_match(header: str | None) -> int | None:
    """The generation that the caller saw; None where any will do."""
    if header is None or header.strip() == "*":
        return None
    match = _ETAG.fullmatch(header.strip())
    if match is None:
        raise PreconditionFailed('If-Match names one ETag of the job, e.g. "3"')
    return int(match[1])


def _statuses(given: list[str]) -> tuple[Status, ...]:
    out: list[Status] = []
    for word in (word.strip().upper() for one in given for word in one.split(",")):
        if word not in Status.__members__:
            raise _wrong("status", f"there is no status of this name; {nearest(word[:40], list(Status.__members__))}")
        out.append(Status(word))
    return tuple(out)


def _fields(given: str | None) -> frozenset[str]:
    names = [name.strip() for name in (given or "").split(",") if name.strip()]
    for name in names:
        if name not in FIELDS:
            raise _wrong("fields", f"a job has no field of this name; {nearest(name[:40], list(FIELDS))}")
    return frozenset((*names, "id")) if names else frozenset()


def _wrong(parameter: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, errors=(FieldError(f"/query/{parameter}", message),))
