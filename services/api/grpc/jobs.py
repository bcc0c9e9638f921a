"""weft.v1.Jobs: each method reads its message, calls its use case and writes the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final, Literal

import grpc.aio
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict
from pydantic import ValidationError

from services.api.access import Principal
from services.api.grpc.auth_interceptor import current, needs
from services.api.grpc.messages import changed, message, params, series_message
from services.api.idle_limit import within_idle_limit
from services.api.job_answer import JobEvent
from services.api.params import checked_digest, invalid_params, wrong_field, wrong_parameter
from services.api.services import ApiServices
from services.api.submit import read_spec_in_thread
from services.api.use_cases import artifacts, compare, jobs, submission, telemetry
from services.core.domain.errors import InvalidRequest, PreconditionFailed, TooLarge
from services.core.gen.weft.v1 import jobs_pb2, jobs_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]
_PIECE: Final = 2**20
"""Bytes of a file in one message; by default clients accept four times as much."""


class Jobs(jobs_pb2_grpc.JobsServicer):
    def __init__(self, services: ApiServices) -> None:
        self._services = services

    @needs("jobs:write")
    async def SubmitJob(
        self, request_iterator: AsyncIterator[jobs_pb2.SubmitJobRequest], context: Context
    ) -> jobs_pb2.Job:
        call = current()
        async with AsyncExitStack() as closing:
            tenant, incoming = await self._receive(call.principal, request_iterator, closing)
            done = await submission.submit_job(
                self._services, call.principal, tenant, incoming, key=call.key, trace=call.traceparent
            )
        return changed(jobs_pb2.Job, done, context)

    @needs("jobs:write")
    async def PlanJob(
        self, request_iterator: AsyncIterator[jobs_pb2.SubmitJobRequest], context: Context
    ) -> jobs_pb2.JobPlan:
        async with AsyncExitStack() as closing:
            tenant, incoming = await self._receive(current().principal, request_iterator, closing)
            return message(jobs_pb2.JobPlan, await submission.plan_job(self._services, tenant, incoming))

    @needs("jobs:write")
    async def CloneJob(self, request: jobs_pb2.CloneJobRequest, context: Context) -> jobs_pb2.Job:
        call, wanted = current(), _clone_params(request)
        done = await submission.clone_job(
            self._services, call.principal, request.job_id, wanted, key=call.key, trace=call.traceparent
        )
        return changed(jobs_pb2.Job, done, context)

    @needs("jobs:write")
    async def PlanClone(self, request: jobs_pb2.CloneJobRequest, context: Context) -> jobs_pb2.JobPlan:
        wanted = _clone_params(request)
        plan = await submission.plan_clone(self._services, current().principal, request.job_id, wanted)
        return message(jobs_pb2.JobPlan, plan)

    @needs("jobs:read")
    async def DiffJobs(self, request: jobs_pb2.DiffJobsRequest, context: Context) -> jobs_pb2.JobDifference:
        wanted = params(compare.DiffParams, request)
        return message(jobs_pb2.JobDifference, await compare.diff_jobs(self._services, current().principal, wanted))

    @needs("jobs:read")
    async def GetStatistics(self, request: jobs_pb2.GetStatisticsRequest, context: Context) -> jobs_pb2.StatisticsReply:
        wanted = params(compare.StatisticsParams, request)
        return message(
            jobs_pb2.StatisticsReply, await compare.get_statistics(self._services, current().principal, wanted)
        )

    @needs("jobs:read")
    async def ListJobs(self, request: jobs_pb2.ListJobsRequest, context: Context) -> jobs_pb2.ListJobsReply:
        page = await jobs.list_jobs(self._services, current().principal, params(jobs.JobsParams, request))
        return message(jobs_pb2.ListJobsReply, page)

    @needs("jobs:read")
    async def GetJob(self, request: jobs_pb2.GetJobRequest, context: Context) -> jobs_pb2.Job:
        wanted = params(jobs.JobParams, request)
        return message(jobs_pb2.Job, await jobs.get_job(self._services, current().principal, request.job_id, wanted))

    @needs("jobs:write")
    async def HaltJob(self, request: jobs_pb2.ChangeJobRequest, context: Context) -> jobs_pb2.Job:
        done = await jobs.halt_job(self._services, current().principal, request.job_id, **_conditions(request))
        return changed(jobs_pb2.Job, done, context)

    @needs("jobs:write")
    async def ResumeJob(self, request: jobs_pb2.ChangeJobRequest, context: Context) -> jobs_pb2.Job:
        done = await jobs.resume_job(self._services, current().principal, request.job_id, **_conditions(request))
        return changed(jobs_pb2.Job, done, context)

    @needs("jobs:write")
    async def KillJob(self, request: jobs_pb2.ChangeJobRequest, context: Context) -> jobs_pb2.Job:
        done = await jobs.kill_job(self._services, current().principal, request.job_id, **_conditions(request))
        return changed(jobs_pb2.Job, done, context)

    @needs("jobs:write")
    async def DeleteJob(self, request: jobs_pb2.DeleteJobRequest, context: Context) -> Empty:
        generation = request.generation if request.HasField("generation") else None
        await jobs.delete_job(
            self._services, current().principal, request.job_id, kill=request.kill, generation=generation
        )
        return Empty()

    @needs("jobs:read")
    async def GetHistory(self, request: jobs_pb2.GetHistoryRequest, context: Context) -> jobs_pb2.GetHistoryReply:
        wanted = params(jobs.HistoryParams, request)
        history = await jobs.get_history(self._services, current().principal, request.job_id, wanted)
        return message(jobs_pb2.GetHistoryReply, history)

    @needs("jobs:read")
    async def ExplainJob(self, request: jobs_pb2.GetJobRequest, context: Context) -> jobs_pb2.JobExplanation:
        explanation = await jobs.explain_job(self._services, current().principal, request.job_id)
        return message(jobs_pb2.JobExplanation, explanation)

    @needs("jobs:read")
    async def GetProgress(self, request: jobs_pb2.GetJobRequest, context: Context) -> jobs_pb2.JobProgress:
        progress = await telemetry.get_progress(self._services, current().principal, request.job_id)
        return message(jobs_pb2.JobProgress, progress)

    @needs("jobs:read")
    async def GetLogs(self, request: jobs_pb2.GetLogsRequest, context: Context) -> jobs_pb2.GetLogsReply:
        wanted = params(telemetry.LinesParams, request)
        page = await telemetry.get_logs(self._services, current().principal, request.job_id, wanted)
        return message(jobs_pb2.GetLogsReply, page)

    @needs("jobs:read")
    async def FollowLogs(
        self, request: jobs_pb2.GetLogsRequest, context: Context
    ) -> AsyncGenerator[jobs_pb2.FollowLogsReply]:
        wanted = params(telemetry.LinesParams, request)
        batches = await telemetry.follow_logs(
            self._services, current().principal, request.job_id, wanted, resumed=wanted.after
        )
        async with aclosing(batches):
            async for batch in batches:
                if isinstance(batch, telemetry.JobEnd):
                    yield jobs_pb2.FollowLogsReply(end=message(jobs_pb2.JobEnd, batch))
                elif batch:
                    lines = [message(jobs_pb2.JobLine, line) for line in batch]
                    yield jobs_pb2.FollowLogsReply(lines=jobs_pb2.JobLines(lines=lines))

    @needs("jobs:read")
    async def GetMetrics(self, request: jobs_pb2.GetMetricsRequest, context: Context) -> jobs_pb2.GetMetricsReply:
        wanted = params(telemetry.PointsParams, request)
        page = await telemetry.get_metrics(self._services, current().principal, request.job_id, wanted)
        return message(jobs_pb2.GetMetricsReply, page)

    @needs("jobs:read")
    async def GetSeries(self, request: jobs_pb2.GetMetricsRequest, context: Context) -> jobs_pb2.GetSeriesReply:
        wanted = params(telemetry.PointsParams, request)
        curves = await telemetry.get_series(self._services, current().principal, request.job_id, wanted)
        series = [series_message(curve) for curve in curves.series]
        return jobs_pb2.GetSeriesReply(series=series, through=curves.through)

    @needs("jobs:read")
    async def FollowMetrics(
        self, request: jobs_pb2.GetMetricsRequest, context: Context
    ) -> AsyncGenerator[jobs_pb2.FollowMetricsReply]:
        wanted = params(telemetry.PointsParams, request)
        batches = await telemetry.follow_metrics(
            self._services, current().principal, request.job_id, wanted, resumed=wanted.after
        )
        async with aclosing(batches):
            async for batch in batches:
                if isinstance(batch, telemetry.JobEnd):
                    yield jobs_pb2.FollowMetricsReply(end=message(jobs_pb2.JobEnd, batch))
                elif batch:
                    points = [message(jobs_pb2.JobPoint, point) for point in batch]
                    yield jobs_pb2.FollowMetricsReply(points=jobs_pb2.JobPoints(points=points))

    @needs("jobs:read")
    async def FollowEvents(
        self, request: jobs_pb2.FollowEventsRequest, context: Context
    ) -> AsyncGenerator[jobs_pb2.FollowEventsReply]:
        wanted = params(telemetry.EventsParams, request)
        events = await telemetry.follow_events(self._services, current().principal, request.job_id, wanted)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, telemetry.JobEnd):
                    yield jobs_pb2.FollowEventsReply(end=message(jobs_pb2.JobEnd, event))
                elif isinstance(event, JobEvent):
                    yield jobs_pb2.FollowEventsReply(event=message(jobs_pb2.JobEvent, event))
                else:
                    yield jobs_pb2.FollowEventsReply(status=message(jobs_pb2.Job, event))

    @needs("jobs:read")
    async def ListArtifacts(
        self, request: jobs_pb2.ListArtifactsRequest, context: Context
    ) -> jobs_pb2.ListArtifactsReply:
        wanted = params(artifacts.ArtifactsParams, request)
        page = await artifacts.list_artifacts(self._services, current().principal, request.job_id, wanted)
        return message(jobs_pb2.ListArtifactsReply, page)

    @needs("jobs:read")
    async def GetArtifact(
        self, request: jobs_pb2.GetArtifactRequest, context: Context
    ) -> AsyncGenerator[jobs_pb2.GetArtifactReply]:
        download = await artifacts.get_artifact(self._services, current().principal, request.job_id, request.path)
        artifact = download.artifact
        start, end = request.start, min(request.end, artifact.size) if request.HasField("end") else artifact.size
        if request.HasField("etag") and request.etag != artifact.etag:
            raise PreconditionFailed("the file has changed since the download began; start the download again")
        if start > end:
            raise wrong_parameter("start", f"the file has {artifact.size} bytes, and a range ends after its start")
        yield jobs_pb2.GetArtifactReply(artifact=message(jobs_pb2.JobArtifact, artifact))
        if start == end:
            return
        async for chunk in download.read(start, end):
            for offset in range(0, len(chunk), _PIECE):
                yield jobs_pb2.GetArtifactReply(data=bytes(chunk[offset : offset + _PIECE]))

    async def _receive(
        self, principal: Principal, messages: AsyncIterator[jobs_pb2.SubmitJobRequest], closing: AsyncExitStack
    ) -> tuple[str, submission.Incoming]:
        """The tenant and the submission. The spec is validated before the code is read."""
        messages = within_idle_limit(aiter(messages), self._services.settings.body_idle_s)
        first = await anext(messages, None)
        if first is None or not first.HasField("head"):
            raise InvalidRequest("the first message of a submission has `head`")
        head = first.head
        text = (head.yaml or head.json).encode()
        if len(text) > self._services.settings.max_spec_bytes:
            raise TooLarge(f"a spec has at most {self._services.settings.max_spec_bytes} bytes")
        tenant = principal.acting_tenant(head.tenant if head.HasField("tenant") else None)
        kind: Literal["json", "yaml"] = "json" if head.HasField("json") else "yaml"
        spec = await read_spec_in_thread(text, kind, self._services.settings.cluster)
        incoming = submission.Incoming(spec)
        if head.HasField("code_digest"):
            incoming.code_digest = checked_digest(head.code_digest)
        with self._services.instrumentation.counting_refused_code():
            async for part in messages:
                if not part.HasField("code"):
                    raise InvalidRequest("every message of a submission after the first has `code`")
                if incoming.code_digest:
                    raise wrong_parameter("code_digest", "give either code or its digest, not both")
                if incoming.upload is None:
                    incoming.upload = await closing.enter_async_context(self._services.uploads.receive(tenant))
                await incoming.upload.write(part.code)
        return tenant, incoming


def _clone_params(request: jobs_pb2.CloneJobRequest) -> submission.CloneParams:
    """A Struct has only floating-point numbers: whole ones are meant as integers."""

    def plain(value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() else value

    try:
        given = MessageToDict(request.set)
    except ValueError:
        raise wrong_field("/set", "a number is finite") from None
    changes = {path: plain(value) for path, value in given.items()}
    try:
        return submission.CloneParams(name=request.name if request.HasField("name") else None, set=changes)
    except ValidationError as invalid:
        raise invalid_params(invalid.errors(include_url=False, include_input=False)) from None


def _conditions(request: jobs_pb2.ChangeJobRequest) -> dict[str, Any]:
    return {"generation": request.generation if request.HasField("generation") else None, "key": current().key}
