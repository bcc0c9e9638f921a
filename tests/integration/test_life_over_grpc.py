"""A job's whole life by gRPC, and by the SDK with `await`, on the running platform."""

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
name: doors
command: sh train.sh
resources: {cpus: 0.5, memory: 64MiB}
"""
TRAIN = """
echo one
echo '{"step": 1, "loss": 0.5}'
printf learned > "$RESULT_DIR/model.txt"
echo two
"""
SAID = ["one", '{"step": 1, "loss": 0.5}', "two"]
# One set of stores is enough: what differs between them lies behind both doors.
pytestmark = pytest.mark.parametrize("weft_up", ["embedded"], indirect=True)


async def test_a_job_is_submitted_followed_and_fetched_by_grpc(weft_up: Platform) -> None:
    status = await asyncio.to_thread(PLATFORM.status, str(weft_up.home.root))
    async with speaking(status["grpc"], weft_up.key) as rpc:
        parts = [
            pb.SubmitJobRequest(head=pb.Submission(yaml=SPEC)),
            pb.SubmitJobRequest(code=a_zip({"train.sh": TRAIN})),
        ]
        job = await rpc.jobs.SubmitJob(stream_of(parts), metadata=rpc.under("doors"))
        lines: list[str] = []
        ends: list[pb.JobEnd] = []
        async for reply in rpc.jobs.FollowLogs(pb.GetLogsRequest(job_id=job.id), metadata=rpc.metadata, timeout=HANG_S):
            lines += [one.text for one in reply.lines.lines]
            ends += [reply.end] if reply.HasField("end") else []
        assert lines == SAID
        assert [(one.status, one.at_rest) for one in ends] == [("COMPLETED", True)]
        points = await rpc.jobs.GetMetrics(pb.GetMetricsRequest(job_id=job.id), metadata=rpc.metadata)
        assert [(one.name, one.step, one.value) for one in points.points] == [("loss", 1, 0.5)]
        wanted = pb.GetArtifactRequest(job_id=job.id, path="attempts/1/results/worker-0/model.txt")
        replies = [one async for one in rpc.jobs.GetArtifact(wanted, metadata=rpc.metadata)]
        assert b"".join(one.data for one in replies) == b"learned"


async def test_a_job_is_submitted_followed_and_fetched_with_await(weft_up: Platform, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.sh").write_text(TRAIN)
    (tmp_path / "weft.yaml").write_text(SPEC)
    async with AsyncClient(weft_up.url, weft_up.key) as client:
        job = await client.jobs.submit(tmp_path / "weft.yaml", code=tmp_path / "code")
        assert [line.text async for line in job.logs(follow=True)] == SAID
        assert (await job.wait(HANG_S)).status == "COMPLETED"
        steps, values = await job.metrics("loss")
        assert (steps, values) == ([1], [0.5])
        [path] = await job.download(tmp_path / "out")
        assert path.read_text() == "learned"
        assert job.id in [one.id async for one in client.jobs.list(name="doors")]
        assert [event.to for event in await job.history()][-1] == "COMPLETED"
        await job.delete()
