"""Messages out of shapes, and what is asked out of messages: names are the same on both sides, so little is said twice.

A shape's key that has no field in its message is an error here, so no door can show more than the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

import grpc.aio
import msgspec
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import BaseModel, ValidationError

from services.api.params import refused, wrong
from services.api.schemas import LineJson, PointJson, SeriesJson
from services.api.serializers import encoded
from services.api.use_cases import Done
from services.core.gen.weft.v1 import jobs_pb2

M = TypeVar("M", bound=Message)
A = TypeVar("A", bound=BaseModel)
_LONE: Final = re.compile(r"[\ud800-\udfff]")


def made(kind: type[M], shape: Mapping[str, Any]) -> M:
    """The shape as a message. Numbers that JSON has no word for become absent, as they become null there."""
    return ParseDict(msgspec.json.decode(encoded(shape)), kind())


def replied(kind: type[M], done: Done, context: grpc.aio.ServicerContext[Any, Any]) -> M:
    """The answer to a change; says so where it was made before."""
    if done.replayed:
        context.set_trailing_metadata((("idempotency-replayed", "true"),))
    return made(kind, cast(Mapping[str, Any], done.answer))


def params(kind: type[A], request: Message, *, at: str = "/query") -> A:
    """What the message asks for. InvalidRequest with every field that is out of its bounds."""
    given: dict[str, Any] = {}
    for field, value in request.ListFields():
        if isinstance(value, Timestamp):
            given[field.name] = _rfc3339(field.name, value)
        elif field.name != "job_id":
            given[field.name] = value if isinstance(value, (str, int, float, bytes)) else list(value)
    try:
        return kind.model_validate(given)
    except ValidationError as found:
        raise refused(found, at) from None


def line_message(line: LineJson) -> jobs_pb2.JobLine:
    """By hand, as a page has thousands of them."""
    return jobs_pb2.JobLine(
        seq=line["seq"], time=_moment(line["time"]), attempt=line["attempt"], role=line["role"], rank=line["rank"],
        run=line["run"], stream=line["stream"], text=_LONE.sub("\ufffd", line["text"]), partial=line["partial"],
    )  # fmt: skip


def point_message(point: PointJson) -> jobs_pb2.JobPoint:
    """As lines."""
    return jobs_pb2.JobPoint(
        seq=point["seq"], time=_moment(point["time"]), attempt=point["attempt"], role=point["role"], rank=point["rank"],
        run=point["run"], source=point["source"], name=point["name"], step=point["step"], value=float(point["value"]),
        context=point["context"],
    )  # fmt: skip


def series_message(series: SeriesJson) -> jobs_pb2.JobSeries:
    """Its columns as rows: a step may be absent, which a list of numbers cannot say."""
    columns = zip(series["steps"], series["values"], series["times"], series["attempts"], strict=True)
    return jobs_pb2.JobSeries(
        name=series["name"], context=series["context"], role=series["role"], rank=series["rank"],
        points=[
            jobs_pb2.SeriesStep(step=step, value=float(value), time=_moment(time), attempt=attempt)
            for step, value, time, attempt in columns
        ],
    )  # fmt: skip


def _moment(text: str) -> Timestamp:
    out = Timestamp()
    out.FromJsonString(text)
    return out


def _rfc3339(name: str, moment: Timestamp) -> str:
    try:
        return moment.ToJsonString()
    except ValueError:
        raise wrong(name, "a time lies in the years 1 to 9999") from None
