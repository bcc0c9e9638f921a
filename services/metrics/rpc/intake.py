"""The Intake RPCs, for helpers: each writes for its own job, attempt and rank, which its token names.

Logs and points are taken in without etcd: a learner whose attempt has just ended may still send what it wrote. Reports
and beats need etcd, because they concern the current attempt.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, cast

import structlog

from services.core.adapters.rpc.server import caller, learner_token
from services.core.domain.errors import InvalidRequest, PermissionDenied, Unavailable
from services.core.domain.tokens import LearnerIdentity
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.gen.weft.v1 import metrics_pb2_grpc
from services.core.ports.metric_store import Batch, MetricStore
from services.core.ports.object_urls import ObjectRequest, Verb
from services.metrics.attempt_ends import AttemptEnds
from services.metrics.attempts import Attempts, Stop
from services.metrics.control import Control, Desired
from services.metrics.data_signing import DataSigning
from services.metrics.following import Notifier
from services.metrics.heartbeats import Heartbeats
from services.metrics.instrumentation import Instrumentation
from services.metrics.object_calls import ObjectCalls
from services.metrics.reports import STALE, UNCHANGED, Reports, status_of
from services.metrics.rpc.messages import batch_of, fetching_of, source_message
from services.metrics.signing import Signing

PROTOCOL: Final = 1
log = structlog.get_logger()


def calling_learner() -> LearnerIdentity:
    """The learner whose helper calls. Raises PermissionDenied for any other caller."""
    learner = caller()
    if learner is None:
        raise PermissionDenied("only learners' helpers may call this")
    return learner


@dataclass(frozen=True)
class Intake(metrics_pb2_grpc.IntakeServicer):
    store: MetricStore
    attempts: Attempts
    reports: Reports
    heartbeats: Heartbeats
    notifier: Notifier
    instrumentation: Instrumentation
    gather_s: float
    signing: Signing
    ends: AttemptEnds
    control: Control
    objects: ObjectCalls
    data: DataSigning

    async def Hello(self, request: pb.HelloRequest, context: Any) -> pb.HelloReply:
        learner = calling_learner()
        self.heartbeats.mark_seen(learner)
        sources = await self.store.committed(learner.job, learner.attempt, learner.rank)
        log.info("learner.connected", job=learner.job, attempt=learner.attempt, learner=learner.name)
        return pb.HelloReply(
            protocol=PROTOCOL,
            current=await self._maybe_current(learner),
            sources=[
                pb.SourceOffset(source=source_message(state.source), committed=state.committed, final=state.final)
                for state in sources
            ],
            object_calls=self.objects.are_served,
        )

    async def _maybe_current(self, learner: LearnerIdentity) -> bool:
        try:
            return (await self.attempts.current(learner)).number == learner.attempt
        except Unavailable:
            return True

    async def Append(self, request: pb.AppendRequest, context: Any) -> pb.AppendReply:
        learner, began = calling_learner(), time.perf_counter()
        self.heartbeats.mark_seen(learner)
        batches = [batch_of(message) for message in request.batches]
        for batch in batches:
            source = batch.source
            if (source.attempt, source.role, source.rank) != (learner.attempt, learner.role, learner.rank):
                raise PermissionDenied(f"{learner.name} of attempt {learner.attempt} may write for itself only")
        await self.ends.check(learner)
        committed = await self.store.append(learner.job, batches)
        self.notifier.notify(learner.job)
        self._count(batches, committed, time.perf_counter() - began)
        gather_ms = 0 if self.notifier.is_followed(learner.job) else round(self.gather_s * 1000)
        desired = self.control.cached(learner) if request.HasField("beat") else None
        if desired is not None:
            self._record_beat(learner, request.beat)
        beat = None if desired is None else _beat_reply(desired)
        return pb.AppendReply(committed=committed, gather_ms=gather_ms, beat=beat)

    def _count(self, batches: list[Batch], committed: Any, seconds: float) -> None:
        taken = [batch for batch, end in zip(batches, committed, strict=True) if batch.end == end]
        self.instrumentation.lines.inc(sum(len(batch.lines) for batch in taken))
        self.instrumentation.points.inc(sum(len(batch.points) for batch in taken))
        self.instrumentation.refused.inc(len(batches) - len(taken))
        self.instrumentation.append_seconds.observe(seconds)

    async def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportReply:
        learner = calling_learner()
        self.heartbeats.mark_seen(learner)
        status = status_of(learner, request.status)
        result = await self.reports.write(learner, status)
        self.instrumentation.reports.labels(result).inc()
        if result != UNCHANGED:
            log.info(
                "learner.reported",
                result=result,
                job=learner.job,
                attempt=learner.attempt,
                learner=learner.name,
                seq=status.seq,
                phase=status.phase.value,
            )
        return pb.ReportReply(current=result != STALE)

    async def Beat(self, request: pb.BeatRequest, context: Any) -> pb.BeatReply:
        learner = calling_learner()
        self.heartbeats.mark_seen(learner)
        self._record_beat(learner, request)
        return _beat_reply(await self.control.read(learner))

    def _record_beat(self, learner: LearnerIdentity, request: pb.BeatRequest) -> None:
        self.heartbeats.set_progress(learner, request.progress, request.eta_ms)
        self.heartbeats.set_fetching(learner, fetching_of(request.fetching) if request.HasField("fetching") else None)
        self.heartbeats.set_bar(learner, request.bar)

    async def Control(self, request: pb.ControlRequest, context: Any) -> AsyncGenerator[pb.ControlReply]:
        learner = calling_learner()
        with self.instrumentation.followers.labels("control").track_inprogress():
            async with aclosing(self.control.follow(learner)) as changes:
                async for desired in changes:
                    self.heartbeats.mark_seen(learner)
                    stop = _stop_message(desired.stop)
                    yield pb.ControlReply(current=desired.current, go=desired.go, stop=stop)

    async def Sign(self, request: pb.SignRequest, context: Any) -> pb.SignReply:
        learner = calling_learner()
        self.heartbeats.mark_seen(learner)
        # ``signing`` refuses an unknown verb.
        requests = [
            ObjectRequest(cast("Verb", message.verb), message.key, message.upload, message.part)
            for message in request.requests
        ]
        return pb.SignReply(urls=await self.signing.urls(learner, requests))

    async def SignData(self, request: pb.SignDataRequest, context: Any) -> pb.SignDataReply:
        learner = calling_learner()
        self.heartbeats.mark_seen(learner)
        token = learner_token(context)
        url = await self.data.url(learner, token, mount=request.mount, key=request.key, after=request.after)
        return pb.SignDataReply(url=url)

    async def HeadObject(self, request: pb.HeadObjectRequest, context: Any) -> pb.HeadObjectReply:
        return pb.HeadObjectReply(size=await self.objects.size(calling_learner(), request.key))

    async def GetObject(self, request: pb.GetObjectRequest, context: Any) -> AsyncIterator[pb.ObjectBytes]:
        async with aclosing(self.objects.get(calling_learner(), request.key, request.start)) as chunks:
            async for chunk in chunks:
                yield pb.ObjectBytes(data=chunk)

    async def PutObject(self, request_iterator: AsyncIterator[pb.PutObjectRequest], context: Any) -> pb.PutObjectReply:
        first = await anext(request_iterator, None)
        if first is None:
            raise InvalidRequest("the first message names the object")

        async def chunks() -> AsyncGenerator[bytes]:
            yield first.data
            async for message in request_iterator:
                yield message.data

        size = first.size if first.HasField("size") else None
        await self.objects.put(calling_learner(), first.key, chunks(), size)
        return pb.PutObjectReply()

    async def DeleteObject(self, request: pb.DeleteObjectRequest, context: Any) -> pb.DeleteObjectReply:
        await self.objects.delete(calling_learner(), request.key)
        return pb.DeleteObjectReply()


def _beat_reply(desired: Desired) -> pb.BeatReply:
    return pb.BeatReply(current=desired.current, go=desired.go, stop=_stop_message(desired.stop))


def _stop_message(stop: Stop | None) -> pb.Stop | None:
    if stop is None:
        return None
    return pb.Stop(generation=stop.generation, cause=stop.cause, grace_ms=stop.grace_ms)
