"""Small JSON bodies: of limited size, strictly validated, and never repeated in an error."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from services.api.idle_limit import within_idle_limit
from services.core.domain.errors import FieldError, InvalidRequest, TooLarge
from services.core.domain.spec_errors import plain_message

MAX_BODY: Final = 64 * 1024
T = TypeVar("T", bound=BaseModel)


def body_of(request: Request) -> AsyncGenerator[bytes]:
    """The body, piece by piece. Raises Unavailable if the client pauses for longer than ``body_idle_s``."""
    return within_idle_limit(request.stream(), request.app.state.services.settings.body_idle_s)


async def read_body(request: Request, limit: int, *, what: str = "this body") -> bytes:
    """The whole body. Raises TooLarge as soon as it is longer than ``limit`` bytes, and as ``body_of``.

    ``what`` names the body in the error.
    """
    body = bytearray()
    async for chunk in body_of(request):
        body += chunk
        if len(body) > limit:
            raise TooLarge(f"{what} has at most {limit} bytes")
    return bytes(body)


async def read_model(request: Request, model: type[T], *, limit: int = MAX_BODY) -> T:
    """The body, of at most ``limit`` bytes, as a model. Raises InvalidRequest with every wrong field, TooLarge."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise InvalidRequest("send this as application/json")
    body = await read_body(request, limit)
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as invalid:
        errors = tuple(
            FieldError("".join(f"/{part}" for part in error["loc"] if isinstance(part, str)), plain_message(error))
            for error in invalid.errors(include_url=False, include_input=False)
        )
        raise InvalidRequest.of(errors, document="the body") from None


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """For ``openapi_extra``: routes read their bodies themselves, after authentication."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
