"""gRPC as a user's program speaks it: a channel with a key, and errors taken apart."""

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
    """What a call ended with."""

    status: str
    message: str
    code: str
    """Of docs/api.md."""
    trace_id: str
    fields: dict[str, str]
    retry_s: float | None


def refusal(error: grpc.aio.AioRpcError) -> Refused:
    """The error with its google.rpc details, as any program would read them."""
    status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]  # takes any call with trailers
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    found: dict[str, Any] = {}
    for detail in status.details if status is not None else ():
        for kind in (info, bad, retry):
            if detail.Is(kind.DESCRIPTOR):
                detail.Unpack(kind)
                found[kind.DESCRIPTOR.name] = kind
    return Refused(
        status=error.code().name,
        message=error.details() or "",
        code=info.reason,
        trace_id=info.metadata["trace_id"] if info.metadata else "",
        fields={one.field: one.description for one in bad.field_violations},
        retry_s=retry.retry_delay.ToMilliseconds() / 1000 if "RetryInfo" in found else None,
    )


class Rpc:
    """Stubs of all services for one key. Use ``key=None`` for a stranger."""

    def __init__(self, address: str, key: str | None) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),))
        self.metadata: tuple[tuple[str, str], ...] = (("authorization", f"Bearer {key}"),) if key is not None else ()
        self.jobs: Any = jobs_pb2_grpc.JobsStub(self.channel)
        self.platform: Any = platform_pb2_grpc.PlatformStub(self.channel)
        self.keys: Any = platform_pb2_grpc.KeysStub(self.channel)

    def under(self, key: str) -> tuple[tuple[str, str], ...]:
        """Metadata with an idempotency key."""
        return (*self.metadata, ("idempotency-key", key))

    async def refused(self, call: Any) -> Refused:
        """What an awaited call, or a stream, ends with. AssertionError where it does not fail."""
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
    for one in messages:
        yield one


@asynccontextmanager
async def speaking(address: str, key: str | None) -> AsyncGenerator[Rpc]:
    rpc = Rpc(address, key)
    try:
        yield rpc
    finally:
        await rpc.channel.close()


def as_shape(message: Message) -> Any:
    """The message as JSON would show it; what is absent, empty or null is left out (see ``bare``)."""
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
            out[name] = {key: as_shape(one) if isinstance(one, Message) else one for key, one in value.items()}
        elif field.is_repeated:
            out[name] = [as_shape(one) if isinstance(one, Message) else one for one in value]
        elif not field.has_presence or message.HasField(field.name):
            out[name] = as_shape(value) if isinstance(value, Message) else value
    return bare(out)


def bare(value: Any) -> Any:
    """JSON without what says nothing (null, empty lists and objects); times as times, spelt-out numbers as numbers."""
    if isinstance(value, dict):
        kept = {key: bare(one) for key, one in value.items()}
        return {key: one for key, one in kept.items() if one is not None and one not in ({}, [])}
    if isinstance(value, list):
        return [bare(one) for one in value]
    if isinstance(value, str) and _TIME.fullmatch(value):
        return datetime.fromisoformat(value)
    return value
