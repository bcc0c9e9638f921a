"""Answers of the use cases: typed values that each entry point serialises once.

An answer has the field names of its gRPC message and of its JSON object. REST writes it as JSON (``to_json``), gRPC as
a message (``grpc.messages``). A field whose value is UNSET is left out. The descriptions of the fields appear in the
OpenAPI document and in docs/api-reference.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct, StructMeta
from typing_extensions import dataclass_transform

_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that RFC 3339 can express."""
A = TypeVar("A")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _AnswerMeta(StructMeta):
    """Makes every answer frozen and keyword-only; msgspec's options are not inherited."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> type:
        return super().__new__(mcls, name, bases, namespace, frozen=True, kw_only=True, **options)


class Answer(Struct, metaclass=_AnswerMeta):
    """Base of all answers."""


class Time(int):
    """Unix milliseconds. JSON: RFC 3339 in UTC with milliseconds; gRPC: a Timestamp.

    Made by ``as_time``, which keeps it within the years that both can express.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Done(Generic[A]):
    """The answer to a change."""

    answer: A
    replayed: bool
    """The change was made before, under the same idempotency key."""


def doc(description: str) -> Meta:
    """The description of a field."""
    return Meta(description=description)


def as_time(ms: int) -> Time:
    """A time within 1970 to 9999. A time outside (of a damaged document) becomes the nearest one inside, so that one
    damaged document does not make a whole list unreadable.
    """
    return Time(min(max(ms, 0), _LAST_MS))


def as_time_or_none(ms: int | None) -> Time | None:
    """As ``as_time``; None stays None."""
    return None if ms is None else as_time(ms)


def number(value: float) -> float | str:
    """A metric's value. JSON has no NaN and no infinities: they become the words NaN, Infinity and -Infinity."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def rfc3339(moment: Time) -> str:
    """``2026-11-21T13:20:00.123Z``."""
    seconds, rest = divmod(moment, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{rest:03d}Z"


def printable(text: str) -> str:
    """Replaces lone surrogates, which UTF-8 cannot encode, by ``?``. They come from damaged documents and from
    messages that quote a request.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def to_json(value: object) -> bytes:
    """JSON of an answer or of plain values. NaN and infinities become null, lone surrogates ``?``."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_all_printable(msgspec.to_builtins(value, enc_hook=_time_as_text)))


def json_schemas(ref_template: str) -> dict[str, Any]:
    """JSON Schema of every answer by its class's name, for the OpenAPI document."""
    _, components = msgspec.json.schema_components(
        [*_subclasses(Answer)], schema_hook=_time_schema, ref_template=ref_template
    )
    return components


def _subclasses(kind: type[Answer]) -> Iterator[type[Answer]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _time_as_text(value: object) -> str:
    if isinstance(value, Time):
        return rfc3339(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def _time_schema(kind: type) -> dict[str, Any]:
    if kind is Time:
        return {"type": "string", "format": "date-time", "examples": ["2026-11-21T13:20:00.123Z"]}
    raise NotImplementedError(f"{kind.__name__} has no JSON schema")


def _all_printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_all_printable(key): _all_printable(item) for key, item in value.items()}
    return [_all_printable(item) for item in value] if isinstance(value, list) else value


_encoder: Final = msgspec.json.Encoder(enc_hook=_time_as_text)
