"""POST /v1/jobs: a spec, with or without code.

The parser gets the body piece by piece and the code goes straight to the spool: memory does not grow with the upload.
The spec is validated as soon as it is complete, so that a wrong one is refused before hundreds of megabytes follow it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from services.api.answers import Done
from services.api.idempotency import checked_key
from services.api.job_answer import Job
from services.api.params import checked_digest, wrong_field
from services.api.rest.answers import answer, replay_headers
from services.api.rest.auth_middleware import trace_of
from services.api.rest.bodies import body_of, body_schema, read_body, read_model
from services.api.rest.openapi import JobId, ok, response
from services.api.rest.permissions import Services, Writer
from services.api.services import ApiServices
from services.api.submit import read_spec_in_thread
from services.api.uploads import Upload
from services.api.use_cases import submission
from services.api.use_cases.submission import CloneParams, Incoming, JobPlan
from services.core.domain.errors import InvalidRequest, TooLarge
from services.core.domain.spec import JobSpec

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_YAML: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/plain", ""})
_OVERHEAD: Final = 64 * 1024
"""Most bytes that multipart adds to its parts."""
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["spec"],
                    "properties": {
                        "spec": {"type": "string", "description": "The spec as YAML or JSON; send it first."},
                        "code": {"type": "string", "format": "binary", "description": "A zip archive."},
                    },
                }
            },
            "application/json": {"schema": {"type": "object", "description": "The spec."}},
            "application/yaml": {"schema": {"type": "string", "description": "The spec."}},
        },
    }
}


@router.post(
    "",
    **ok(Job, "The job is durable", 201, **{"200": response("The answer to a dry run", JobPlan)}),
    openapi_extra=_BODY,
)
async def submit_job(
    services: Services,
    principal: Writer,
    request: Request,
    tenant: Annotated[
        str | None, Query(description="Tenant that the job will belong to; default: the caller's. Admins: any.")
    ] = None,
    code_digest: Annotated[
        str | None, Query(description="sha256:<hex> of code that the tenant uploaded before, in place of the code.")
    ] = None,
    *,
    dry_run: Annotated[bool, Query(description="Answer with what a submit would do; make no job.")] = False,
) -> Response:
    key = checked_key(request.headers.get("idempotency-key"))
    owner = principal.acting_tenant(tenant)
    trace = trace_of(request.scope)
    async with contextlib.AsyncExitStack() as closing:
        with services.instrumentation.counting_refused_code():
            incoming = await _receive(request, services, closing, owner, code_digest)
        if dry_run:
            return answer(await submission.plan_job(services, owner, incoming))
        done = await submission.submit_job(
            services, principal, owner, incoming, key=key, trace=trace.traceparent if trace else ""
        )
    return _made(done)


@router.post(
    "/{job_id}/clone",
    **ok(Job, "The copy is durable", 201, **{"200": response("The answer to a dry run", JobPlan)}),
    openapi_extra=body_schema(CloneParams),
)
async def clone_job(
    services: Services,
    principal: Writer,
    request: Request,
    job_id: JobId,
    *,
    dry_run: Annotated[bool, Query(description="Answer what would be made, and make nothing.")] = False,
) -> Response:
    key, trace = checked_key(request.headers.get("idempotency-key")), trace_of(request.scope)
    params = await read_model(request, CloneParams)
    if dry_run:
        return answer(await submission.plan_clone(services, principal, job_id, params))
    done = await submission.clone_job(
        services, principal, job_id, params, key=key, trace=trace.traceparent if trace else ""
    )
    return _made(done)


def _made(done: Done[Job]) -> Response:
    headers = {"Location": f"/v1/jobs/{done.answer.id}", "ETag": f'"{done.answer.generation}"'}
    return answer(done.answer, status=201, headers=replay_headers(replayed=done.replayed, headers=headers))


async def _receive(
    request: Request, services: ApiServices, closing: contextlib.AsyncExitStack, tenant: str, code_digest: str | None
) -> Incoming:
    limits = services.settings
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    media = kind.decode("latin-1")
    if media == "multipart/form-data":
        if code_digest is not None:
            raise wrong_field("/query/code_digest", "give either code or its digest, not both")
        _check_length(request, limits.max_code_bytes + limits.max_spec_bytes + _OVERHEAD)
        upload = await closing.enter_async_context(services.uploads.receive(tenant))
        boundary = options.get(b"boundary", b"")
        parts = _MultipartSubmission(boundary, upload, limits.max_spec_bytes, limits.cluster)
        return await parts.read(body_of(request))
    if media != "application/json" and media not in _YAML:
        raise InvalidRequest(
            "send multipart/form-data with the parts `spec` and `code`, application/json or application/yaml"
        )
    if code_digest is not None:
        checked_digest(code_digest)
    text = await read_body(request, limits.max_spec_bytes, what="a spec")
    spec = await read_spec_in_thread(text, "json" if media == "application/json" else "yaml", limits.cluster)
    return Incoming(spec, code_digest or "")


def _check_length(request: Request, limit: int) -> None:
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > limit:
        raise TooLarge(f"a submission has at most {limit} bytes; leave data out of the code")


@dataclass(slots=True)
class _Part:
    name: str = ""
    media: str = ""
    header: bytes = b""
    value: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)


class _MultipartSubmission:
    """The parts ``spec`` and ``code`` out of a multipart stream, in any order."""

    def __init__(self, boundary: bytes, upload: Upload, max_spec_bytes: int, cluster: str) -> None:
        if not boundary:
            raise InvalidRequest("the Content-Type names no boundary between the parts")
        self._upload = upload
        self._max_spec, self._cluster = max_spec_bytes, cluster
        self._events: list[tuple[str, bytes]] = []
        """What one piece of the body contained, in order: ``begin`` with the part's name, ``data``, ``end``."""
        self._part = _Part()
        self._spec_text: bytearray | None = None
        self._spec: JobSpec | None = None
        self._names: set[str] = set()
        self._complete = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_begin,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers,
                    "on_part_data": lambda data, start, end: self._events.append(("data", data[start:end])),
                    "on_part_end": lambda: self._events.append(("end", b"")),
                    "on_end": self._on_end,
                },
            )
        except FormParserError:
            raise InvalidRequest("the boundary between the parts is too long") from None

    async def read(self, stream: AsyncIterator[bytes]) -> Incoming:
        """The submission. Raises InvalidRequest, InvalidSpec, TooLarge."""
        name = ""
        try:
            async for piece in stream:
                if not piece:
                    continue
                self._parser.write(piece)
                for kind, data in self._events:
                    name = await self._handle(kind, data, name)
                self._events.clear()
        except FormParserError:
            raise InvalidRequest(
                "the body is not valid multipart/form-data, which its Content-Type announces"
            ) from None
        if not self._complete:
            raise InvalidRequest("the body ends in the middle of a part")
        if self._spec is None:
            raise wrong_field("/spec", "the part `spec` is missing")
        return Incoming(self._spec, upload=self._upload if "code" in self._names else None)

    async def _handle(self, kind: str, data: bytes, name: str) -> str:
        """Handles one event of the parser; returns the name of the part that it belongs to."""
        if kind == "begin":
            name = data.decode("utf-8", "replace")
            if name not in {"spec", "code"}:
                raise InvalidRequest("a submission has the parts `spec` and `code` and no other; this one has another")
            if name in self._names:
                raise InvalidRequest(f"a submission has one part `{name}`; this one has two")
            self._names.add(name)
            self._spec_text = bytearray() if name == "spec" else None
        elif kind == "data" and self._spec_text is None:
            await self._upload.write(data)
        elif kind == "data" and self._spec_text is not None:
            self._spec_text += data
            if len(self._spec_text) > self._max_spec:
                raise TooLarge(f"a spec has at most {self._max_spec} bytes")
        elif name == "spec" and self._spec_text is not None:
            self._spec = await read_spec_in_thread(
                bytes(self._spec_text), "json" if self._part.media == "application/json" else "yaml", self._cluster
            )
            self._spec_text = None
        return name

    def _on_begin(self) -> None:
        self._part = _Part()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._part.header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._part.value += data[start:end]

    def _on_header_end(self) -> None:
        self._part.headers[self._part.header.lower()] = self._part.value
        self._part.header = self._part.value = b""

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._part.headers.get(b"content-disposition", b""))
        media, _ = parse_options_header(self._part.headers.get(b"content-type", b""))
        self._part.media = media.decode("latin-1")
        self._events.append(("begin", options.get(b"name", b"")))

    def _on_end(self) -> None:
        self._complete = True
