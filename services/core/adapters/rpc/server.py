"""A gRPC server that authenticates every method and answers with the errors of the table only.

A caller is a service (``authorization: Bearer <service secret>``) or a learner's helper
(``authorization: Learner <token>``). Helpers may call ``weft.v1.Intake`` only; services everything else.
A handler gets the identity by ``caller()``.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from services.core.adapters.rpc.transport import Listening
from services.core.adapters.rpc.wire import ERROR_KEY, MAX_MESSAGE, RETRY_KEY
from services.core.domain.errors import Internal, PermissionDenied, Unauthenticated, WeftError, row
from services.core.domain.tokens import LearnerIdentity, verify
from services.core.runtime.address import Address

LEARNER_SERVICES: Final = frozenset({"weft.v1.Intake"})
OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # No bandwidth probe after each message: it wakes both sides, and the services are near each other.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    # Clients ping every five seconds, on idle streams too; by default gRPC treats that as an attack.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
)
_caller: ContextVar[LearnerIdentity | None] = ContextVar("caller", default=None)
log = structlog.get_logger()


def caller() -> LearnerIdentity | None:
    """The learner whose helper makes the current call; None for a service."""
    return _caller.get()


class Guard(grpc.aio.ServerInterceptor):
    """Authenticates each call before its handler runs, and translates its errors."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._bearer = f"Bearer {secret.hex()}"

    def identify(self, service: str, authorization: str) -> LearnerIdentity | None:
        """The calling learner; None for a service.

        Raises Unauthenticated for a bad credential, PermissionDenied for a good one that may not call this service.
        """
        if hmac.compare_digest(authorization.encode(), self._bearer.encode()):
            if service in LEARNER_SERVICES:
                raise PermissionDenied(f"only learners' helpers may call {service}")
            return None
        kind, _, token = authorization.partition(" ")
        learner = verify(self._secret, token) if kind == "Learner" else None
        if learner is None:
            raise Unauthenticated("this call needs the service secret or a learner's token")
        if service not in LEARNER_SERVICES:
            raise PermissionDenied(f"learners' helpers may not call {service}")
        return learner

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler with authentication; None for an unknown method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if handler.request_streaming:  # no RPC of Weft does; a new one must not go unauthenticated
            raise NotImplementedError(
                f"{handler_call_details.method} streams requests, which this server does not authenticate"
            )
        method = handler_call_details.method
        service = method.strip("/").partition("/")[0]
        codecs = (handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._stream(service, method, handler.unary_stream), *codecs)
        return grpc.unary_unary_rpc_method_handler(self._unary(service, method, handler.unary_unary), *codecs)

    @asynccontextmanager
    async def _guarded(
        self, service: str, method: str, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[None]:
        """Inside it ``caller()`` is the caller of this call. An error inside ends the call as the error table says."""
        try:
            metadata = dict(context.invocation_metadata() or ())
            _caller.set(self.identify(service, str(metadata.get("authorization", ""))))
            yield
        except Exception as error:  # noqa: BLE001 - the entry point: ``abort`` logs it and sends an error of the table
            await abort(context, error, method)

    def _unary(
        self, service: str, method: str, behaviour: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async with self._guarded(service, method, context):
                return await behaviour(request, context)

        return call

    def _stream(self, service: str, method: str, behaviour: Callable[..., AsyncIterator[Any]]) -> Callable[..., Any]:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            async with self._guarded(service, method, context):
                async for reply in behaviour(request, context):
                    yield reply

        return call


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception, method: str) -> None:
    """Ends a call with the error's row of the table. An error that is no WeftError is logged and sent as Internal."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, WeftError):
        log.error("rpc.failed", method=method, exc_info=error)
        error = Internal("an internal error; the service's log has its trace")
    shown = row(error)
    trailing: tuple[tuple[str, str], ...] = ((ERROR_KEY, shown.code),)
    if error.retry_after_s is not None:
        trailing += ((RETRY_KEY, str(round(error.retry_after_s * 1000))),)
    await context.abort(grpc.StatusCode[shown.grpc], error.message, trailing)


async def serve(address: Address | str, secret: bytes, register: Callable[[grpc.aio.Server], None]) -> Listening:
    """A started server. Raises WeftError if the address is taken (``so_reuseport`` would hide that) or unprotected."""
    server = grpc.aio.server(
        interceptors=(Guard(secret),),
        options=OPTIONS,
    )
    register(server)
    listening = Listening(server, address if isinstance(address, Address) else Address(address))
    await listening.start()
    return listening
