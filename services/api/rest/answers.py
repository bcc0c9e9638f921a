"""How answers are sent: JSON without NaN, errors as RFC 9457 problems, all of the one table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from services.api.serializers import encoded
from services.core.domain.errors import WeftError, row

PROBLEM: Final = "application/problem+json"


def answer(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encoded(body), status_code=status, headers=headers, media_type="application/json")


def replayable(replayed: bool, headers: Mapping[str, str]) -> dict[str, str]:  # noqa: FBT001 - of one word's length
    """The headers of an answer to what may come again under its idempotency key."""
    return {**headers, **({"Idempotency-Replayed": "true"} if replayed else {})}


def problem(error: WeftError, trace_id: str) -> dict[str, Any]:
    shown = row(error)
    return {
        "type": shown.problem_type,
        "title": shown.code.replace("-", " ").capitalize(),
        "status": shown.http,
        "code": shown.code,
        "detail": error.message,
        "errors": [
            {"pointer": one.pointer, "message": one.message, **({"hint": one.hint} if one.hint else {})}
            for one in error.errors
        ],
        "trace_id": trace_id,
    }


def refusal(error: WeftError, trace_id: str) -> Response:
    """The error as a response, with when to try again where that may help."""
    body = problem(error, trace_id)
    headers: dict[str, str] = {}
    if error.retry_after_s is not None or body["status"] in {429, 503, 507}:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s or 1)))
    if body["status"] == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="weft"'
    return Response(encoded(body), status_code=body["status"], headers=headers, media_type=PROBLEM)


def http_refusal(status: int, trace_id: str, headers: Mapping[str, str] | None = None) -> Response:
    """What HTTP itself refuses and the table has no error for: a method that a path does not have."""
    phrase = HTTPStatus(status).phrase
    code = phrase.lower().replace(" ", "-")
    body = {
        "type": f"urn:weft:error:{code}", "title": phrase.capitalize(), "status": status, "code": code,
        "detail": phrase, "errors": [], "trace_id": trace_id,
    }  # fmt: skip
    return Response(encoded(body), status_code=status, headers=headers, media_type=PROBLEM)
