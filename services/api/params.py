"""Parameters of requests: what their models share, and how a wrong one is refused.

REST fills the models from the query, gRPC from the message, and pydantic validates both, so both refuse alike. The
models stand beside the use cases that they belong to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from services.core.domain.errors import FieldError, InvalidRequest
from services.core.domain.spec_errors import plain_message

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
MOST_VALUES: Final = 100
"""Values of a parameter that is a list, unless its model says otherwise."""
_LONGEST: Final = 8_192
"""Characters of a text; files have the longest, in their paths. A gRPC message would have room for millions."""
END_OF_SEQ: Final = 2**53
"""Every ``seq`` of lines, points and events, and every position in a list of changes, is below it: JavaScript's numbers
are exact up to there.
"""
Seq = Annotated[int | None, Field(ge=0, lt=END_OF_SEQ)]
Step = Annotated[int | None, Field(ge=-(2**63), lt=2**63)]
Small = Annotated[int | None, Field(ge=0, lt=2**31)]


class Params(BaseModel):
    """Base of all parameters. Unknown ones are ignored. Texts are bounded here, and lists where they are declared."""

    model_config = ConfigDict(frozen=True, str_max_length=_LONGEST)


def wrong_parameter(parameter: str, message: str) -> InvalidRequest:
    """The error for a parameter of the query."""
    return InvalidRequest(message, errors=(FieldError(f"/query/{parameter}", message),))


def wrong_field(pointer: str, message: str) -> InvalidRequest:
    """The error for a field of the body; ``pointer`` is its JSON pointer."""
    return InvalidRequest.of([FieldError(pointer, message)])


def checked_digest(digest: str) -> str:
    """A digest as code archives have it. Raises InvalidRequest for any other text."""
    if _DIGEST.fullmatch(digest) is None:
        raise wrong_parameter("code_digest", "a digest is sha256: and 64 hexadecimal digits")
    return digest


def invalid_params(details: Iterable[ErrorDetails], at: str = "") -> InvalidRequest:
    """The error that lists every invalid parameter by its pointer below ``at``. ``details``: those of pydantic."""
    errors = tuple(
        FieldError(at + "".join(f"/{part}" for part in error["loc"]), plain_message(error)) for error in details
    )
    first = errors[0]
    return InvalidRequest(f"{first.pointer.rpartition('/')[2]}: {first.message}", errors=errors)


def unix_ms(name: str, text: str | None) -> int | None:
    """Unix milliseconds of an RFC 3339 time; without an offset it is UTC. ``name``: the parameter's, for the error."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise wrong_parameter(name, "a time is written as 2026-11-21T13:20:00Z") from None
