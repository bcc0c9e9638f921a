"""A server for helpers: weft.v1.Intake with the offsets that the contract requires, and switches for tests.

It keeps its port and what it has received between ``stop`` and ``start``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from copy import copy
from typing import Any, cast

import grpc

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.adapters.rpc.server import caller, serve
from services.core.domain.codec import load
from services.core.domain.errors import InvalidRequest, StaleFence, Unavailable, WeftError
from services.core.domain.learner import LearnerStatus
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.gen.weft.v1.metrics_pb2_grpc import IntakeServicer, add_IntakeServicer_to_server
from services.core.ports.object_urls import ObjectRequest, ObjectUrls, Verb
from services.metrics.signing import check
from tests.testbed.identities import guard

Key = tuple[int, str, int, int, str, int]


class Intake(IntakeServicer):
    def __init__(self, address: str) -> None:
        self.address = address
        self.current = True
        self.go = True
        self.refuse: WeftError | None = None
        self.away: set[str] = set()
        """Names of calls that are answered with Unavailable."""
        self.hold: set[str] = set()
        """Names of calls that are never answered."""
        self.held: list[str] = []
        """Names of calls that are held."""
        self.poison = ""
        """Batches with this text in a line are invalid."""
        self.gather_ms = 0
        self.appends = 0
        self.reports: list[LearnerStatus] = []
        """Each change once, in order."""
        self.sent = 0
        """Reports, with those sent again."""
        self.progress: list[tuple[float, int]] = []
        """Of all heartbeats."""
        self.beats = 0
        """Heartbeats that were calls of their own."""
        self.takes_beats = True
        """Off: it is an older service, which does not know heartbeats that travel with lines."""
        self.committed: dict[Key, int] = {}
        self.final: set[Key] = set()
        self.lines: list[tuple[Key, pb.LogLine]] = []
        self.points: list[tuple[Key, pb.MetricPoint]] = []
        self.on_append: Callable[[], None] = lambda: None
        self.urls: ObjectUrls | None = None
        self.signed: list[ObjectRequest] = []
        self.on_sign: Callable[[ObjectRequest], None] = lambda _: None
        self.sign_data: Callable[[str, str, str], str] = lambda mount, key, after: ""
        """(mount, key, after) -> the URL of an input's object, or of a page of its list."""
        self.stop_mark: pb.Stop | None = None
        self.controls = True
        """Off: only heartbeats tell the learner what to do."""
        self.objects: FolderObjectStore | None = None
        """Moved by calls; None: by signed URLs."""
        self.on_put: Callable[[str], None] = lambda _: None
        self._changed = asyncio.Event()
        self._server: Any = None

    def stop_learner(self, cause: str, grace_ms: int) -> None:
        """From now on the learner shall end."""
        self.stop_mark = pb.Stop(generation=2, cause=cause, grace_ms=grace_ms)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def start(self) -> None:
        self._server = await serve(
            self.address, guard("metrics"), lambda server: add_IntakeServicer_to_server(self, server)
        )

    def moved(self, address: str) -> Intake:
        """The service at another address, with everything that this one has stored. Both may run."""
        other = copy(self)
        other.address, other._server = address, None
        other.away, other.hold, other.held = set(), set(), []
        other.appends = other.sent = 0
        return other

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def text(self, source: str = "stdout") -> list[str]:
        """The lines of a source, in the order they were received."""
        return [line.text for key, line in self.lines if key[4] == source]

    def values(self, name: str) -> list[tuple[int, float]]:
        return [(point.step, point.value) for _, point in self.points if point.name == name]

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(report.phase.value for report in self.reports))

    @property
    def last(self) -> LearnerStatus | None:
        return self.reports[-1] if self.reports else None

    # --- the calls ---------------------------------------------------------------------------------------------------

    async def Hello(self, request: pb.HelloRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.HelloReply:  # noqa: N802
        assert request.protocol == 1
        identity = caller()
        assert identity is not None
        known = [
            pb.SourceOffset(source=_source(key), committed=committed, final=key in self.final)
            for key, committed in self.committed.items()
            if (key[0], key[2]) == (identity.attempt, identity.rank)
        ]
        calls = self.objects is not None
        return pb.HelloReply(protocol=1, current=self.current, sources=known, object_calls=calls)

    async def Append(self, request: pb.AppendRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.AppendReply:  # noqa: N802
        await self._lead("Append")
        if self.refuse is not None:
            raise self.refuse
        for batch in request.batches:
            if self.poison and any(self.poison in line.text for line in batch.lines):
                raise InvalidRequest("this batch is never accepted")
        committed_offsets = []
        for batch in request.batches:
            key = _key(batch.source)
            identity = caller()
            assert identity is not None
            assert (identity.attempt, identity.rank) == (batch.source.attempt, batch.source.rank)
            committed = self.committed.setdefault(key, 0)
            if batch.start == committed and key not in self.final:
                assert batch.end >= batch.start
                assert all(len(line.text.encode()) <= 16 * 1024 for line in batch.lines)
                self.lines += [(key, line) for line in batch.lines]
                self.points += [(key, point) for point in batch.points]
                self.committed[key] = batch.end
                if batch.final:
                    self.final.add(key)
            committed_offsets.append(self.committed[key])
        self.appends += 1
        self.on_append()
        reply = pb.AppendReply(committed=committed_offsets, gather_ms=self.gather_ms)
        if self.takes_beats and request.HasField("beat"):
            reply.beat.CopyFrom(self._take_beat(request.beat))
        return reply

    async def Report(self, request: pb.ReportRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.ReportReply:  # noqa: N802
        await self._lead("Report")
        status = load(LearnerStatus, json.loads(request.status))
        self.sent += 1
        last = (self.last.attempt, self.last.seq) if self.last is not None else (0, 0)
        if self.current and (status.attempt, status.seq) > last:
            self.reports.append(status)
        return pb.ReportReply(current=self.current)

    async def Beat(self, request: pb.BeatRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.BeatReply:  # noqa: N802
        self.beats += 1
        return self._take_beat(request)

    def _take_beat(self, request: pb.BeatRequest) -> pb.BeatReply:
        self.progress.append((request.progress, request.eta_ms))
        return pb.BeatReply(current=self.current, go=self.go, stop=self.stop_mark)

    async def Control(  # noqa: N802
        self, request: pb.ControlRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ControlReply]:
        assert caller() is not None
        while self.controls:
            changed = self._changed
            yield pb.ControlReply(current=self.current, go=self.go, stop=self.stop_mark)
            await changed.wait()
        raise Unavailable("this server has no stream of control")

    async def HeadObject(  # noqa: N802
        self, request: pb.HeadObjectRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.HeadObjectReply:
        meta = await self._store("head", request.key).head(request.key)
        return pb.HeadObjectReply(size=None if meta is None else meta.size)

    async def GetObject(  # noqa: N802
        self, request: pb.GetObjectRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ObjectBytes]:
        async for chunk in self._store("get", request.key).get(request.key, start=request.start):
            yield pb.ObjectBytes(data=chunk)

    async def PutObject(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PutObjectRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.PutObjectReply:
        first = await anext(request_iterator)
        store = self._store("put", first.key)

        async def chunks() -> AsyncIterator[bytes]:
            async for message in request_iterator:
                self.on_put(first.key)
                yield message.data

        await store.put(first.key, chunks(), size=first.size)
        return pb.PutObjectReply()

    async def DeleteObject(  # noqa: N802
        self, request: pb.DeleteObjectRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DeleteObjectReply:
        await self._store("delete", request.key).delete(request.key)
        return pb.DeleteObjectReply()

    async def _lead(self, call: str) -> None:
        if call in self.away:
            raise Unavailable(f"{call} is away")
        if call in self.hold:
            self.held.append(call)
            await asyncio.Event().wait()

    def _store(self, verb: Verb, key: str) -> FolderObjectStore:
        identity = caller()
        assert identity is not None
        assert self.objects is not None
        check(identity, ObjectRequest(verb, key))
        return self.objects

    async def SignData(  # noqa: N802
        self, request: pb.SignDataRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.SignDataReply:
        assert caller() is not None
        return pb.SignDataReply(url=self.sign_data(request.mount, request.key, request.after))

    async def Sign(self, request: pb.SignRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.SignReply:  # noqa: N802
        identity = caller()
        assert identity is not None
        assert self.urls is not None
        urls = []
        for message in request.requests:
            wanted = ObjectRequest(cast("Verb", message.verb), message.key, message.upload, message.part)
            check(identity, wanted)
            if not self.current:
                raise StaleFence("another attempt has taken the place of this one")
            self.signed.append(wanted)
            self.on_sign(wanted)
            urls.append(self.urls.url(wanted))
        return pb.SignReply(urls=urls)


def _key(source: pb.Source) -> Key:
    return (source.attempt, source.role, source.rank, source.run, source.source, source.generation)


def _source(key: Key) -> pb.Source:
    attempt, role, rank, run, source, generation = key
    return pb.Source(attempt=attempt, role=role, rank=rank, run=run, source=source, generation=generation)
