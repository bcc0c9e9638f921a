"""A connection to etcd: every call has a deadline, carries a token if there is a user, and raises WeftErrors.

Each stream has a channel of its own (``channel``). A dead channel is dropped with its connection; gRPC would keep using
it for all calls until its own pings fail.

etcd closes connections that are pinged more often than every 5 s, or pinged without an open call. The keep-alive
options below stay within that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc
import grpc.aio
from grpc.aio import UnaryUnaryMultiCallable

from services.core.adapters.rpc.transport import dial
from services.core.domain.errors import (
    Conflict,
    Internal,
    NoSpace,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WeftError,
)
from services.core.gen.weft.etcd import rpc_pb2, rpc_pb2_grpc
from services.core.runtime.address import Address

MAX_MESSAGE: Final = 256 * 2**20
"""Bytes. More than gRPC's 4 MB: for a page of a list (1000 values of up to 64 KiB) and a watch that catches up."""
_OPTIONS: Final = (
    # No bandwidth probe after each message: it wakes both sides, and etcd is near.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnects to a restarted etcd within half a second instead of gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # No pause, in spite of its name: the time that etcd has to answer the first bytes of a connection.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    # Channels of one process share neither a connection nor its back-off.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")
_STALE_TOKEN: Final = ("invalid auth token", "revision of auth store is old")


def options(max_message: int) -> tuple[tuple[str, int], ...]:
    """Options of a channel that reads messages of up to ``max_message`` bytes."""
    return (*_OPTIONS, ("grpc.max_receive_message_length", max_message))


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Authentication at etcd. All empty: plain text and no user, as on one machine."""

    user: str = ""
    password: str = ""
    ca: bytes | None = None
    """PEM. With a client certificate and no ``ca``, the system's authorities are used."""
    cert: bytes | None = None
    """PEM chain of the client certificate, with ``key``: mutual TLS."""
    key: bytes | None = None

    @property
    def tls(self) -> bool:
        return self.ca is not None or self.cert is not None


class Connection:
    """``target`` is an address of the installation, which says how it is protected, or a gRPC target:
    ``host:port``, ``dns:///name:port``, ``ipv4:a:port,b:port``, protected by ``credentials``.
    """

    def __init__(
        self, target: Address | str, *, credentials: Credentials, timeout_s: float, max_message: int = MAX_MESSAGE
    ) -> None:
        """``max_message``: the largest reply that is read, in bytes."""
        self.target = target
        self.timeout_s = timeout_s
        self.closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once this connection is closed: gRPC does not wake the reader of a stream whose channel was closed."""
        self._credentials = credentials
        self._options = options(max_message)
        self._token = ""
        self._renewing = asyncio.Lock()
        self._channels: set[grpc.aio.Channel] = set()
        channel = self.channel()
        self.kv = rpc_pb2_grpc.KVStub(channel)
        self.lease = rpc_pb2_grpc.LeaseStub(channel)
        self.auth = rpc_pb2_grpc.AuthStub(channel)

    @property
    def closed(self) -> bool:
        return self.closing.done()

    def channel(self) -> grpc.aio.Channel:
        """A new channel over a connection of its own. The caller must ``drop`` it."""
        if isinstance(self.target, Address):
            channel = dial(self.target, options=self._options)
        elif self._credentials.tls:
            tls = self._credentials
            credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
            channel = grpc.aio.secure_channel(self.target, credentials, options=self._options)
        else:
            channel = grpc.aio.insecure_channel(self.target, options=self._options)
        self._channels.add(channel)
        return channel

    async def drop(self, channel: grpc.aio.Channel) -> None:
        self._channels.discard(channel)
        await channel.close()

    async def call(
        self, method: UnaryUnaryMultiCallable[RequestT, ReplyT], request: RequestT, *, timeout_s: float | None = None
    ) -> ReplyT:
        """The reply of a unary call. Renews an expired token once. Raises WeftErrors only."""
        for last in (False, True):
            metadata = await self.metadata()
            try:
                return await method(request, timeout=timeout_s or self.timeout_s, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                if last or not metadata or not any(text in (error.details() or "") for text in _STALE_TOKEN):
                    raise self.translated(error) from None
                self.forget_token(metadata)
            except grpc.aio.UsageError:
                raise Unavailable("the connection to etcd was closed") from None
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if (
                    self.closed and task is not None and not task.cancelling()
                ):  # cancelled by gRPC when the channel closed
                    raise Unavailable("the connection to etcd was closed") from None
                raise
        raise AssertionError("unreachable")

    async def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of a call. Requests a token if there is none, once for all callers."""
        if not self._credentials.user:
            return ()
        if not self._token:
            async with self._renewing:
                if not self._token:
                    self._token = await self._authenticate()
        return (("token", self._token),)

    def forget_token(self, metadata: tuple[tuple[str, str], ...]) -> None:
        """Drops the token of a refused call, so that the next call requests one. A newer token stays."""
        if metadata == (("token", self._token),):
            self._token = ""

    async def _authenticate(self) -> str:
        request = rpc_pb2.AuthenticateRequest(name=self._credentials.user, password=self._credentials.password)
        try:
            reply = await self.auth.Authenticate(request, timeout=self.timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self.translated(error) from None
        return reply.token

    def translated(self, error: grpc.aio.AioRpcError) -> WeftError:
        """The WeftError for a gRPC error; includes etcd's message only if it helps."""
        code, details = error.code(), error.details() or ""
        if code in _AWAY:
            return Unavailable(f"etcd at {self.target} does not answer ({code.name.lower()})", retry_after_s=1)
        if "authentication failed" in details or "user name is empty" in details or code is _UNAUTHENTICATED:
            return Unauthenticated(f"etcd at {self.target} refuses the user or password of this service: {details}")
        if "request is too large" in details:
            return TooLarge("a value is larger than etcd accepts")
        if "database space exceeded" in details:
            return NoSpace(f"etcd at {self.target} is full: compact, defragment and disarm its alarm")
        return _KINDS.get(code, Internal)(f"etcd at {self.target}: {details}")

    async def close(self) -> None:
        if not self.closing.done():
            self.closing.set_result(None)
        await asyncio.gather(*(self.drop(channel) for channel in list(self._channels)))


_UNAUTHENTICATED: Final = grpc.StatusCode.UNAUTHENTICATED
_AWAY: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.UNKNOWN,
    }
)
_KINDS: Final[dict[grpc.StatusCode, type[WeftError]]] = {
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.FAILED_PRECONDITION: Conflict,
}
