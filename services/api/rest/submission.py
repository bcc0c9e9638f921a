"""POST /v1/jobs: a spec, perhaps with code, streamed in.

The parser is pushed what arrives and the code goes straight to the spool: memory does not grow with the upload. The
spec is checked as soon as it is whole, so that a wrong one is refused before hundreds of megabytes follow it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from services.api import use_cases
from services.api.idempotency import checked_key
from services.api.params import checked_digest
from services.api.rest.answers import answer, replayable
from services.api.rest.auth_middleware import TRACE
from services.api.rest.bodies import read_body
from services.api.rest.openapi import ok
from services.api.rest.permissions import Services, Writer
from services.api.schemas import JobJson, PlanJson
from services.api.services import ApiServices
from services.api.submit import read_spec_aside
from services.api.uploads import Upload
from services.api.use_cases import Incoming
from services.core.domain.errors import FieldError, InvalidRequest, TooLarge
from services.core.domain.spec import JobSpec

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_YAML: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/plain", ""})
_OVERHEAD: Final = 64 * 1024
"""What multipart adds to its parts, at most."""
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["spec"],
                    "properties": {
                        "spec": {"type": "string", "description": "YAML or JSON; put it first"},
                        "code": {"type": "string", "format": "binary", "description": "a zip archive"},
                    },
                }
            },
            "application/json": {"schema": {"type": "object", "description": "the spec"}},
            "application/yaml": {"schema": {"type": "string", "description": "the spec"}},
        },
    }
}


@router.post(
    "",
    **ok(JobJson, "The job is durable", 201, **{"200": {"model": PlanJson, "description": "The answer of a dry run"}}),
    openapi_extra=_BODY,
)
async def submit_job(
    services: Services,
    principal: Writer,
    request: Request,
    tenant: str | None = None,
    code_digest: str | None = None,
    *,
    dry_run: Annotated[bool, Query(description="Only say what would become of it")] = False,
) -> Response:
    key = checked_key(request.headers.get("idempotency-key"))
    into = principal.acting_tenant(tenant)
    async with contextlib.AsyncExitStack() as closing:
        with services.instrumentation.counting_refused_code():
            incoming = await _receive(request, services, closing, code_digest)
        if dry_run:
            return answer(await use_cases.plan_job(services, into, incoming))
        done = await use_cases.submit_job(services, principal, into, incoming, key=key, trace=request.scope[TRACE])
    headers = {"Location": f"/v1/jobs/{done.answer['id']}", "ETag": f'"{done.answer["generation"]}"'}
    return answer(done.answer, status=201, headers=replayable(done.replayed, headers))


async def _receive(
    request: Request, services: ApiServices, closing: contextlib.AsyncExitStack, code_digest: str | None
) -> Incoming:
    limits = services.settings
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    media = kind.decode("latin-1")
    if media == "multipart/form-data":
        if code_digest is not None:
            raise _wrong("/query/code_digest", "give either code or its digest, not both")
        _check_length(request, limits.max_code_bytes + limits.max_spec_bytes + _OVERHEAD)
        upload = await closing.enter_async_context(services.uploads.receive())
        return await _Parts(options.get(b"boundary", b""), upload, limits.max_spec_bytes).read(request.stream())
    if media != "application/json" and media not in _YAML:
        raise InvalidRequest(
            "send multipart/form-data with the parts `spec` and `code`, application/json or application/yaml"
        )
    if code_digest is not None:
        checked_digest(code_digest)
    text = await read_body(request, limits.max_spec_bytes, what="a spec")
    spec = await read_spec_aside(text, "json" if media == "application/json" else "yaml")
    return Incoming(spec, code_digest or "")


def _check_length(request: Request, limit: int) -> None:
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > limit:
        raise TooLarge(f"this is larger than the {limit} bytes that are taken in; leave data out of the code")


def _wrong(pointer: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{pointer}: {message}", errors=(FieldError(pointer, message),))


@dataclass(slots=True)
class _Part:
    name: str = ""
    media: str = ""
    header: bytes = b""
    value: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)


class _Parts:
    """The parts ``spec`` and ``code`` out of a multipart stream, in any order."""

    def __init__(self, boundary: bytes, upload: Upload, max_spec_bytes: int) -> None:
        if not boundary:
            raise InvalidRequest("the Content-Type names no boundary between the parts")
        self._upload = upload
        self._max_spec = max_spec_bytes
        self._events: list[tuple[str, bytes]] = []
        """What one piece of the body contained: begin (with the name), data, end."""
        self._part = _Part()
        self._spec_text: bytearray | None = None
        self._spec: JobSpec | None = None
        self._seen: set[str] = set()
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
        name = ""
        try:
            async for piece in stream:
                if not piece:
                    continue
                self._parser.write(piece)
                for kind, data in self._events:
                    name = await self._take(kind, data, name)
                self._events.clear()
        except FormParserError:
            raise InvalidRequest("the body is not the multipart/form-data that its Content-Type says") from None
        if not self._complete:
            raise InvalidRequest("the body ends in the middle of a part")
        if self._spec is None:
            raise _wrong("/spec", "the part `spec` is missing")
        return Incoming(self._spec, upload=self._upload if "code" in self._seen else None)

    async def _take(self, kind: str, data: bytes, name: str) -> str:
        if kind == "begin":
            name = data.decode("utf-8", "replace")
            if name not in {"spec", "code"}:
                raise InvalidRequest("there are two parts: `spec` and `code`; this has another one")
            if name in self._seen:
                raise InvalidRequest(f"the part `{name}` came twice")
            self._seen.add(name)
            self._spec_text = bytearray() if name == "spec" else None
        elif kind == "data" and self._spec_text is None:
            await self._upload.write(data)
        elif kind == "data" and self._spec_text is not None:
            self._spec_text += data
            if len(self._spec_text) > self._max_spec:
                raise TooLarge(f"a spec has at most {self._max_spec} bytes")
        elif name == "spec" and self._spec_text is not None:
            self._spec = await read_spec_aside(
                bytes(self._spec_text), "json" if self._part.media == "application/json" else "yaml"
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
