"""Jobs over HTTP: list, get, halt, resume, kill, delete, history, explanation."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from services.api.answers import Done
from services.api.explain import JobExplanation
from services.api.idempotency import checked_key
from services.api.job_answer import Job
from services.api.rest.answers import answer, replay_headers
from services.api.rest.bodies import body_schema, read_model
from services.api.rest.openapi import JobId, ok
from services.api.rest.permissions import Reader, Services, Writer
from services.api.use_cases import jobs
from services.api.use_cases.jobs import GetHistoryReply, HistoryParams, JobParams, JobsParams, ListJobsReply
from services.core.domain.errors import PreconditionFailed

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
_ETAG: Final = re.compile(r'"(\d{1,18})"')


class DesiredBody(BaseModel):
    """What the owner of a job wants (a JSON merge patch)."""

    model_config = ConfigDict(extra="forbid")
    desired: Literal["run", "halt", "kill"] = Field(
        description="run: resume the job; halt: stop it and keep results and checkpoints; kill: stop it, keep nothing."
    )


@router.get("", **ok(ListJobsReply, "A page of jobs, newest first"))
async def list_jobs(services: Services, principal: Reader, params: Annotated[JobsParams, Query()]) -> Response:
    return answer(await jobs.list_jobs(services, principal, params))


@router.get("/{job_id}", **ok(Job, "The job"))
async def get_job(
    services: Services, principal: Reader, job_id: JobId, params: Annotated[JobParams, Query()]
) -> Response:
    job = await jobs.get_job(services, principal, job_id, params)
    return answer(job, headers=_etag(job))


@router.patch(
    "/{job_id}", **ok(Job, "The job; the platform now acts on it", 202), openapi_extra=body_schema(DesiredBody)
)
async def patch_job(services: Services, principal: Writer, request: Request, job_id: JobId) -> Response:
    await services.jobs.get(principal, job_id)
    body = await read_model(request, DesiredBody)
    change = {"run": jobs.resume_job, "halt": jobs.halt_job, "kill": jobs.kill_job}[body.desired]
    return _accepted(await change(services, principal, job_id, **_conditions(request)))


@router.post("/{job_id}/halt", **ok(Job, "It will be halted; results and checkpoints are kept", 202))
async def halt_job(services: Services, principal: Writer, request: Request, job_id: JobId) -> Response:
    return _accepted(await jobs.halt_job(services, principal, job_id, **_conditions(request)))


@router.post("/{job_id}/resume", **ok(Job, "It is queued again", 202))
async def resume_job(services: Services, principal: Writer, request: Request, job_id: JobId) -> Response:
    return _accepted(await jobs.resume_job(services, principal, job_id, **_conditions(request)))


@router.post("/{job_id}/kill", **ok(Job, "It will be killed; nothing is stored", 202))
async def kill_job(services: Services, principal: Writer, request: Request, job_id: JobId) -> Response:
    return _accepted(await jobs.kill_job(services, principal, job_id, **_conditions(request)))


@router.delete("/{job_id}", status_code=204, responses={204: {"description": "It is deleted"}})
async def delete_job(
    services: Services,
    principal: Writer,
    request: Request,
    job_id: JobId,
    *,
    kill: Annotated[bool, Query(description="Kill the job first if it is live.")] = False,
) -> Response:
    await jobs.delete_job(services, principal, job_id, kill=kill, generation=_generation(request))
    return Response(status_code=204)


@router.get("/{job_id}/history", **ok(GetHistoryReply, "Its history, oldest first"))
async def get_history(
    services: Services, principal: Reader, job_id: JobId, params: Annotated[HistoryParams, Query()]
) -> Response:
    return answer(await jobs.get_history(services, principal, job_id, params))


@router.get("/{job_id}/explain", **ok(JobExplanation, "Why it is in its state"))
async def explain_job(services: Services, principal: Reader, job_id: JobId) -> Response:
    return answer(await jobs.explain_job(services, principal, job_id))


def _accepted(done: Done[Job]) -> Response:
    return answer(done.answer, status=202, headers=replay_headers(replayed=done.replayed, headers=_etag(done.answer)))


def _etag(job: Job) -> dict[str, str]:
    return {"ETag": f'"{job.generation}"'}


def _conditions(request: Request) -> dict[str, Any]:
    """``generation`` of ``If-Match``, and ``key`` of ``Idempotency-Key``. Raises PreconditionFailed, InvalidRequest."""
    generation = _generation(request)
    return {"generation": generation, "key": checked_key(request.headers.get("idempotency-key"))}


def _generation(request: Request) -> int | None:
    """The generation that ``If-Match`` names; None: any will do. Raises PreconditionFailed for other values."""
    header = (request.headers.get("if-match") or "*").strip()
    match = _ETAG.fullmatch(header)
    if match is None and header != "*":
        raise PreconditionFailed('If-Match names one ETag of the job, e.g. "3"')
    return int(match[1]) if match else None
