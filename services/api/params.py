"""What may be asked with an action, and within which bounds: the same models for the parameters of every door.

A door fills them (REST from the query, gRPC from the message) and lets pydantic refuse; so both refuse alike.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.core.domain.errors import FieldError, InvalidRequest

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
Seq = Annotated[int | None, Field(ge=0, lt=2**53)]
Small = Annotated[int | None, Field(ge=0, lt=2**31)]


class Params(BaseModel):
    model_config = ConfigDict(frozen=True)


class TenantParams(Params):
    tenant: str | None = None


class JobsParams(Params):
    tenant: str | None = None
    status: list[str] | None = None
    name: str | None = None
    tag: str | None = None
    user: str | None = None
    after: str | None = None
    limit: int = Field(default=50, ge=1, le=500)
    fields: str | None = None


class HistoryParams(Params):
    after: int = Field(default=0, ge=0, lt=2**53)


class LinesParams(Params):
    after: Seq = None
    limit: int = Field(default=1000, ge=1, le=10_000)
    rank: Small = None
    role: str | None = None
    attempt: Small = None
    stream: str | None = None
    since: str | None = None
    until: str | None = None
    search: str | None = Field(default=None, max_length=1000, description="A regular expression")
    tail: int | None = Field(default=None, ge=0, le=10_000)


class PointsParams(Params):
    after: Seq = None
    limit: int = Field(default=10_000, ge=1, le=50_000)
    name: list[str] | None = None
    rank: Small = None
    attempt: Small = None
    max_points: int | None = Field(default=None, ge=2, le=100_000)


class EventsParams(Params):
    after: Seq = None


class ArtifactsParams(Params):
    attempt: int | None = Field(default=None, ge=1, lt=2**31)
    prefix: str = ""
    after: str | None = None
    limit: int = Field(default=1000, ge=1, le=1000)


class KeyParams(BaseModel):
    """What is left out is the caller's own; the scope is user."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = ""
    user: str | None = None
    tenant: str | None = None
    scope: str | None = None


def wrong(parameter: str, message: str) -> InvalidRequest:
    """A parameter that is none."""
    return InvalidRequest(message, errors=(FieldError(f"/query/{parameter}", message),))


def checked_digest(digest: str) -> str:
    """The name of code that lies here already. InvalidRequest where it cannot be one."""
    if _DIGEST.fullmatch(digest) is None:
        raise wrong("code_digest", "a digest is sha256: and 64 hexadecimal digits")
    return digest


def refused(found: ValidationError, at: str) -> InvalidRequest:
    """The error of wrong parameters, each by its place below ``at``; what was sent is not repeated."""
    errors = tuple(
        FieldError(at + "".join(f"/{part}" for part in one["loc"]), one["msg"])
        for one in found.errors(include_url=False, include_input=False, include_context=False)
    )
    first = errors[0]
    return InvalidRequest(f"{first.pointer.rpartition('/')[2]}: {first.message}", errors=errors)


def unix_ms(name: str, given: str | None) -> int | None:
    """Unix milliseconds of an RFC 3339 time; without an offset it is UTC."""
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given.replace(" ", "+"))
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise wrong(name, "a time is written as 2026-11-21T13:20:00Z") from None
