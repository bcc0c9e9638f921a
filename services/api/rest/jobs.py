"""Jobs over HTTP: list, look, wish, delete, history, explanation."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from services.api import use_cases
from services.api.idempotency import checked_key
from services.api.params import HistoryParams, JobsParams
from services.api.rest.answers import answer, replayable
from services.api.rest.bodies import body_schema, read_model
from services.api.rest.openapi import ok
from services.api.rest.permissions import Reader, Services, Writer
from services.api.schemas import ExplainJson, HistoryJson, JobJson, JobsJson
from services.api.use_cases import Done
from services.core.domain.errors import PreconditionFailed

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
_ETAG: Final = re.compile(r'"(\d{1,18})"')


class DesiredBody(BaseModel):
    """A merge patch of what a job's owner wants."""

    model_config = ConfigDict(extra="forbid")
    desired: Literal["run", "halt", "kill"]


@router.get("", **ok(JobsJson, "A page of jobs, newest first"))
async def list_jobs(services: Services, principal: Reader, params: Annotated[JobsParams, Query()]) -> Response:
    return answer(await use_cases.list_jobs(services, principal, params))


@router.get("/{job_id}", **ok(JobJson, "The job"))
async def get_job(services: Services, principal: Reader, job_id: str) -> Response:
    job = await use_cases.get_job(services, principal, job_id)
    return answer(job, headers=_etag(job))


@router.patch("/{job_id}", **ok(JobJson, "The wish was written down", 202), openapi_extra=body_schema(DesiredBody))
async def patch_job(services: Services, principal: Writer, request: Request, job_id: str) -> Response:
    await services.jobs.get(principal, job_id)
    wish = await read_model(request, DesiredBody)
    act = {"run": use_cases.resume_job, "halt": use_cases.halt_job, "kill": use_cases.kill_job}[wish.desired]
    return _set_desired(await act(services, principal, job_id, **_conditions(request)))


@router.post("/{job_id}/halt", **ok(JobJson, "It will be halted: results and checkpoints are kept", 202))
async def halt_job(services: Services, principal: Writer, request: Request, job_id: str) -> Response:
    return _set_desired(await use_cases.halt_job(services, principal, job_id, **_conditions(request)))


@router.post("/{job_id}/resume", **ok(JobJson, "It is queued again", 202))
async def resume_job(services: Services, principal: Writer, request: Request, job_id: str) -> Response:
    return _set_desired(await use_cases.resume_job(services, principal, job_id, **_conditions(request)))


@router.post("/{job_id}/kill", **ok(JobJson, "It will be killed: nothing is stored", 202))
async def kill_job(services: Services, principal: Writer, request: Request, job_id: str) -> Response:
    return _set_desired(await use_cases.kill_job(services, principal, job_id, **_conditions(request)))


@router.delete("/{job_id}", status_code=204, responses={204: {"description": "It is deleted"}})
async def delete_job(services: Services, principal: Writer, job_id: str, *, kill: bool = False) -> Response:
    await use_cases.delete_job(services, principal, job_id, kill=kill)
    return Response(status_code=204)


@router.get("/{job_id}/history", **ok(HistoryJson, "What happened, in order"))
async def get_history(
    services: Services, principal: Reader, job_id: str, params: Annotated[HistoryParams, Query()]
) -> Response:
    return answer(await use_cases.get_history(services, principal, job_id, params))


@router.get("/{job_id}/explain", **ok(ExplainJson, "Why it is as it is"))
async def explain_job(services: Services, principal: Reader, job_id: str) -> Response:
    return answer(await use_cases.explain_job(services, principal, job_id))


def _set_desired(done: Done) -> Response:
    return answer(done.answer, status=202, headers=replayable(done.replayed, _etag(done.answer)))


def _etag(job: JobJson) -> dict[str, str]:
    return {"ETag": f'"{job["generation"]}"'}


def _conditions(request: Request) -> dict[str, Any]:
    """Under which a wish is carried out: at the generation of ``If-Match`` only, once per ``Idempotency-Key``."""
    header = (request.headers.get("if-match") or "*").strip()
    match = _ETAG.fullmatch(header)
    if match is None and header != "*":
        raise PreconditionFailed('If-Match names one ETag of the job, e.g. "3"')
    key = checked_key(request.headers.get("idempotency-key"))
    return {"generation": int(match[1]) if match else None, "key": key}
