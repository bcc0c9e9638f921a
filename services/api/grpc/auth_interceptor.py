"""The outermost layer of gRPC: authentication, permissions, tracing, metrics, and errors of the one table.

Each method declares its permission (``@needs``) where it is defined. A method without a declaration is closed, and
fails the test that asks the running server for its methods. Messages are parsed in here and not by gRPC, which would
report malformed bytes as an internal error.

A message is received once the key in the call's headers is verified (``services.core.adapters.rpc.server``), so a call
without a key takes no memory. ``OpenCalls`` bounds those that need none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from services.api.access import Permission, Principal
from services.api.access_end import until_access_ends
from services.api.grpc.errors import status_of
from services.api.grpc.open_calls import Context, OpenCalls
from services.api.idempotency import checked_key
from services.api.request_context import bearer_key, enter_trace
from services.api.services import ApiServices
from services.api.stale_cache import reporting_age
from services.core.adapters.rpc.server import received
from services.core.domain.errors import Internal, InvalidRequest, PermissionDenied, Unavailable, WeftError

PUBLIC: Final = "public"
OPEN_SERVICES: Final = frozenset({"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"})
"""Need no key, as REST's OpenAPI document needs none."""
_PERMISSION: Final = "weft_permission"
_UNARY_S: Final = 60.0
"""Longest time for an answer; a caller's deadline may be shorter."""
_UPLOAD_S: Final = 3600.0
_F = TypeVar("_F", bound=Callable[..., Any])
Request: TypeAlias = Callable[[AsyncIterator[bytes], Context], Awaitable[Any]]
"""Returns what a behaviour gets: the message of a call, or its messages."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Call:
    """The caller, and the metadata of the call."""

    principal: Principal
    traceparent: str
    """W3C Trace Context."""
    key: str | None
    """The idempotency key."""


_call: ContextVar[Call] = ContextVar("call")


def needs(permission: Permission | str) -> Callable[[_F], _F]:
    """Declares the permission of a method; ``PUBLIC``: it needs no key."""

    def declare(method: _F) -> _F:
        setattr(method, _PERMISSION, permission)
        return method

    return declare


def permission_of(method: Callable[..., Any]) -> Any:
    """The declared permission; None if there is none."""
    return getattr(method, _PERMISSION, None)


def current() -> Call:
    """The call that is being answered."""
    return _call.get()


class AuthInterceptor(grpc.aio.ServerInterceptor):
    def __init__(self, services: ApiServices, cut: Callable[[str], None]) -> None:
        """``cut``: closes a connection, see ``OpenCalls``."""
        self._services = services
        self._open_calls = OpenCalls(cut)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The method's handler, guarded. An unknown method stays unknown."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        parse, serialize = handler.request_deserializer, handler.response_serializer
        if method.strip("/").partition("/")[0] in OPEN_SERVICES:
            return self._open_calls.handler(handler, _parser(parse))
        if handler.request_streaming:
            if handler.response_streaming:
                raise NotImplementedError(f"{method} streams both ways, and this interceptor has no guard for that")
            guarded = self._unary(method, handler.stream_unary, _parsed_stream(_parser(parse)), limit_s=_UPLOAD_S)
        elif handler.response_streaming:
            streaming = self._stream(method, handler.unary_stream, self._only(handler.unary_stream, _parser(parse)))
            return grpc.stream_stream_rpc_method_handler(streaming, None, serialize)
        else:
            request = self._only(handler.unary_unary, _parser(parse))
            guarded = self._unary(method, handler.unary_unary, request, limit_s=_UNARY_S)
        return grpc.stream_unary_rpc_method_handler(guarded, None, serialize)

    def _only(self, behaviour: Callable[..., Any], parse: Callable[[bytes], Any]) -> Request:
        """Receives and parses the one message of a call."""
        receive = self._open_calls.received if permission_of(behaviour) == PUBLIC else received

        async def request(_: AsyncIterator[bytes], context: Context) -> Any:
            return parse(await receive(context))

        return request

    def _unary(
        self,
        method: str,
        behaviour: Callable[..., Awaitable[Any]],
        request: Request,
        *,
        limit_s: float,
    ) -> Callable[..., Awaitable[Any]]:
        async def call(messages: AsyncIterator[bytes], context: Context) -> Any:
            async with self._guarded(method, permission_of(behaviour), context):
                try:
                    with reporting_age() as age:
                        async with asyncio.timeout(limit_s):
                            reply = await behaviour(await request(messages, context), context)
                    if age.seconds is not None:  # only reads can be stale, and they set no other trailing metadata
                        context.set_trailing_metadata((("age", str(round(age.seconds))),))
                    return reply
                except TimeoutError:
                    raise Unavailable(f"no answer within {limit_s:.0f} s; try again", retry_after_s=1) from None

        return call

    def _stream(
        self, method: str, behaviour: Callable[..., AsyncGenerator[Any]], request: Request
    ) -> Callable[..., AsyncIterator[Any]]:
        permission = permission_of(behaviour)
        if permission == PUBLIC:
            raise NotImplementedError(f"{method} is a stream that needs no key, whose caller cannot be checked again")

        async def call(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
            async with self._guarded(method, permission, context):
                message = await request(messages, context)
                async with aclosing(self._while_allowed(lambda: behaviour(message, context))) as replies:
                    async for reply in replies:
                        yield reply

        return call

    async def _while_allowed(self, start: Callable[[], AsyncGenerator[Any]]) -> AsyncGenerator[Any]:
        """The replies. Raises Unauthenticated when the caller loses access, and Unavailable when the service stops: a
        stream without its end was cut.
        """
        replies = start()
        stopping = asyncio.ensure_future(self._services.stopping.wait())
        access = asyncio.ensure_future(until_access_ends(self._services.sessions, current().principal))
        reading: asyncio.Future[Any] | None = None
        self._services.instrumentation.followers.inc()
        try:
            while True:
                reading = asyncio.ensure_future(anext(replies))
                await asyncio.wait({reading, stopping, access}, return_when=asyncio.FIRST_COMPLETED)
                if access.done():
                    access.result()
                if not reading.done():
                    raise Unavailable("the service is restarting; continue after the last item", retry_after_s=1)
                try:
                    reply = reading.result()
                except StopAsyncIteration:
                    return
                yield reply
        finally:
            self._services.instrumentation.followers.dec()
            stopping.cancel()
            access.cancel()
            if reading is not None and not reading.done():
                reading.cancel()
                await asyncio.wait({reading})
            await replies.aclose()

    @asynccontextmanager
    async def _guarded(self, method: str, permission: Any, context: Context) -> AsyncGenerator[None]:
        """Inside it ``current()`` is this call. An error inside ends the call as the error table says."""
        metadata = dict(context.invocation_metadata() or ())
        trace = enter_trace(str(metadata.get("traceparent", "")))
        started, code = time.monotonic(), "OK"
        try:
            await self._authorize(permission, metadata, trace.traceparent)
            yield
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except Exception as error:  # the outermost edge, as REST's: the text of other errors is for the log only
            if not isinstance(error, WeftError):
                log.exception("request.failed", method=method)
                error = Internal("an internal error; the service's log has its trace")
            status, message, trailing = status_of(error, trace.trace_id)
            code = status.name
            await context.abort(status, message, trailing)
        finally:
            self._services.instrumentation.calls.labels(method, code).inc()
            self._services.instrumentation.call_seconds.labels(method).observe(time.monotonic() - started)

    async def _authorize(self, permission: Any, metadata: dict[str, Any], traceparent: str) -> None:
        if permission == PUBLIC:
            return
        principal = await self._services.keys.authenticate(bearer_key(str(metadata.get("authorization", ""))))
        if permission is None:
            raise PermissionDenied("this method declares no permission and is closed")
        principal.require(permission)
        _call.set(Call(principal, traceparent, checked_key(metadata.get("idempotency-key"))))


def _parser(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """``parse`` that raises InvalidRequest for malformed bytes."""

    def parsed(raw: bytes) -> Any:
        try:
            return parse(raw)
        except (DecodeError, ValueError):
            raise InvalidRequest("the request is no valid message of this method") from None

    return parsed


def _parsed_stream(parse: Callable[[bytes], Any]) -> Request:
    """Parses each message of a stream when it is read."""

    async def parsed(messages: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for message in messages:
            yield parse(message)

    async def request(messages: AsyncIterator[bytes], _: Context) -> AsyncIterator[Any]:
        return parsed(messages)

    return request
