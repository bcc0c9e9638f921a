"""A job's files: lists, and bytes by ranges, so that an interrupted download can continue."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import StreamingResponse

from services.api.rest.answers import answer, http_error_response
from services.api.rest.auth_middleware import trace_id_of
from services.api.rest.openapi import JobId, ok
from services.api.rest.permissions import Reader, Services
from services.api.use_cases import artifacts
from services.api.use_cases.artifacts import ArtifactsParams, Download, ListArtifactsReply

router = APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"])
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_BYTES: Final = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
FilePath = Annotated[str, Path(description="Path of the file within the job.")]


@router.get("", **ok(ListArtifactsReply, "Files by path"))
async def list_artifacts(
    services: Services, principal: Reader, job_id: JobId, params: Annotated[ArtifactsParams, Query()]
) -> Response:
    return answer(await artifacts.list_artifacts(services, principal, job_id, params))


@router.get(
    "/{path:path}",
    responses={200: {"description": "The bytes", "content": _BYTES}, 206: {"description": "A range of the bytes"}},
)
async def get_artifact(
    services: Services, principal: Reader, request: Request, job_id: JobId, path: FilePath
) -> Response:
    return _bytes(request, await artifacts.get_artifact(services, principal, job_id, path))


@router.head("/{path:path}", include_in_schema=False)
async def head_artifact(
    services: Services, principal: Reader, request: Request, job_id: JobId, path: FilePath
) -> Response:
    response = await get_artifact(services, principal, request, job_id, path)
    return Response(status_code=response.status_code, headers=response.headers)


def _bytes(request: Request, download: Download) -> Response:
    artifact = download.artifact
    bare_etag = artifact.etag.strip(chr(34))
    etag = f'"{bare_etag}"'
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Last-Modified": format_datetime(datetime.fromtimestamp(artifact.modified // 1000, UTC), usegmt=True),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(artifact.path.rpartition('/')[2], safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    if etag in [candidate.strip() for candidate in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    # Without quotes: as the list of files gives it, and as the first SDKs send it.
    unchanged = request.headers.get("if-range") in {None, etag, bare_etag}
    wanted = request.headers.get("range") if unchanged else None
    start, end, status = _range(wanted, artifact.size)
    if status == 416:
        return http_error_response(416, trace_id_of(request.scope), {"Content-Range": f"bytes */{artifact.size}"})
    if status == 206:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{artifact.size}"
    headers["Content-Length"] = str(end - start)
    chunks = download.read(start, end) if end > start else _nothing()
    return StreamingResponse(chunks, status_code=status, headers=headers, media_type="application/octet-stream")


def _range(header: str | None, size: int) -> tuple[int, int, int]:
    """[start, end) and the status: 206 for a range, 416 for one beyond the end, 200 for the whole file.

    No header, several ranges and malformed ranges mean the whole file (RFC 9110, 14.2).
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
