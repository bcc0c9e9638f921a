"""Calls another service: a channel that carries our credential, reconnects fast, and raises WeftErrors.

Use ``connect`` once per server and process; generated stubs take the channel. Every call needs a ``timeout``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from services.core.adapters.rpc.transport import dial
from services.core.adapters.rpc.wire import ERROR_KEY, MAX_MESSAGE, RETRY_KEY, TIME_KEY
from services.core.domain.errors import TABLE, Unavailable, WeftError
from services.core.runtime.address import Address

OPTIONS: Final = (
    # Reconnects to a restarted service within half a second instead of gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # No pause, in spite of its name: the time that a server has to answer the first bytes. On a busy machine it takes
    # long; one that does not listen refuses at once.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    # No bandwidth probe after each message: it wakes both sides, and the services are near each other.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    # The service is on loopback or in the cluster: never use a proxy.
    ("grpc.enable_http_proxy", 0),
)
_BY_CODE: Final = {shown.code: kind for kind, shown in TABLE.items() if kind is not WeftError}
_AWAY: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})
_LOST: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
"""Of a call that we did not cancel ourselves."""


class Credential(Protocol):
    """A caller's credential: it proves the identity of the caller in each call."""

    def authorization(self) -> str:
        """Returns the value of the metadata ``authorization`` for a call now."""
        ...

    def correct(self, server_ms: int) -> bool:
        """Takes over the clock of the server that has refused the credential (Unix ms).

        Returns True if the call is worth another try.
        """
        ...


class LearnerCredential:
    """The token of a learner, which its helper sends. It does not depend on clocks."""

    def __init__(self, token: str) -> None:
        self._authorization = f"Learner {token}"

    def authorization(self) -> str:
        return self._authorization

    def correct(self, server_ms: int) -> bool:
        return False


@contextmanager
def _cancelled_with_us(call: Any) -> Generator[None]:
    """Cancels the call if we are cancelled while we wait for it."""
    try:
        yield
    except asyncio.CancelledError:
        call.cancel()
        raise


class _Authorizing:
    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    def _with(self, details: Any) -> Any:
        entry = ("authorization", self._credential.authorization())
        return details._replace(metadata=grpc.aio.Metadata(*(details.metadata or ()), entry))

    async def _tried_again(self, call: Any, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """The call; a second one if it was refused for its time and the credential has taken over the server's."""
        with _cancelled_with_us(call):
            if not call.done() or await call.code() is not grpc.StatusCode.UNAUTHENTICATED:
                return call
            server_ms = dict(await call.trailing_metadata() or ()).get(TIME_KEY)
        if server_ms is None or not self._credential.correct(int(server_ms)):
            return call
        return await continuation(self._with(details), request)


class _UnaryCredential(_Authorizing, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        call = await continuation(self._with(client_call_details), request)
        with _cancelled_with_us(call):
            await call.code()
        return await self._tried_again(call, continuation, client_call_details, request)


class _StreamCredential(_Authorizing, grpc.aio.UnaryStreamClientInterceptor):
    """A class of its own: a channel uses an interceptor of both kinds for unary calls only."""

    async def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        call = await continuation(self._with(client_call_details), request)
        with _cancelled_with_us(call):
            await call.initial_metadata()  # comes with the first reply, or with the refusal
        return await self._tried_again(call, continuation, client_call_details, request)


def connect(address: Address | str, credential: Credential, *, server_name: str | None = None) -> grpc.aio.Channel:
    """A channel to an inner server, whose calls carry the credential. Connects at its first call.

    ``server_name``: the name in the server's certificate, if it is not that of the address. Raises as ``dial``.
    """
    return _dial(address, server_name, _UnaryCredential(credential), _StreamCredential(credential))


class Channels:
    """Channels to a service whose address may change, one for each address.

    Channels to former addresses stay open: gRPC cancels the calls of a channel that is closed, and that would cancel
    the tasks that wait for them. A service moves seldom, and gRPC disconnects a channel without calls.
    """

    def __init__(self, credential: Credential) -> None:
        """``credential``: for calls of the service."""
        self._credential = credential
        self._open: dict[Address, grpc.aio.Channel] = {}

    def to(self, address: Address) -> grpc.aio.Channel:
        """Returns the channel to the address. It connects at its first call. Raises as ``dial``."""
        if address not in self._open:
            self._open[address] = connect(address, self._credential)
        return self._open[address]

    async def close(self) -> None:
        """Cancels the calls under way."""
        while self._open:
            await self._open.popitem()[1].close()


def connect_for_callers(address: Address | str, *, server_name: str | None = None) -> grpc.aio.Channel:
    """As ``connect``, but each call must bring its credential: one that was received is handed on."""
    return _dial(address, server_name)


def _dial(
    address: Address | str, server_name: str | None, *interceptors: grpc.aio.ClientInterceptor
) -> grpc.aio.Channel:
    options = OPTIONS if server_name is None else (*OPTIONS, ("grpc.ssl_target_name_override", server_name))
    return dial(
        address if isinstance(address, Address) else Address(address), options=options, interceptors=interceptors
    )


def is_lost(error: grpc.aio.AioRpcError) -> bool:
    """Whether the connection was lost, or there was none: the server's own refusal carries the name of its error."""
    trailing = dict(error.trailing_metadata() or ())
    return error.code() in _LOST and ERROR_KEY not in trailing


def translated(error: grpc.RpcError, server: str = "the service") -> WeftError:
    """The WeftError that the server raised, or Unavailable if it did not answer. ``server`` names it in messages."""
    code = error.code() if callable(getattr(error, "code", None)) else None
    entries: Any = error.trailing_metadata() if callable(getattr(error, "trailing_metadata", None)) else None
    trailing: dict[str, Any] = dict(entries or ())
    name = code.name if code is not None else "UNAVAILABLE"
    details = (error.details() if callable(getattr(error, "details", None)) else "") or name
    retry_ms = trailing.get(RETRY_KEY)
    kind = _BY_CODE.get(str(trailing.get(ERROR_KEY, "")))
    if kind is not None:
        return kind(details, retry_after_s=int(retry_ms) / 1000 if retry_ms else None)
    if name in _AWAY:
        return Unavailable(f"{server} does not answer ({name.lower()})", retry_after_s=1)
    return WeftError(f"{name.lower()}: {details}")


@contextmanager
def translating(server: str = "the service") -> Any:
    """Within the context, calls raise WeftErrors instead of gRPC's errors."""
    try:
        yield
    except grpc.RpcError as error:
        raise translated(error, server) from None


async def streaming(call: Any) -> AsyncGenerator[Any]:
    """The replies of a streaming call, with WeftErrors. Cancels the call when the reader stops."""
    try:
        async for reply in call:
            yield reply
    except grpc.RpcError as error:
        raise translated(error) from None
    finally:
        call.cancel()
