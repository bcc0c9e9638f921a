"""A job's files: a list, and their bytes by ranges, so that a broken download goes on where it stopped."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from services.api import use_cases
from services.api.artifacts import Artifact
from services.api.params import ArtifactsParams
from services.api.rest.answers import answer, http_refusal
from services.api.rest.auth_middleware import trace_id_of
from services.api.rest.openapi import ok
from services.api.rest.permissions import Reader, Services
from services.api.schemas import ArtifactsJson
from services.api.services import ApiServices

router = APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"])
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_BYTES: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.get("", **ok(ArtifactsJson, "Files by path"))
async def list_artifacts(
    services: Services, principal: Reader, job_id: str, params: Annotated[ArtifactsParams, Query()]
) -> Response:
    return answer(await use_cases.list_artifacts(services, principal, job_id, params))


@router.get(
    "/{path:path}",
    responses={200: {"description": "The bytes", "content": _BYTES}, 206: {"description": "A range of them"}},
)
async def get_artifact(services: Services, principal: Reader, request: Request, job_id: str, path: str) -> Response:
    return _bytes(request, services, await use_cases.get_artifact(services, principal, job_id, path))


@router.head("/{path:path}", include_in_schema=False)
async def head_artifact(services: Services, principal: Reader, request: Request, job_id: str, path: str) -> Response:
    response = await get_artifact(services, principal, request, job_id, path)
    return Response(status_code=response.status_code, headers=response.headers)


def _bytes(request: Request, services: ApiServices, artifact: Artifact) -> Response:
    size = artifact.meta.size
    etag = f'"{artifact.meta.etag.strip(chr(34))}"'
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Last-Modified": format_datetime(datetime.fromtimestamp(artifact.meta.modified // 1000, UTC), usegmt=True),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(artifact.path.rpartition('/')[2], safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    if etag in [one.strip() for one in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    wanted = request.headers.get("range") if request.headers.get("if-range") in {None, etag} else None
    start, end, status = _span(wanted, size)
    if status == 416:
        return http_refusal(416, trace_id_of(request.scope), {"Content-Range": f"bytes */{size}"})
    if status == 206:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    headers["Content-Length"] = str(end - start)
    chunks = services.artifacts.read(artifact, start=start, end=end) if end > start else _nothing()
    return StreamingResponse(chunks, status_code=status, headers=headers, media_type="application/octet-stream")


def _span(header: str | None, size: int) -> tuple[int, int, int]:
    """[start, end) that is asked for, and the status: 206; 416 beyond the end; 200 where nothing is asked for, or
    nothing that can be understood (RFC 9110, 14.2).
    """
    match = _RANGE.fullmatch(header or "")
    if match is None or not (match[1] or match[2]):
        return 0, size, 200
    if not match[1]:
        start, end = max(0, size - int(match[2])), size
    else:
        start, end = int(match[1]), min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < start:
            return 0, size, 200
    return (start, end, 206) if start < end else (0, 0, 416)


async def _nothing() -> AsyncIterator[bytes]:
    yield b""
