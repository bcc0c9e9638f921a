"""gRPC messages from answers, and parameters from messages.

A message's fields have the names of the answer's. A field of an answer that its message lacks raises ValueError: an
entry point cannot show less than the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import UNSET
from pydantic import BaseModel, ValidationError

from services.api.answers import Answer, Done, Time, printable
from services.api.params import invalid_params, wrong_parameter
from services.api.use_cases.telemetry import JobSeries
from services.core.gen.weft.v1 import jobs_pb2

M = TypeVar("M", bound=Message)
P = TypeVar("P", bound=BaseModel)


def message(kind: type[M], answer: Answer) -> M:
    """The answer as a message. What is None or UNSET is absent."""
    descriptors = _descriptors(kind.DESCRIPTOR)
    fields: dict[str, Any] = {}
    for name in answer.__struct_fields__:
        value = getattr(answer, name)
        if type(value) is int or type(value) is bool:
            fields[name] = value
        elif value is not None and value is not UNSET:
            fields[name] = _field(descriptors.get(name), value)
    return kind(**fields)


def changed(kind: type[M], done: Done[Any], context: grpc.aio.ServicerContext[Any, Any]) -> M:
    """The answer to a change as a message; the trailing metadata says if it is a replay."""
    if done.replayed:
        context.set_trailing_metadata((("idempotency-replayed", "true"),))
    return message(kind, done.answer)


def params(kind: type[P], request: Message, *, at: str = "/query") -> P:
    """The parameters in the message. Raises InvalidRequest with every field that is out of its bounds.

    ``at``: prefix of the pointers to wrong fields, as REST has it.
    """
    values: dict[str, Any] = {}
    for field, value in request.ListFields():
        if isinstance(value, Timestamp):
            values[field.name] = _rfc3339(field.name, value)
        elif field.name != "job_id":
            values[field.name] = _python(value)
    try:
        return kind.model_validate(values)
    except ValidationError as invalid:
        raise invalid_params(invalid.errors(include_url=False, include_input=False), at) from None


def _python(value: Any) -> Any:
    """A field's value without protobuf's containers."""
    if isinstance(value, (str, int, float, bytes)):
        return value
    return dict(value) if isinstance(value, Mapping) else list(value)


def series_message(series: JobSeries) -> jobs_pb2.JobSeries:
    """The curve with its columns as rows: a step may be absent, which a repeated number cannot express."""
    columns = zip(series.steps, series.values, series.times, series.attempts, strict=True)
    return jobs_pb2.JobSeries(
        name=printable(series.name),
        context=_plain(series.context),
        role=printable(series.role),
        rank=series.rank,
        points=[
            jobs_pb2.SeriesStep(step=step, value=float(value), time=_timestamp(time), attempt=attempt)
            for step, value, time, attempt in columns
        ],
    )


@cache
def _descriptors(descriptor: Any) -> dict[str, Any]:
    """The fields of a message by name. Cached because a page has thousands of messages."""
    return dict(descriptor.fields_by_name)


def _field(descriptor: Any, value: Any) -> Any:
    """The value as the constructor of a message takes it. Times, numbers and texts come first: pages have thousands."""
    if isinstance(value, Time):
        return _timestamp(value)
    if isinstance(value, str):
        # JSON has words for numbers that are not finite; a double has the numbers.
        return (
            float(value) if descriptor is not None and descriptor.type == descriptor.TYPE_DOUBLE else printable(value)
        )
    if isinstance(value, Answer):
        return message(_class_of(descriptor), value)
    if isinstance(value, list):
        return [_field(descriptor, item) for item in value]
    if isinstance(value, dict):
        return _map(descriptor, value)
    return value


def _map(descriptor: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    """A map field, or a google.protobuf.Struct."""
    entry = descriptor.message_type if descriptor is not None else None
    if entry is None or not entry.GetOptions().map_entry:
        plain: dict[str, Any] = _plain(value)
        return plain
    item_descriptor = entry.fields_by_name["value"]
    return {printable(key): _field(item_descriptor, item) for key, item in value.items()}


def _plain(value: Any) -> Any:
    """A JSON value as a Struct takes it: a number that is not finite becomes null, as in JSON."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _class_of(descriptor: Any) -> type[Message]:
    if descriptor is None or descriptor.message_type is None:
        raise ValueError("an answer within an answer needs a message within the message")
    return GetMessageClass(descriptor.message_type)


def _timestamp(time: Time) -> Timestamp:
    seconds, rest = divmod(time, 1000)
    return Timestamp(seconds=seconds, nanos=rest * 1_000_000)


def _rfc3339(name: str, moment: Timestamp) -> str:
    try:
        return moment.ToJsonString()
    except ValueError:
        raise wrong_parameter(name, "a time lies in the years 1 to 9999") from None
