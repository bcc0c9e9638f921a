"""Several metrics services as processes, of which each has a shard of the jobs."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.domain.errors import Conflict, PermissionDenied, Quarantined, Unauthenticated, Unavailable
from services.core.domain.shards import Shards as Numbers
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.gen.weft.v1 import metrics_pb2_grpc, operations_pb2, operations_pb2_grpc
from tests.testbed.etcd import Etcd
from tests.testbed.identities import credential
from tests.testbed.metrics import Helper, Peer, Reader, Shards, job_id
from tests.waiting import HANG_S, until

HelperOf = Callable[..., Helper]


@pytest.fixture
def shards(tmp_path: Path, etcd: Etcd) -> Iterator[Shards]:
    made = Shards(tmp_path, etcd.address)
    yield made
    made.kill()


@pytest.fixture
async def clients() -> AsyncGenerator[list[Peer]]:
    made: list[Peer] = []
    yield made
    await asyncio.gather(*(client.close() for client in made))


@pytest.fixture
def helper(shards: Shards, clients: list[Peer]) -> HelperOf:
    def make(job: str, shard: int) -> Helper:
        made = Helper(shards.services[shard], job)
        clients.append(made)
        return made

    return make


@pytest.fixture
def reader(shards: Shards, clients: list[Peer]) -> Callable[[int], Reader]:
    def make(shard: int) -> Reader:
        made = Reader(shards.services[shard])
        clients.append(made)
        return made

    return make


@pytest.fixture
async def status(etcd: Etcd) -> AsyncGenerator[EtcdStatusStore]:
    store = EtcdStatusStore(etcd.address, timeout_s=HANG_S)
    yield store
    await store.close()


async def announce(status: EtcdStatusStore, job: str) -> None:
    """Its first attempt, with one learner."""
    await status.put(f"/jobs/{job}/attempt", json.dumps({"attempt": 1, "learners": 1}))


def job_of(count: int, shard: int) -> str:
    """The id of a job that this shard owns."""
    return next(job for job in iter(job_id, "") if Numbers(count).owner(job) == shard)


async def test_any_shard_takes_and_shows_the_logs_of_any_job(
    shards: Shards, helper: HelperOf, reader: Callable[[int], Reader]
) -> None:
    shards.start(3)
    jobs = [job_of(3, shard) for shard in range(3)]
    for shard, job in enumerate(jobs):
        learner = helper(job, (shard + 1) % 3)
        assert (await learner.call("Hello", pb.HelloRequest(protocol=1))).current
        assert await learner.append(learner.lines(0, ["a", "b"]), learner.points(0, [1.0, 2.0])) == [20, 20]
    for shard in range(3):
        for job in jobs:
            summary = await reader(shard).call("Summary", pb.SummaryRequest(job_id=job))
            assert (await reader(shard).lines(job), summary.points) == (["a", "b"], 2)
    assert [shards.jobs(shard) for shard in range(3)] == [{job} for job in jobs], "each is stored by its owner alone"
    await reader(0).call("Forget", pb.ForgetRequest(job_id=jobs[2]))
    assert shards.jobs(2) == set()


async def test_a_follower_at_another_shard_sees_lines_as_they_are_stored(
    shards: Shards, helper: HelperOf, reader: Callable[[int], Reader]
) -> None:
    shards.start(2)
    job = job_of(2, 0)
    learner, follower = helper(job, 0), reader(1)
    await learner.append(learner.lines(0, ["before"]))
    assert await follower.lines(job) == ["before"]
    stream = follower.stream("FollowLines", pb.LinesRequest(job_id=job))
    lines: list[str] = []

    async def follow() -> None:
        async for reply in stream:
            lines.extend(stored.line.text for stored in reply.lines)

    following = asyncio.create_task(follow())
    await until(lambda: lines == ["before"])
    await learner.append(learner.lines(1, ["after"]))
    await until(lambda: lines == ["before", "after"])
    shards.services[0].kill()
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await following
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE, "it may be followed again"


async def test_a_list_and_a_comparison_are_of_the_jobs_of_all_shards(
    shards: Shards, status: EtcdStatusStore, helper: HelperOf, reader: Callable[[int], Reader]
) -> None:
    shards.start(3)
    jobs = [job_of(3, number % 3) for number in range(7)]
    curves = {job: [number + step / 8 for step in range(5)] for number, job in enumerate(jobs)}
    for job, values in curves.items():
        learner = helper(job, 0)
        await learner.append(learner.points(0, values))
        await announce(status, job)
        await learner.call("Beat", pb.BeatRequest(progress=0.5, eta_ms=1000))
    anywhere = reader(1)
    reply = await anywhere.call("Aggregates", pb.AggregatesRequest(job_ids=jobs))
    assert {job.job_id: job.aggregates[0].last for job in reply.jobs} == {job: curves[job][-1] for job in jobs}

    async def has_progress_of_all() -> bool:  # a shard that does not answer in time is left out
        reply = await anywhere.call("Progress", pb.ProgressRequest(job_ids=jobs))
        return {job.job_id: job.progress for job in reply.jobs} == dict.fromkeys(jobs, 0.5)

    await until(has_progress_of_all)
    unknown = job_of(3, 2)
    request = pb.StepStatisticsRequest(job_ids=[*jobs, unknown], name="none", also=["loss"], any_context=True)
    none = await anywhere.call("StepStatistics", request)
    assert list(none.without) == [*jobs, unknown]
    [reply] = none.more
    columns: Sequence[Sequence[float]] = list(zip(*curves.values(), strict=True))
    assert list(reply.n) == [7] * 5
    assert list(reply.mean) == pytest.approx([statistics.mean(column) for column in columns])
    assert list(reply.std) == pytest.approx([statistics.pstdev(column) for column in columns])
    assert list(reply.without) == [unknown]


async def test_a_list_shows_progress_although_one_shard_is_away(
    shards: Shards, status: EtcdStatusStore, helper: HelperOf, reader: Callable[[int], Reader]
) -> None:
    shards.start(2)
    jobs = [job_of(2, 0), job_of(2, 1)]
    for shard, job in enumerate(jobs):
        await announce(status, job)
        await helper(job, shard).call("Beat", pb.BeatRequest(progress=0.25, eta_ms=-1))
    shards.services[1].kill()
    reply = await reader(0).once("Progress", pb.ProgressRequest(job_ids=jobs))
    assert [job.job_id for job in reply.jobs] == jobs[:1]
    with pytest.raises(Unavailable, match="shard 1"):
        await reader(0).once("Summary", pb.SummaryRequest(job_id=jobs[1]))
    assert await reader(0).lines(jobs[0]) == [], "the other shard's jobs do not wait"


async def test_a_learner_without_a_valid_token_is_refused_by_every_shard(shards: Shards, clients: list[Peer]) -> None:
    shards.start(2)
    for shard in range(2):
        forged = Peer(shards.services[shard], metrics_pb2_grpc.IntakeStub, credential("api", "metrics"))
        clients.append(forged)
        with pytest.raises((PermissionDenied, Unauthenticated)):
            await forged.call("Hello", pb.HelloRequest(protocol=1))


async def test_only_shards_read_and_release_jobs_of_shards(
    shards: Shards, helper: HelperOf, clients: list[Peer]
) -> None:
    shards.start(2)
    job = job_of(2, 0)
    await helper(job, 0).append(helper(job, 0).lines(0, ["kept"]))
    as_api = Peer(shards.services[0], metrics_pb2_grpc.ShardStub, credential("api", "metrics"))
    as_shard = Peer(shards.services[0], metrics_pb2_grpc.ShardStub, credential("metrics", "metrics"))
    clients += [as_api, as_shard]
    with pytest.raises(PermissionDenied):
        await as_api.once("Release", pb.ReleaseRequest(job_id=job))
    with pytest.raises(Conflict, match="belongs to shard 0"):
        await as_shard.once("Release", pb.ReleaseRequest(job_id=job))
    assert shards.jobs(0) == {job}


async def test_damaged_metrics_of_every_shard_are_shown(
    shards: Shards, helper: HelperOf, reader: Callable[[int], Reader], clients: list[Peer]
) -> None:
    shards.start(2)
    job = job_of(2, 1)
    await helper(job, 0).append(helper(job, 0).lines(0, ["x"]))
    shards.services[1].stop()
    (shards.services[1].home / "metrics" / job / "index.sqlite").write_bytes(b"no database" * 1000)
    shards.start_one(1, 2)
    with pytest.raises(Quarantined):
        await reader(1).lines(job)
    operator = Peer(shards.services[0], operations_pb2_grpc.OperationsStub, credential("api", "metrics"))
    clients.append(operator)

    async def held() -> list[str]:
        reply = await operator.call("Quarantine", operations_pb2.QuarantineRequest())
        return [entry.job_id for entry in reply.held]

    async def is_shown() -> bool:
        return await held() == [job]

    await until(is_shown)


class Writer:
    """A learner that writes all the time, at any shard that answers."""

    def __init__(self, job: str, helper: HelperOf, shards: Shards) -> None:
        self.job, self._helper, self._shards = job, helper, shards
        self.written = 0
        self._stopping = False

    async def run(self) -> None:
        shard = 0
        while not self._stopping:
            learner = self._helper(self.job, shard)
            try:
                while not self._stopping:
                    batch = learner.lines(self.written, [f"line {self.written}"])
                    [committed] = (await learner.once("Append", pb.AppendRequest(batches=[batch]))).committed
                    self.written = committed // 10
                    await asyncio.sleep(0.01)
            except Unavailable:
                await asyncio.sleep(0.05)
                shard = (shard + 1) % len(self._shards.services)  # of those that are left now

    def stop(self) -> None:
        self._stopping = True


async def all_write(writers: Sequence[Writer]) -> None:
    """Waits until each has written something more."""
    before = [writer.written for writer in writers]
    await until(lambda: all(writer.written > lines for writer, lines in zip(writers, before, strict=True)))


async def moved(shards: Shards, count: int, before: int) -> None:
    """Waits until every job is where it belongs. The volumes say so of an earlier change, too."""
    complete = {"count": count, "before": before, "moved": True}
    await until(lambda: all(complete.items() <= shards.agreed(shard).items() for shard in range(max(count, before))))


async def change(shards: Shards, count: int, before: int) -> None:
    """Changes the number as Kubernetes replaces pods, one by one: for a while they run with different numbers."""
    everyone = range(max(count, before))
    for shard in reversed(everyone):
        if shard < len(shards.services):
            shards.services[shard].kill()
        shards.start_one(shard, count, before)
    await moved(shards, count, before)
    for shard in reversed(everyone):
        shards.services[shard].kill()
        if shard < count:
            shards.start_one(shard, count)
    del shards.services[count:]


async def test_no_line_is_lost_or_doubled_while_the_number_of_shards_changes(
    shards: Shards, helper: HelperOf, reader: Callable[[int], Reader]
) -> None:
    shards.start(1)
    ended = [job_id() for _ in range(8)]
    for job in ended:
        await helper(job, 0).append(helper(job, 0).lines(0, ["old", "older"]))
    writers = [Writer(job_id(), helper, shards) for _ in range(4)]
    async with asyncio.TaskGroup() as running:
        for writer in writers:
            running.create_task(writer.run())
        for count, before in ((3, 1), (2, 3)):
            await all_write(writers)
            await change(shards, count, before)
        await all_write(writers)
        for writer in writers:
            writer.stop()
    for writer in writers:
        lines = await reader(0).lines(writer.job, limit=10_000)
        assert lines == [f"line {number}" for number in range(len(lines))]
        assert len(lines) >= writer.written > 0
    for job in ended:
        assert await reader(1).lines(job) == ["old", "older"]
    for shard in range(2):
        assert {Numbers(2).owner(job) for job in shards.jobs(shard)} <= {shard}


@pytest.mark.parametrize("killed", [0, 1], ids=["the former owner", "the new one"])
async def test_no_job_is_lost_when_a_shard_is_killed_while_jobs_move(
    shards: Shards, helper: HelperOf, reader: Callable[[int], Reader], killed: int
) -> None:
    shards.start(1)
    jobs = [job_id() for _ in range(40)]
    for job in jobs:
        await helper(job, 0).append(helper(job, 0).lines(0, [job]))
    shards.start(2, before=1)
    moving = {job for job in jobs if Numbers(2).owner(job) == 1}
    for least in range(1, len(moving), max(1, len(moving) // 5)):
        await until(lambda: len(shards.jobs(1)) >= least)  # noqa: B023 - awaited at once
        shards.services[killed].kill()
        shards.start_one(killed, 2, before=1)
    await moved(shards, 2, 1)
    assert (shards.jobs(0), shards.jobs(1)) == (set(jobs) - moving, moving)
    for job in jobs:
        assert await reader(0).lines(job) == [job]


async def test_a_shard_with_another_number_than_before_refuses_to_start_and_says_what_to_set(
    shards: Shards, helper: HelperOf
) -> None:
    shards.start(1)
    jobs = [job_of(2, 0), job_of(2, 1)]
    for job in jobs:
        await helper(job, 0).append(helper(job, 0).lines(0, [job]))
    shards.start(2)
    await until(lambda: "WEFT_METRICS_SHARDS_BEFORE" in shards.services[0].log.read_text())
    assert shards.services[0].stop() != 0
    with pytest.raises(Unavailable):
        await helper(jobs[1], 1).once("Hello", pb.HelloRequest(protocol=1))
    assert shards.jobs(1) == set(), "nothing is begun anew elsewhere"
