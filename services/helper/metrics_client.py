"""Client of the metrics service: all calls over one connection.

A call raises Unavailable at once while the service is away; the caller waits (``Backoff``) and calls again. After a
failure the addresses file is read again, because a restarted platform may listen at another address.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from services.core.adapters.rpc.client import Channels, LearnerCredential, streaming, translating
from services.core.domain.errors import Unavailable
from services.core.domain.startup import Fetching
from services.core.domain.text import storable
from services.core.gen.weft.v1.metrics_pb2 import (
    AppendReply,
    AppendRequest,
    BeatReply,
    BeatRequest,
    ControlReply,
    ControlRequest,
    DeleteObjectRequest,
    FetchingStep,
    GetObjectRequest,
    HeadObjectReply,
    HeadObjectRequest,
    HelloReply,
    HelloRequest,
    PutObjectRequest,
    ReportRequest,
    SignDataRequest,
    SignRequest,
    SourceBatch,
)
from services.core.gen.weft.v1.metrics_pb2 import ObjectRequest as ObjectRequestMessage
from services.core.gen.weft.v1.metrics_pb2_grpc import IntakeStub
from services.core.ports.object_urls import ObjectRequest
from services.core.runtime.address import Address, TlsAuthority, TlsFiles
from services.core.runtime.learner_folder import StopMark

if TYPE_CHECKING:
    from services.core.gen.weft.v1.metrics_pb2_grpc import IntakeAsyncStub

PROTOCOL: Final = 1
_TIMEOUT_S: Final = 5.0
"""A slower service counts as away. Calls may be repeated: all are idempotent."""
_APPEND_TIMEOUT_S: Final = 30.0
"""A batch may wait for a slow disk."""
_MESSAGE_CHARS: Final = 500


class Progress(NamedTuple):
    """How far the learner is."""

    fraction: float = -1.0
    """0..1; -1: unknown."""
    eta_ms: int = -1
    """Milliseconds left; -1: unknown."""
    fetching: Fetching | None = None
    """What its helper fetches; None: nothing."""
    bar: str = ""
    """State of a progress bar that it draws with carriage returns; empty: it draws none."""


UNKNOWN: Final = Progress()


class Desired(NamedTuple):
    """What the platform wants of the learner now."""

    current: bool
    """Its attempt is the job's current one."""
    go: bool
    """Its process may start."""
    stop: StopMark | None
    """It shall end."""


class IntakeClient:
    """The calls of ``weft.v1.Intake``, on behalf of one learner. Each raises the errors of the domain's table."""

    def __init__(self, addresses_file: Path, token: str, tls: TlsFiles | TlsAuthority | None = None) -> None:
        """``tls``: for an address that needs it."""
        self._addresses_file = addresses_file
        self._tls = tls
        self._credential = LearnerCredential(token)
        self._channels = Channels(self._credential)
        self._address: Address | None = None
        """None: it is read before the next call."""

    async def hello(self) -> HelloReply:
        """Returns the committed offset of each of the learner's sources."""
        reply: HelloReply = await self._call("Hello", HelloRequest(protocol=PROTOCOL))
        return reply

    async def report(self, status: bytes) -> bool:
        """Sends a LearnerStatus as JSON. Returns whether the attempt is the job's current one."""
        return bool((await self._call("Report", ReportRequest(status=status))).current)

    async def beat(self, progress: Progress) -> Desired:
        """Sends a heartbeat."""
        return _desired(await self._call("Beat", _beat_message(progress)))

    async def control(self) -> AsyncGenerator[Desired]:
        """What the platform wants, at once and after each change. Ends by an error only."""
        async with aclosing(streaming(self._stub().Control(ControlRequest()))) as replies:
            async for reply in replies:
                yield _desired(reply)

    async def append(self, batches: Sequence[SourceBatch], beat: Progress | None = None) -> AppendReply:
        """Returns the committed offset of each batch's source, and how long to gather before the next call.

        ``beat``: also sends a heartbeat with this progress; see ``beat_answer``.
        """
        message = _beat_message(beat) if beat is not None else None
        reply: AppendReply = await self._call("Append", AppendRequest(batches=batches, beat=message), _APPEND_TIMEOUT_S)
        return reply

    async def sign(self, requests: Sequence[ObjectRequest]) -> Sequence[str]:
        """Returns a URL for each request. Raises StaleFence if a newer attempt is current, PermissionDenied."""
        messages = [
            ObjectRequestMessage(verb=request.verb, key=request.key, upload=request.upload, part=request.part)
            for request in requests
        ]
        urls: Sequence[str] = (await self._call("Sign", SignRequest(requests=messages))).urls
        return urls

    async def sign_data(self, mount: str, key: str, after: str) -> str:
        """Returns a URL that reads the input's object ``key``, or without one the page of its list after ``after``.

        Raises PermissionDenied for other objects and for a secret that cannot be used, StaleFence.
        """
        return str((await self._call("SignData", SignDataRequest(mount=mount, key=key, after=after))).url)

    async def object_calls(self) -> bool:
        """Whether objects are moved by the next four calls; False: by signed URLs."""
        return (await self.hello()).object_calls

    async def object_size(self, key: str) -> int | None:
        """Bytes; None without such an object."""
        reply: HeadObjectReply = await self._call("HeadObject", HeadObjectRequest(key=key))
        return reply.size if reply.HasField("size") else None

    async def delete_object(self, key: str) -> None:
        """Removes the object, if there is one."""
        await self._call("DeleteObject", DeleteObjectRequest(key=key))

    async def get_object(self, key: str, start: int) -> AsyncGenerator[bytes]:
        """The bytes from ``start`` on. Raises NotFound."""
        request = GetObjectRequest(key=key, start=start)
        async with aclosing(streaming(self._stub().GetObject(request))) as replies:
            async for reply in replies:
                yield reply.data

    async def put_object(self, key: str, chunks: AsyncIterable[bytes], size: int | None) -> None:
        """Durable when it returns. ``chunks`` of at most 1 MiB."""

        async def messages() -> AsyncGenerator[PutObjectRequest]:
            yield PutObjectRequest(key=key, size=size)
            async for chunk in chunks:
                yield PutObjectRequest(data=chunk)

        # The channel's interceptors are for calls with one request.
        metadata = (("authorization", self._credential.authorization()),)
        with translating():
            await self._stub().PutObject(messages(), metadata=metadata)

    async def close(self) -> None:
        """Cancels the calls under way."""
        await self._channels.close()

    async def _call(self, method: str, request: Any, timeout: float = _TIMEOUT_S) -> Any:
        try:
            with translating():
                return await getattr(self._stub(), method)(request, timeout=timeout)
        except Unavailable:
            self._address = None
            raise

    def _stub(self) -> IntakeAsyncStub:
        """Raises Unavailable if the service has no address."""
        if self._address is None:
            self._address = self._read_address()
        return IntakeStub(self._channels.to(self._address))

    def _read_address(self) -> Address:
        try:
            return Address(json.loads(self._addresses_file.read_bytes())["metrics"], self._tls)
        except (OSError, ValueError, KeyError):
            raise Unavailable("the metrics service has no address yet") from None


def beat_answer(reply: AppendReply) -> Desired | None:
    """Returns the answer to the heartbeat of an Append; None: the service has not taken it."""
    return _desired(reply.beat) if reply.HasField("beat") else None


def _beat_message(progress: Progress) -> BeatRequest:
    fetching = _fetching_message(progress.fetching) if progress.fetching is not None else None
    return BeatRequest(progress=progress.fraction, eta_ms=progress.eta_ms, fetching=fetching, bar=progress.bar)


def _fetching_message(fetching: Fetching) -> FetchingStep:
    return FetchingStep(
        step=fetching.step.value,
        began_ms=fetching.began,
        message=storable(fetching.message)[:_MESSAGE_CHARS],
        done_bytes=fetching.done,
        total_bytes=fetching.total,
    )


def _desired(reply: BeatReply | ControlReply) -> Desired:
    stop = StopMark(reply.stop.cause, reply.stop.grace_ms) if reply.HasField("stop") else None
    return Desired(reply.current, reply.go, stop)
