"""Jobs over HTTP: list, look, wish, delete, history, explanation."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from services.api import actions
from services.api.actions import Done
from services.api.asked import HistoryAsked, JobsAsked
from services.api.idempotency import checked_key
from services.api.rest.answers import answer, replayable
from services.api.rest.bodies import body_schema, read_model
from services.api.rest.openapi import ok
from services.api.rest.permissions import Reader, Uses, Writer
from services.api.shapes import ExplainJson, HistoryJson, JobJson, JobsJson
from services.core.domain.errors import PreconditionFailed

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
_ETAG: Final = re.compile(r'"(\d{1,18})"')


class Wish(BaseModel):
    """A merge patch of what a job's owner wants."""

    model_config = ConfigDict(extra="forbid")
    desired: Literal["run", "halt", "kill"]


@router.get("", **ok(JobsJson, "A page of jobs, newest first"))
async def list_jobs(uses: Uses, who: Reader, asked: Annotated[JobsAsked, Query()]) -> Response:
    return answer(await actions.list_jobs(uses, who, asked))


@router.get("/{job_id}", **ok(JobJson, "The job"))
async def get_job(uses: Uses, who: Reader, job_id: str) -> Response:
    job = await actions.get_job(uses, who, job_id)
    return answer(job, headers=_etag(job))


@router.patch("/{job_id}", **ok(JobJson, "The wish was written down", 202), openapi_extra=body_schema(Wish))
async def patch_job(uses: Uses, who: Writer, request: Request, job_id: str) -> Response:
    await uses.jobs.get(who, job_id)
    wish = await read_model(request, Wish)
    act = {"run": actions.resume_job, "halt": actions.halt_job, "kill": actions.kill_job}[wish.desired]
    return _wished(await act(uses, who, job_id, **_conditions(request)))


@router.post("/{job_id}/halt", **ok(JobJson, "It will be halted: results and checkpoints are kept", 202))
async def halt_job(uses: Uses, who: Writer, request: Request, job_id: str) -> Response:
    return _wished(await actions.halt_job(uses, who, job_id, **_conditions(request)))


@router.post("/{job_id}/resume", **ok(JobJson, "It is queued again", 202))
async def resume_job(uses: Uses, who: Writer, request: Request, job_id: str) -> Response:
    return _wished(await actions.resume_job(uses, who, job_id, **_conditions(request)))


@router.post("/{job_id}/kill", **ok(JobJson, "It will be killed: nothing is stored", 202))
async def kill_job(uses: Uses, who: Writer, request: Request, job_id: str) -> Response:
    return _wished(await actions.kill_job(uses, who, job_id, **_conditions(request)))


@router.delete("/{job_id}", status_code=204, responses={204: {"description": "It is deleted"}})
async def delete_job(uses: Uses, who: Writer, job_id: str, *, kill: bool = False) -> Response:
    await actions.delete_job(uses, who, job_id, kill=kill)
    return Response(status_code=204)


@router.get("/{job_id}/history", **ok(HistoryJson, "What happened, in order"))
async def get_history(uses: Uses, who: Reader, job_id: str, asked: Annotated[HistoryAsked, Query()]) -> Response:
    return answer(await actions.get_history(uses, who, job_id, asked))


@router.get("/{job_id}/explain", **ok(ExplainJson, "Why it is as it is"))
async def explain_job(uses: Uses, who: Reader, job_id: str) -> Response:
    return answer(await actions.explain_job(uses, who, job_id))


def _wished(done: Done) -> Response:
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
