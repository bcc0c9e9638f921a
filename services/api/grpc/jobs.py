"""weft.v1.Jobs: each method reads its message, calls its action, and writes the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

import grpc.aio
from google.protobuf.empty_pb2 import Empty

from services.api import use_cases
from services.api.access import Principal
from services.api.following import End
from services.api.grpc.auth_interceptor import current, needs
from services.api.grpc.messages import line_message, made, params, point_message, replied, series_message
from services.api.params import (
    ArtifactsParams,
    EventsParams,
    HistoryParams,
    JobsParams,
    LinesParams,
    PointsParams,
    checked_digest,
    wrong,
)
from services.api.serializers import artifact_json, end_json, event_json, line_json, point_json
from services.api.services import ApiServices
from services.api.submit import read_spec_aside
from services.api.use_cases import Incoming
from services.core.domain.errors import InvalidRequest, PreconditionFailed, TooLarge
from services.core.domain.job import Event
from services.core.gen.weft.v1 import jobs_pb2, jobs_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]
_PIECE: Final = 2**20
"""Bytes of a file in one message; clients take four times as much unless told otherwise."""


class Jobs(jobs_pb2_grpc.JobsServicer):
    def __init__(self, services: ApiServices) -> None:
        self._services = services

    @needs("jobs:write")
    async def SubmitJob(
        self, request_iterator: AsyncIterator[jobs_pb2.SubmitJobRequest], context: Context
    ) -> jobs_pb2.Job:
        call = current()
        async with AsyncExitStack() as closing:
            tenant, incoming = await self._received(call.principal, request_iterator, closing)
            done = await use_cases.submit_job(
                self._services, call.principal, tenant, incoming, key=call.key, trace=call.trace
            )
        return replied(jobs_pb2.Job, done, context)

    @needs("jobs:write")
    async def PlanJob(
        self, request_iterator: AsyncIterator[jobs_pb2.SubmitJobRequest], context: Context
    ) -> jobs_pb2.JobPlan:
        async with AsyncExitStack() as closing:
            tenant, incoming = await self._received(current().principal, request_iterator, closing)
            return made(jobs_pb2.JobPlan, await use_cases.plan_job(self._services, tenant, incoming))

    @needs("jobs:read")
    async def ListJobs(self, request: jobs_pb2.ListJobsRequest, context: Context) -> jobs_pb2.ListJobsReply:
        found = await use_cases.list_jobs(self._services, current().principal, params(JobsParams, request))
        return made(jobs_pb2.ListJobsReply, found)

    @needs("jobs:read")
    async def GetJob(self, request: jobs_pb2.GetJobRequest, context: Context) -> jobs_pb2.Job:
        return made(jobs_pb2.Job, await use_cases.get_job(self._services, current().principal, request.job_id))

    @needs("jobs:write")
    async def HaltJob(self, request: jobs_pb2.ChangeJobRequest, context: Context) -> jobs_pb2.Job:
        done = await use_cases.halt_job(self._services, current().principal, request.job_id, **_conditions(request))
        return replied(jobs_pb2.Job, done, context)

    @needs("jobs:write")
    async def ResumeJob(self, request: jobs_pb2.ChangeJobRequest, context: Context) -> jobs_pb2.Job:
        done = await use_cases.resume_job(self._services, current().principal, request.job_id, **_conditions(request))
        return replied(jobs_pb2.Job, done, context)

    @needs("jobs:write")
    async def KillJob(self, request: jobs_pb2.ChangeJobRequest, context: Context) -> jobs_pb2.Job:
        done = await use_cases.kill_job(self._services, current().principal, request.job_id, **_conditions(request))
        return replied(jobs_pb2.Job, done, context)

    @needs("jobs:write")
    async def DeleteJob(self, request: jobs_pb2.DeleteJobRequest, context: Context) -> Empty:
        await use_cases.delete_job(self._services, current().principal, request.job_id, kill=request.kill)
        return Empty()

    @needs("jobs:read")
    async def GetHistory(self, request: jobs_pb2.GetHistoryRequest, context: Context) -> jobs_pb2.GetHistoryReply:
        found = await use_cases.get_history(
            self._services, current().principal, request.job_id, params(HistoryParams, request)
        )
        return made(jobs_pb2.GetHistoryReply, found)

    @needs("jobs:read")
    async def ExplainJob(self, request: jobs_pb2.GetJobRequest, context: Context) -> jobs_pb2.JobExplanation:
        return made(
            jobs_pb2.JobExplanation, await use_cases.explain_job(self._services, current().principal, request.job_id)
        )

    @needs("jobs:read")
    async def GetProgress(self, request: jobs_pb2.GetJobRequest, context: Context) -> jobs_pb2.JobProgress:
        return made(
            jobs_pb2.JobProgress, await use_cases.get_progress(self._services, current().principal, request.job_id)
        )

    @needs("jobs:read")
    async def GetLogs(self, request: jobs_pb2.GetLogsRequest, context: Context) -> jobs_pb2.GetLogsReply:
        page = await use_cases.get_logs(
            self._services, current().principal, request.job_id, params(LinesParams, request)
        )
        lines = [line_message(line) for line in page["lines"]]
        return jobs_pb2.GetLogsReply(lines=lines, next=page["next"], more=page["more"])

    @needs("jobs:read")
    async def FollowLogs(
        self, request: jobs_pb2.GetLogsRequest, context: Context
    ) -> AsyncGenerator[jobs_pb2.FollowLogsReply]:
        wanted = params(LinesParams, request)
        batches = await use_cases.follow_logs(
            self._services, current().principal, request.job_id, wanted, resumed=wanted.after
        )
        async with aclosing(batches):
            async for batch in batches:
                if isinstance(batch, End):
                    yield jobs_pb2.FollowLogsReply(end=_end(batch))
                elif batch:
                    lines = [line_message(line_json(one)) for one in batch]
                    yield jobs_pb2.FollowLogsReply(lines=jobs_pb2.JobLines(lines=lines))

    @needs("jobs:read")
    async def GetMetrics(self, request: jobs_pb2.GetMetricsRequest, context: Context) -> jobs_pb2.GetMetricsReply:
        page = await use_cases.get_metrics(
            self._services, current().principal, request.job_id, params(PointsParams, request)
        )
        points = [point_message(point) for point in page.get("points", ())]
        return jobs_pb2.GetMetricsReply(points=points, next=page.get("next", 0), more=page.get("more", False))

    @needs("jobs:read")
    async def GetSeries(self, request: jobs_pb2.GetMetricsRequest, context: Context) -> jobs_pb2.GetSeriesReply:
        found = await use_cases.get_series(
            self._services, current().principal, request.job_id, params(PointsParams, request)
        )
        return jobs_pb2.GetSeriesReply(series=[series_message(one) for one in found.get("series", ())])

    @needs("jobs:read")
    async def FollowMetrics(
        self, request: jobs_pb2.GetMetricsRequest, context: Context
    ) -> AsyncGenerator[jobs_pb2.FollowMetricsReply]:
        wanted = params(PointsParams, request)
        batches = await use_cases.follow_metrics(
            self._services, current().principal, request.job_id, wanted, resumed=wanted.after
        )
        async with aclosing(batches):
            async for batch in batches:
                if isinstance(batch, End):
                    yield jobs_pb2.FollowMetricsReply(end=_end(batch))
                elif batch:
                    points = [point_message(point_json(one)) for one in batch]
                    yield jobs_pb2.FollowMetricsReply(points=jobs_pb2.JobPoints(points=points))

    @needs("jobs:read")
    async def FollowEvents(
        self, request: jobs_pb2.FollowEventsRequest, context: Context
    ) -> AsyncGenerator[jobs_pb2.FollowEventsReply]:
        items = await use_cases.follow_events(
            self._services, current().principal, request.job_id, params(EventsParams, request)
        )
        async with aclosing(items):
            async for item in items:
                if isinstance(item, End):
                    yield jobs_pb2.FollowEventsReply(end=_end(item))
                elif isinstance(item, Event):
                    yield jobs_pb2.FollowEventsReply(event=made(jobs_pb2.JobEvent, event_json(item)))
                else:
                    yield jobs_pb2.FollowEventsReply(status=made(jobs_pb2.Job, item))

    @needs("jobs:read")
    async def ListArtifacts(
        self, request: jobs_pb2.ListArtifactsRequest, context: Context
    ) -> jobs_pb2.ListArtifactsReply:
        found = await use_cases.list_artifacts(
            self._services, current().principal, request.job_id, params(ArtifactsParams, request)
        )
        return made(jobs_pb2.ListArtifactsReply, found)

    @needs("jobs:read")
    async def GetArtifact(
        self, request: jobs_pb2.GetArtifactRequest, context: Context
    ) -> AsyncGenerator[jobs_pb2.GetArtifactReply]:
        artifact = await use_cases.get_artifact(self._services, current().principal, request.job_id, request.path)
        size = artifact.meta.size
        start, end = request.start, min(request.end, size) if request.HasField("end") else size
        if request.HasField("etag") and request.etag != artifact.meta.etag:
            raise PreconditionFailed("the file has changed; begin anew")
        if start > end:
            raise wrong("start", f"the file has {size} bytes, and a range does not end before it begins")
        yield jobs_pb2.GetArtifactReply(artifact=made(jobs_pb2.JobArtifact, artifact_json(artifact)))
        if start == end:
            return
        async for chunk in self._services.artifacts.read(artifact, start=start, end=end):
            for at in range(0, len(chunk), _PIECE):
                yield jobs_pb2.GetArtifactReply(data=bytes(chunk[at : at + _PIECE]))

    async def _received(
        self, principal: Principal, request: AsyncIterator[jobs_pb2.SubmitJobRequest], closing: AsyncExitStack
    ) -> tuple[str, Incoming]:
        """The tenant that it is for, and all that was sent. The spec is read before the code comes."""
        first = await anext(aiter(request), None)
        if first is None or not first.HasField("head"):
            raise InvalidRequest("the first message is the head")
        head = first.head
        text = (head.yaml or head.json).encode()
        if len(text) > self._services.settings.max_spec_bytes:
            raise TooLarge(f"a spec has at most {self._services.settings.max_spec_bytes} bytes")
        tenant = principal.acting_tenant(head.tenant if head.HasField("tenant") else None)
        incoming = Incoming(await read_spec_aside(text, "json" if head.HasField("json") else "yaml"))
        if head.HasField("code_digest"):
            incoming.code_digest = checked_digest(head.code_digest)
        with self._services.instrumentation.counting_refused_code():
            async for message in request:
                if not message.HasField("code"):
                    raise InvalidRequest("after the head come pieces of code, and nothing else")
                if incoming.code_digest:
                    raise wrong("code_digest", "give either code or its digest, not both")
                if incoming.upload is None:
                    incoming.upload = await closing.enter_async_context(self._services.uploads.receive())
                await incoming.upload.write(message.code)
        return tenant, incoming


def _conditions(request: jobs_pb2.ChangeJobRequest) -> dict[str, Any]:
    return {"generation": request.generation if request.HasField("generation") else None, "key": current().key}


def _end(end: End) -> jobs_pb2.JobEnd:
    return made(jobs_pb2.JobEnd, end_json(end.job, end.job_id))
