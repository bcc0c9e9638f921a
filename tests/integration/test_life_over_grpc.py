"""A job's life over gRPC, and through the asynchronous SDK, on the running platform."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from services.core.gen.weft.v1 import jobs_pb2 as pb
from services.local.commands import PLATFORM
from tests.testbed.api import a_zip
from tests.testbed.platform import Platform
from tests.testbed.user_rpc import speaking, stream_of
from tests.waiting import HANG_S
from weft import AsyncClient

SPEC = """
name: over-grpc
command: sh train.sh
resources: {cpus: 0.5, memory: 64MiB}
"""
TRAIN = """
echo one
echo '{"step": 1, "loss": 0.5}'
printf learned > "$RESULT_DIR/model.txt"
echo two
"""
LINES = ["one", '{"step": 1, "loss": 0.5}', "two"]
# One set of stores is enough: both entry points use the same use cases.
pytestmark = pytest.mark.parametrize("weft_up", ["embedded"], indirect=True)


async def test_a_job_is_submitted_followed_and_fetched_by_grpc(weft_up: Platform) -> None:
    status = await asyncio.to_thread(PLATFORM.status, str(weft_up.home.root))
    async with speaking(status["grpc"], weft_up.key) as rpc:
        parts = [
            pb.SubmitJobRequest(head=pb.Submission(yaml=SPEC)),
            pb.SubmitJobRequest(code=a_zip({"train.sh": TRAIN})),
        ]
        job = await rpc.jobs.SubmitJob(stream_of(parts), metadata=rpc.under("over-grpc"))
        lines: list[str] = []
        ends: list[pb.JobEnd] = []
        async for reply in rpc.jobs.FollowLogs(pb.GetLogsRequest(job_id=job.id), metadata=rpc.metadata, timeout=HANG_S):
            lines += [line.text for line in reply.lines.lines]
            ends += [reply.end] if reply.HasField("end") else []
        assert lines == LINES
        assert [(end.status, end.at_rest) for end in ends] == [("COMPLETED", True)]
        points = await rpc.jobs.GetMetrics(pb.GetMetricsRequest(job_id=job.id), metadata=rpc.metadata)
        assert [(point.name, point.step, point.value) for point in points.points] == [("loss", 1, 0.5)]
        request = pb.GetArtifactRequest(job_id=job.id, path="attempts/1/results/worker-0/model.txt")
        replies = [reply async for reply in rpc.jobs.GetArtifact(request, metadata=rpc.metadata)]
        assert b"".join(reply.data for reply in replies) == b"learned"


async def test_a_job_is_submitted_followed_and_fetched_with_await(weft_up: Platform, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.sh").write_text(TRAIN)
    (tmp_path / "weft.yaml").write_text(SPEC)
    async with AsyncClient(weft_up.url, weft_up.key) as client:
        job = await client.jobs.submit(tmp_path / "weft.yaml", code=tmp_path / "code")
        assert [line.text async for line in job.logs(follow=True)] == LINES
        assert (await job.wait(HANG_S)).status == "COMPLETED"
        steps, values = await job.metrics("loss")
        assert (steps, values) == ([1], [0.5])
        [path] = await job.download(tmp_path / "out")
        assert path.read_text() == "learned"
        assert job.id in [listed.id async for listed in client.jobs.list(name="over-grpc")]
        assert [event.to for event in await job.history()][-1] == "COMPLETED"
        await job.delete()
