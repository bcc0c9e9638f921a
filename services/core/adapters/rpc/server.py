"""A gRPC server that authenticates every method and answers with the errors of the table only.

A caller is a service (``authorization: Bearer TOKEN``) or a learner's helper (``authorization: Learner TOKEN``).
Helpers may call ``weft.v1.Intake`` only; services what ``services.core.domain.service_access`` says. A handler gets the
learner by ``caller()``. Refused calls are counted by error code, and logged.

gRPC receives the message of a unary handler before it calls the handler. So every handler here is one for streams,
which receives its message (``received``) once the credential in the call's headers is verified: a refused call, however
large, takes no memory.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol

import grpc
import grpc.aio
import structlog
from prometheus_client import Counter

from services.core.adapters.rpc.transport import Listening
from services.core.adapters.rpc.wire import ERROR_KEY, MAX_MESSAGE, RETRY_KEY, TIME_KEY
from services.core.domain.errors import Internal, InvalidRequest, PermissionDenied, Unauthenticated, WeftError, row
from services.core.domain.service_access import LEARNER_SERVICES, may_call
from services.core.domain.tokens import LearnerIdentity
from services.core.runtime.address import Address

OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # No bandwidth probe after each message: it wakes both sides, and the services are near each other.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    # Clients ping every five seconds, on idle streams too; by default gRPC treats that as an attack.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
)
_LOG_S: Final = 10.0
REFUSED: Final = Counter("weft_calls_refused", "Calls between services that were refused, by error code", ("code",))
_caller: ContextVar[LearnerIdentity | None] = ContextVar("caller", default=None)
log = structlog.get_logger()


def caller() -> LearnerIdentity | None:
    """The learner whose helper makes the current call; None for a service."""
    return _caller.get()


class VerifiesServices(Protocol):
    def verify(self, token: str) -> str:
        """Returns the name of the calling service. Raises Unauthenticated."""
        ...


class VerifiesLearners(Protocol):
    def verify(self, token: str) -> LearnerIdentity:
        """Returns the learner of the token. Raises Unauthenticated."""
        ...


def learner_token(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Returns the token in the credential of a call of a learner's helper; empty for another caller."""
    kind, _, token = str(dict(context.invocation_metadata() or ()).get("authorization", "")).partition(" ")
    return token if kind == "Learner" else ""


class Guard(grpc.aio.ServerInterceptor):
    """Authenticates each call before its message is received, checks its right to call, and translates its errors."""

    def __init__(self, name: str, services: VerifiesServices | None, learners: VerifiesLearners | None = None) -> None:
        """``name``: the service that is called. ``services``, ``learners``: None where they may not call."""
        self._name, self._services, self._learners = name, services, learners
        self._logged_at: dict[str, float] = {}

    def identify(self, service: str, authorization: str) -> LearnerIdentity | None:
        """The calling learner; None for a service.

        Raises Unauthenticated for a bad credential, PermissionDenied for a good one that may not call this service.
        """
        kind, _, token = authorization.partition(" ")
        if kind == "Learner" and self._learners is not None:
            learner = self._learners.verify(token)
            if service not in LEARNER_SERVICES:
                raise PermissionDenied(f"learners' helpers may not call {service}")
            return learner
        if kind != "Bearer" or self._services is None:
            raise Unauthenticated("this call needs the token of a service or of a learner, whichever may call here")
        caller_name = self._services.verify(token)
        if service in LEARNER_SERVICES:
            raise PermissionDenied(f"only learners' helpers may call {service}")
        if not may_call(caller_name, self._name, service):
            raise PermissionDenied(f"the service {caller_name} may not call {service} of {self._name}")
        return None

    def _refused(self, error: WeftError, method: str, peer: str) -> None:
        """Counts a refused call, and logs it; of each reason and method at most one per ``_LOG_S``."""
        code = row(error).code
        REFUSED.labels(code).inc()
        now, key = time.monotonic(), f"{code} {method}"
        if now - self._logged_at.get(key, float("-inf")) >= _LOG_S:
            self._logged_at[key] = now
            log.warning("call.refused", method=method, caller=peer, code=code, why=error.message)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler with authentication; None for an unknown method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        service = method.strip("/").partition("/")[0]
        codecs = (handler.request_deserializer, handler.response_serializer)
        if handler.request_streaming:
            if handler.response_streaming:  # no RPC of Weft does; a new one must not go unauthenticated
                raise NotImplementedError(f"{method} streams both ways, which this server does not authenticate")
            guarded = self._unary(service, method, handler.stream_unary)
        elif handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(service, method, handler.unary_stream), *codecs)
        else:
            guarded = self._unary(service, method, _with_message(handler.unary_unary))
        return grpc.stream_unary_rpc_method_handler(guarded, *codecs)

    @asynccontextmanager
    async def _guarded(
        self, service: str, method: str, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[None]:
        """Inside it ``caller()`` is the caller of this call. An error inside ends the call as the error table says."""
        try:
            metadata = dict(context.invocation_metadata() or ())
            try:
                _caller.set(self.identify(service, str(metadata.get("authorization", ""))))
            except WeftError as error:
                self._refused(error, method, context.peer())
                raise
            yield
        except Exception as error:  # noqa: BLE001 - the entry point: ``abort`` logs it and sends an error of the table
            await abort(context, error, method)

    def _unary(
        self, service: str, method: str, behaviour: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def call(messages: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async with self._guarded(service, method, context):
                return await behaviour(messages, context)

        return call

    def _stream(self, service: str, method: str, behaviour: Callable[..., AsyncIterator[Any]]) -> Callable[..., Any]:
        async def call(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            async with self._guarded(service, method, context):
                async for reply in behaviour(await received(context), context):
                    yield reply

        return call


def _with_message(behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        return await behaviour(await received(context), context)

    return call


async def received(context: grpc.aio.ServicerContext[Any, Any]) -> Any:
    """Receives the one message of a call. Raises InvalidRequest if the caller ends the call without."""
    message = await context.read()
    if message is grpc.aio.EOF:
        raise InvalidRequest("the call has no message")
    return message


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
    if isinstance(error, Unauthenticated):
        trailing += ((TIME_KEY, str(round(time.time() * 1000))),)
    await context.abort(grpc.StatusCode[shown.grpc], error.message, trailing)


async def serve(
    address: Address | str,
    guard: Guard,
    register: Callable[[grpc.aio.Server], None],
    *,
    client_certificates: bool = True,
) -> Listening:
    """A started server. Raises WeftError if the address is taken (``so_reuseport`` would hide that) or unprotected.

    ``client_certificates``: TLS clients must show one. Without, only the server proves its identity by a certificate.
    """
    server = grpc.aio.server(
        interceptors=(guard,),
        options=OPTIONS,
    )
    register(server)
    at = address if isinstance(address, Address) else Address(address)
    listening = Listening(server, at, client_certificates=client_certificates)
    await listening.start()
    return listening
