"""A gRPC client like a user's program: a channel with a key, and errors with their details."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import grpc.aio
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from services.core.gen.weft.v1 import jobs_pb2_grpc, platform_pb2_grpc

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z")


@dataclass(frozen=True)
class Refused:
    """The error of a call."""

    status: str
    message: str
    code: str
    """Stable code, as in docs/api.md."""
    trace_id: str
    fields: dict[str, str]
    retry_s: float | None


def refusal(error: grpc.aio.AioRpcError) -> Refused:
    """The error with its google.rpc details."""
    status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]  # takes any call with trailers
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    details: dict[str, Any] = {}
    for detail in status.details if status is not None else ():
        for kind in (info, bad, retry):
            if detail.Is(kind.DESCRIPTOR):
                detail.Unpack(kind)
                details[kind.DESCRIPTOR.name] = kind
    return Refused(
        status=error.code().name,
        message=error.details() or "",
        code=info.reason,
        trace_id=info.metadata["trace_id"] if info.metadata else "",
        fields={violation.field: violation.description for violation in bad.field_violations},
        retry_s=retry.retry_delay.ToMilliseconds() / 1000 if "RetryInfo" in details else None,
    )


class Rpc:
    """Stubs of all services for one key; ``None``: without a key."""

    def __init__(self, address: str, key: str | None) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),))
        self.metadata: tuple[tuple[str, str], ...] = (("authorization", f"Bearer {key}"),) if key is not None else ()
        self.jobs: Any = jobs_pb2_grpc.JobsStub(self.channel)
        self.platform: Any = platform_pb2_grpc.PlatformStub(self.channel)
        self.keys: Any = platform_pb2_grpc.KeysStub(self.channel)
        self.secrets: Any = platform_pb2_grpc.SecretsStub(self.channel)

    def under(self, key: str) -> tuple[tuple[str, str], ...]:
        """Metadata with an idempotency key."""
        return (*self.metadata, ("idempotency-key", key))

    async def refused(self, call: Any) -> Refused:
        """The error of a call or of a stream. Raises AssertionError if it succeeds."""
        try:
            if hasattr(call, "read"):
                async for _ in call:
                    pass
            else:
                await call
        except grpc.aio.AioRpcError as error:
            return refusal(error)
        raise AssertionError("it was not refused")


async def stream_of(messages: Sequence[Any]) -> AsyncIterator[Any]:
    for message in messages:
        yield message


@asynccontextmanager
async def speaking(address: str, key: str | None) -> AsyncGenerator[Rpc]:
    rpc = Rpc(address, key)
    try:
        yield rpc
    finally:
        await rpc.channel.close()


def as_json(message: Message) -> Any:
    """The message as REST shows it; absent and empty values are left out (see ``bare``)."""
    if isinstance(message, Timestamp):
        return message.ToDatetime(UTC)
    if isinstance(message, Struct):
        return bare(MessageToDict(message))
    out: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        name = "from" if field.name == "from_status" else field.name
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            out[name] = {key: as_json(item) if isinstance(item, Message) else item for key, item in value.items()}
        elif field.is_repeated:
            out[name] = [as_json(item) if isinstance(item, Message) else item for item in value]
        elif not field.has_presence or message.HasField(field.name):
            out[name] = as_json(value) if isinstance(value, Message) else value
    return bare(out)


def bare(value: Any) -> Any:
    """JSON without null, empty lists and empty objects; times are datetimes."""
    if isinstance(value, dict):
        kept = {key: bare(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None and item not in ({}, [])}
    if isinstance(value, list):
        return [bare(item) for item in value]
    if isinstance(value, str) and _TIME.fullmatch(value):
        return datetime.fromisoformat(value)
    return value
