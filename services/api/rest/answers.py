"""HTTP responses: answers as JSON, errors as problems (RFC 9457) of the one error table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from services.api.answers import to_json
from services.core.domain.errors import WeftError, row

PROBLEM: Final = "application/problem+json"


def answer(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The answer of a use case as a response."""
    return Response(to_json(body), status_code=status, headers=headers, media_type="application/json")


def replay_headers(*, replayed: bool, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers, and ``Idempotency-Replayed`` if the answer is a replay."""
    return {**headers, **({"Idempotency-Replayed": "true"} if replayed else {})}


def problem(error: WeftError, trace_id: str) -> dict[str, Any]:
    """The error as an RFC 9457 document."""
    shown = row(error)
    return {
        "type": shown.problem_type,
        "title": shown.code.replace("-", " ").capitalize(),
        "status": shown.http,
        "code": shown.code,
        "detail": error.message,
        "errors": [
            {"pointer": field.pointer, "message": field.message, **({"hint": field.hint} if field.hint else {})}
            for field in error.errors
        ],
        "trace_id": trace_id,
    }


def error_response(error: WeftError, trace_id: str) -> Response:
    """The error as a response, with ``Retry-After`` where a retry may succeed."""
    body = problem(error, trace_id)
    headers: dict[str, str] = {}
    if error.retry_after_s is not None or body["status"] in {429, 503, 507}:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s or 1)))
    if body["status"] == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="weft"'
    return Response(to_json(body), status_code=body["status"], headers=headers, media_type=PROBLEM)


def http_error_response(status: int, trace_id: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error of HTTP itself, which the table lacks: a method that a path does not have, a wrong range."""
    phrase = HTTPStatus(status).phrase
    code = phrase.lower().replace(" ", "-")
    body = {
        "type": f"urn:weft:error:{code}",
        "title": phrase.capitalize(),
        "status": status,
        "code": code,
        "detail": phrase,
        "errors": [],
        "trace_id": trace_id,
    }
    return Response(to_json(body), status_code=status, headers=headers, media_type=PROBLEM)
