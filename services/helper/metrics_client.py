"""Speaking with the metrics service: five calls, on a connection that is made again wherever the service now is.

Every call raises Unavailable at once where the service is away; who calls waits (``Backoff``) and calls again. After a
failure the addresses file is read again: a platform that was restarted may listen elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc.aio

from services.core.adapters.rpc.client import connect, translating
from services.core.domain.errors import Unavailable
from services.core.gen.weft.v1.metrics_pb2 import (
    AppendReply,
    AppendRequest,
    BeatReply,
    BeatRequest,
    HelloReply,
    HelloRequest,
    ReportRequest,
    SignRequest,
    SourceBatch,
)
from services.core.gen.weft.v1.metrics_pb2 import ObjectRequest as SignedRequest
from services.core.gen.weft.v1.metrics_pb2_grpc import IntakeStub
from services.core.ports.object_urls import ObjectRequest

PROTOCOL: Final = 1
_TIMEOUT_S: Final = 5.0
"""A service that takes longer is as good as away; the call is repeated, which changes nothing."""
_APPEND_TIMEOUT_S: Final = 30.0
"""A batch may wait for a slow disk."""


class Backoff:
    """Waits between tries: doubling up to ``most_s``, jittered so that a thousand helpers do not come back at once."""

    def __init__(self, *, least_s: float = 0.05, most_s: float = 1.0) -> None:
        self._least = least_s
        self._most = most_s
        self._next = least_s

    def reset(self) -> None:
        self._next = self._least

    def next(self) -> float:
        """Seconds until the next try."""
        wait, self._next = self._next, min(self._most, self._next * 2)
        return wait * random.uniform(0.5, 1.0)

    async def wait(self) -> None:
        await asyncio.sleep(self.next())


class Intake:
    """The calls of ``weft.v1.Intake``, on behalf of one learner."""

    def __init__(self, addresses_file: Path, token: str) -> None:
        self._addresses_file = addresses_file
        self._token = token
        self._address = ""
        self._channel: grpc.aio.Channel | None = None

    async def hello(self) -> HelloReply:
        reply: HelloReply = await self._call("Hello", HelloRequest(protocol=PROTOCOL))
        return reply

    async def report(self, status: bytes) -> bool:
        """Whether the attempt is (still) the job's current one."""
        return bool((await self._call("Report", ReportRequest(status=status))).current)

    async def beat(self, progress: float, eta_ms: int) -> BeatReply:
        reply: BeatReply = await self._call("Beat", BeatRequest(progress=progress, eta_ms=eta_ms))
        return reply

    async def append(self, batches: Sequence[SourceBatch]) -> AppendReply:
        """Each batch's source's committed offset afterwards, and how long to gather before the next."""
        reply: AppendReply = await self._call("Append", AppendRequest(batches=batches), _APPEND_TIMEOUT_S)
        return reply

    async def sign(self, requests: Sequence[ObjectRequest]) -> Sequence[str]:
        """A URL for each. StaleFence where a newer attempt has taken ours' place, PermissionDenied."""
        asked = [SignedRequest(verb=one.verb, key=one.key, upload=one.upload, part=one.part) for one in requests]
        urls: Sequence[str] = (await self._call("Sign", SignRequest(requests=asked))).urls
        return urls

    async def close(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def _call(self, method: str, request: Any, timeout: float = _TIMEOUT_S) -> Any:
        stub = IntakeStub(await self._connected())
        try:
            with translating():
                return await getattr(stub, method)(request, timeout=timeout)
        except Unavailable:
            await self._look_again()
            raise

    async def _connected(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._address = self._read_address()
            self._channel = connect(self._address, learner_token=self._token)
        return self._channel

    async def _look_again(self) -> None:
        if self._channel is not None and self._read_address() != self._address:
            await self.close()

    def _read_address(self) -> str:
        try:
            found: str = json.loads(self._addresses_file.read_bytes())["metrics"]
        except (OSError, ValueError, KeyError):
            raise Unavailable("the metrics service has no address yet") from None
        return found
