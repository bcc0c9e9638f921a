"""The outermost layer of gRPC: nothing passes unauthenticated or without its permission, or ends in no status of ours.

Each method declares what it needs (``@needs``) where it stands; one that declares nothing is closed, and fails the test
that asks the running server for its methods. Messages are read in here, so that bytes which are none are refused as
what they are: gRPC's own reader would call them an internal error.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from services.api.access import Permission, Principal
from services.api.grpc.errors import status_of
from services.api.idempotency import checked_key
from services.api.services import ApiServices
from services.api.stale_cache import reporting_age
from services.core.domain.errors import (
    Internal,
    InvalidRequest,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    WeftError,
)

PUBLIC: Final = "public"
OPEN_SERVICES: Final = frozenset({"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"})
"""Need no key, as REST's OpenAPI document needs none."""
_MARK: Final = "weft_permission"
_UNARY_S: Final = 60.0
"""How long an answer may take; callers may have less patience."""
_UPLOAD_S: Final = 3600.0
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_F = TypeVar("_F", bound=Callable[..., Any])
Context = grpc.aio.ServicerContext[Any, Any]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Call:
    """Who calls, and what came with it."""

    principal: Principal
    trace: str
    """W3C traceparent."""
    key: str | None
    """The idempotency key."""


_call: ContextVar[Call] = ContextVar("call")


def needs(permission: Permission | str) -> Callable[[_F], _F]:
    """What a method's caller must be allowed; ``PUBLIC``: nothing, nor a key."""

    def mark(method: _F) -> _F:
        setattr(method, _MARK, permission)
        return method

    return mark


def permission_of(behaviour: Callable[..., Any]) -> Any:
    """None where it declares nothing."""
    return getattr(behaviour, _MARK, None)


def current() -> Call:
    """The call that is being answered."""
    return _call.get()


class AuthInterceptor(grpc.aio.ServerInterceptor):
    def __init__(self, services: ApiServices) -> None:
        self._services = services

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler, guarded; unknown methods stay unknown."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.strip("/").partition("/")[0] in OPEN_SERVICES:
            return handler
        read, write = handler.request_deserializer, handler.response_serializer
        if handler.request_streaming and not handler.response_streaming:
            guarded = self._unary(method, handler.stream_unary, _all_read(read), limit_s=_UPLOAD_S)
            return grpc.stream_unary_rpc_method_handler(guarded, None, write)
        if handler.request_streaming:  # none of ours does; one that is added must not slip through unguarded
            raise NotImplementedError(f"{method} streams both ways, which nothing here guards")
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(method, handler.unary_stream, _one_read(read)), None, write
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(method, handler.unary_unary, _one_read(read), limit_s=_UNARY_S), None, write
        )

    def _unary(
        self,
        method: str,
        behaviour: Callable[..., Awaitable[Any]],
        read: Callable[[Any], Any],
        *,
        limit_s: float,
    ) -> Callable[..., Awaitable[Any]]:
        async def call(raw: Any, context: Context) -> Any:
            async with self._guarded(method, permission_of(behaviour), context):
                try:
                    with reporting_age() as age:
                        async with asyncio.timeout(limit_s):
                            reply = await behaviour(read(raw), context)
                    if age.seconds is not None:  # only what is looked at can be old, and that has no other trailers
                        context.set_trailing_metadata((("age", str(round(age.seconds))),))
                    return reply
                except TimeoutError:
                    raise Unavailable(f"no answer within {limit_s:.0f} s; try again", retry_after_s=1) from None

        return call

    def _stream(
        self, method: str, behaviour: Callable[..., AsyncGenerator[Any]], read: Callable[[Any], Any]
    ) -> Callable[..., AsyncIterator[Any]]:
        async def call(raw: Any, context: Context) -> AsyncIterator[Any]:
            async with (
                self._guarded(method, permission_of(behaviour), context),
                aclosing(self._while_serving(lambda: behaviour(read(raw), context))) as replies,
            ):
                async for reply in replies:
                    yield reply

        return call

    async def _while_serving(self, begin: Callable[[], AsyncGenerator[Any]]) -> AsyncGenerator[Any]:
        """The replies; Unavailable once the service is to stop: what was not said to be the end was cut."""
        replies = begin()
        stopping = asyncio.ensure_future(self._services.stopping.wait())
        reading: asyncio.Future[Any] | None = None
        self._services.instrumentation.followers.inc()
        try:
            while True:
                reading = asyncio.ensure_future(anext(replies))
                await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    raise Unavailable("the service is being restarted; go on after the last item", retry_after_s=1)
                try:
                    reply = reading.result()
                except StopAsyncIteration:
                    return
                yield reply
        finally:
            self._services.instrumentation.followers.dec()
            stopping.cancel()
            if reading is not None and not reading.done():
                reading.cancel()
                await asyncio.wait({reading})
            await replies.aclose()

    @asynccontextmanager
    async def _guarded(self, method: str, permission: Any, context: Context) -> AsyncGenerator[None]:
        """Inside it, ``current()`` is this call's; what is raised ends the call as one of the table's errors."""
        metadata = dict(context.invocation_metadata() or ())
        match = _TRACEPARENT.fullmatch(str(metadata.get("traceparent", "")))
        trace_id = match[1] if match else secrets.token_hex(16)
        trace = f"00-{trace_id}-{secrets.token_hex(8)}-01"
        structlog.contextvars.bind_contextvars(trace_id=trace_id, traceparent=trace)
        begun, code = time.monotonic(), "OK"
        try:
            await self._enter(permission, metadata, trace)
            yield
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except Exception as error:  # the outermost edge, as REST's: its text is for the log and not for strangers
            if not isinstance(error, WeftError):
                log.exception("api.failed", method=method)
                error = Internal("an internal error; the service's log has its trace")
            status, message, trailing = status_of(error, trace_id)
            code = status.name
            await context.abort(status, message, trailing)
        finally:
            self._services.instrumentation.calls.labels(method, code).inc()
            self._services.instrumentation.call_seconds.labels(method).observe(time.monotonic() - begun)

    async def _enter(self, permission: Any, metadata: dict[str, Any], trace: str) -> None:
        if permission == PUBLIC:
            return
        kind, _, token = str(metadata.get("authorization", "")).partition(" ")
        if kind.lower() != "bearer" or not token:
            raise Unauthenticated("this needs a key: send the metadata `authorization: Bearer weft_...`")
        principal = await self._services.keys.authenticate(token.strip())
        if permission is None or not principal.allows(permission):
            raise PermissionDenied(f"this key may not do this (it needs {permission})")
        _call.set(Call(principal, trace, checked_key(metadata.get("idempotency-key"))))


def _one_read(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decoded(raw: bytes) -> Any:
        try:
            return read(raw)
        except (DecodeError, ValueError):
            raise InvalidRequest("these bytes are no message of this method") from None

    return decoded


def _all_read(read: Callable[[bytes], Any]) -> Callable[[AsyncIterator[bytes]], AsyncIterator[Any]]:
    one = _one_read(read)

    async def decoded(raw: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for message in raw:
            yield one(message)

    return decoded
