"""The metrics service as a process, with a real etcd."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import grpc
import pytest

from services.core.adapters.etcd.store import EtcdStatusStore
from services.core.adapters.identity import KeyPair, LearnerTokenSigner
from services.core.adapters.identity.learner_tokens import OWNER
from services.core.adapters.s3.wire import Wire
from services.core.adapters.sqlite import SqliteJobStore
from services.core.domain.errors import (
    InvalidRequest,
    NotFound,
    PermissionDenied,
    StaleFence,
    Unauthenticated,
    Unavailable,
)
from services.core.domain.job import admitted, moved, new_job
from services.core.domain.status import Phase, Status
from services.core.gen.weft.v1 import metrics_pb2 as pb
from services.core.gen.weft.v1 import metrics_pb2_grpc
from services.core.ports.status_store import StatusStore
from tests.testbed.etcd import Etcd
from tests.testbed.identities import credential, learner_credential
from tests.testbed.metrics import Helper, MetricsProcess, Peer, Reader, job_id, running
from tests.testbed.s3 import S3
from tests.waiting import HANG_S, Stopwatch, tries_within, until

HelperOf = Callable[..., Helper]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[MetricsProcess]:
    """A process for tests that do not kill it; each test uses its own job."""
    with running(tmp_path_factory.mktemp("metrics"), etcd.address) as service:
        yield service


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Any, etcd: Etcd) -> Iterator[MetricsProcess]:
    """The shared process, or (``@own``) one that the test may kill."""
    if request.node.get_closest_marker("usefixtures") is None:
        yield request.getfixturevalue("shared")
        return
    with running(tmp_path, etcd.address) as own:
        yield own


@pytest.fixture
def own_service() -> None:
    """Makes ``service`` a process of the test's own."""


own = pytest.mark.usefixtures("own_service")


@pytest.fixture
async def status(etcd: Etcd) -> AsyncGenerator[StatusStore]:
    store = EtcdStatusStore(etcd.address, timeout_s=HANG_S)
    yield store
    await store.close()


@pytest.fixture
async def clients(service: MetricsProcess) -> AsyncGenerator[list[Peer]]:
    made: list[Peer] = []
    yield made
    await asyncio.gather(*(client.close() for client in made))


@pytest.fixture
def job() -> str:
    return job_id()


@pytest.fixture
def helper(service: MetricsProcess, clients: list[Peer], job: str) -> HelperOf:
    def make(rank: int = 0, attempt: int = 1, **options: Any) -> Helper:
        made = Helper(service, job, rank=rank, attempt=attempt, **options)
        clients.append(made)
        return made

    return make


@pytest.fixture
async def reader(service: MetricsProcess, clients: list[Peer]) -> Reader:
    made = Reader(service)
    clients.append(made)
    return made


async def announce(status: StatusStore, job: str, *, attempt: int = 1, learners: int = 1) -> None:
    await status.put(f"/jobs/{job}/attempt", json.dumps({"attempt": attempt, "learners": learners}))


async def is_unknown(helper: Helper, method: str, request: Any) -> bool:
    """True if the call is refused because the current attempt is not known; False if etcd was too slow to tell."""
    with pytest.raises(Unavailable) as refused:
        await helper.once(method, request)
    return "not known" in refused.value.message


async def in_etcd(status: StatusStore, job: str, name: str = "worker-0") -> dict[str, Any] | None:
    entry = await status.get(f"/jobs/{job}/learners/{name}")
    return None if entry is None else json.loads(entry.value)


# --- permissions ---


async def test_a_learner_may_write_for_itself_only(helper: HelperOf, reader: Reader, job: str) -> None:
    mine = helper(rank=0)
    foreigners: list[dict[str, Any]] = [{"rank": 1}, {"attempt": 2}, {"role": "ps"}]
    for foreign in foreigners:
        batch = mine.lines(0, ["forged"], source=mine.source(**foreign))
        with pytest.raises(PermissionDenied):
            await mine.append(mine.lines(0, ["mine"]), batch)
        other = mine.status(Phase.READY)
        forged = {"name": other.name, "role": "worker", "rank": 0, "attempt": 1, "seq": 1, "phase": "READY", **foreign}
        with pytest.raises(PermissionDenied):
            await mine.call("Report", pb.ReportRequest(status=json.dumps(forged).encode()))
    assert await reader.lines(job) == []


async def test_bad_credentials_are_refused(service: MetricsProcess, helper: HelperOf, clients: list[Peer]) -> None:
    await helper().append()  # the service is up
    stranger = helper(signer=LearnerTokenSigner(KeyPair.from_seed(OWNER, b"another installation".ljust(32))))
    with pytest.raises(Unauthenticated):
        await stranger.append()
    as_service = Peer(service, metrics_pb2_grpc.IntakeStub, credential("api", "metrics"))
    as_learner = Peer(service, metrics_pb2_grpc.TelemetryStub, learner_credential(stranger.me))
    clients += [as_service, as_learner]
    with pytest.raises(PermissionDenied):
        await as_service.call("Append", pb.AppendRequest())
    with pytest.raises(PermissionDenied):
        await as_learner.call("Lines", pb.LinesRequest(job_id="j0"))


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"times": []}', b"[" * 60_000, b"\xff", b'{"name": 1}', b"x" * 70_000]
)
async def test_a_malformed_report_is_refused(helper: HelperOf, text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        await helper().call("Report", pb.ReportRequest(status=text))


# --- logs and points ---


async def test_lines_sent_repeatedly_are_stored_once(helper: HelperOf, reader: Reader, job: str) -> None:
    mine, other = helper(0), helper(1)
    assert await mine.append(mine.lines(0, ["a", "b"]), mine.points(0, [0.5, math.nan])) == [20, 20]
    assert await mine.append(mine.lines(0, ["a", "b"])) == [20]
    assert await mine.append(mine.lines(1, ["b", "c"])) == [20]
    assert await mine.append(mine.lines(2, ["c"], final=True)) == [30]
    assert await other.append(other.lines(0, ["x"])) == [10]
    assert await reader.lines(job) == ["a", "b", "c", "x"]
    assert await reader.lines(job, rank=0, search="[bc]", tail=1) == ["c"]
    hello = await mine.call("Hello", pb.HelloRequest(protocol=1))
    assert [(state.source.source, state.committed, state.final) for state in hello.sources] == [
        ("stdout", 30, True),
        ("metrics.jsonl", 20, False),
    ]
    points = (await reader.call("Points", pb.PointsRequest(job_id=job))).points
    assert [(stored.seq, stored.point.step) for stored in points] == [(1, 0), (2, 1)]
    assert math.isnan(points[1].point.value)
    series = await reader.call("Series", pb.PointsRequest(job_id=job, names=["loss"]))
    assert series.points[0].point.value == 0.5
    summary = await reader.call("Summary", pb.SummaryRequest(job_id=job))
    assert (summary.lines, summary.points, summary.latest[0].point.name) == (4, 2, "loss")
    assert (summary.progress, summary.eta_ms) == (-1, -1)


async def test_a_former_attempt_may_still_send_its_logs(
    helper: HelperOf, reader: Reader, status: StatusStore, job: str
) -> None:
    await announce(status, job, attempt=2)
    former = helper(attempt=1)
    assert await former.append(former.lines(0, ["last words"], final=True)) == [10]
    assert await reader.lines(job) == ["last words"]


async def test_token_of_an_ended_job_appends_nothing_after_five_seconds(
    service: MetricsProcess, helper: HelperOf, job: str
) -> None:
    now = time.time_ns() // 1_000_000
    document = admitted(
        new_job(
            job_id=job,
            tenant="acme",
            user="ada",
            spec={"name": "x", "command": "true"},
            code_digest="",
            idem=job,
            idem_digest="",
            trace="",
            now=now - 60_000,
        ),
        placement={"worker-0": "local"},
        dispatcher_term=1,
        now=now - 60_000,
    )
    mine = helper()
    store = await SqliteJobStore.open(service.home / "jobs.sqlite")
    try:
        stored = await store.insert(document)
        await mine.append(mine.lines(0, ["before"]))
        await store.replace(stored, moved(stored, Status.KILLED, actor="guardian", now=now - 5_001))
    finally:
        await store.close()

    async def refused() -> bool:
        try:
            await mine.append(mine.lines(1, ["after"]))
        except PermissionDenied:
            return True
        return False

    await until(refused)  # the service reads a job's document once a second


async def test_a_forgotten_job_stays_deleted(helper: HelperOf, reader: Reader, job: str) -> None:
    mine = helper()
    await mine.append(mine.lines(0, ["a"]))
    await reader.call("Forget", pb.ForgetRequest(job_id=job))
    assert await reader.lines(job) == []
    with pytest.raises(NotFound):
        await mine.append(mine.lines(1, ["b"]))


async def test_pages_of_long_lines_fit_into_a_message(helper: HelperOf, reader: Reader, job: str) -> None:
    mine = helper()
    for at in range(0, 400, 100):
        await mine.append(mine.lines(at, ["\U0001f9f5" * 4_000] * 100))
    after, seqs = 0, list[int]()
    while True:
        reply = await reader.call("Lines", pb.LinesRequest(job_id=job, after_seq=after, limit=10_000))
        after = reply.through_seq
        if not reply.lines:
            break
        seqs += [stored.seq for stored in reply.lines]
    assert seqs == list(range(1, 401))


@own
async def test_each_line_is_stored_once_over_kills_of_the_service(
    service: MetricsProcess, helper: HelperOf, reader: Reader, job: str
) -> None:
    async def ship(mine: Helper) -> None:
        at = 0
        while at < 300:
            (end,) = await mine.append(mine.lines(at, [f"{mine.me.rank}:{at + n}" for n in range(3)]))
            at = end // 10

    shipping = [asyncio.create_task(ship(helper(rank))) for rank in range(3)]
    for stored in (150, 400, 650):
        await until(lambda stored=stored: _stored(reader, job, stored))  # type: ignore[misc]
        service.kill()
        service.start()
    await asyncio.gather(*shipping)
    for rank in range(3):
        assert await reader.lines(job, rank=rank) == [f"{rank}:{at}" for at in range(300)]


async def _stored(reader: Reader, job: str, lines: int) -> bool:
    return bool((await reader.call("Summary", pb.SummaryRequest(job_id=job))).lines >= lines)


# --- following ---


async def test_a_follower_gets_each_line_once_and_within_200_ms(helper: HelperOf, reader: Reader, job: str) -> None:
    mine = helper()
    await mine.append(mine.lines(0, [f"old {at}" for at in range(5)]))
    stream = reader.stream("FollowLines", pb.LinesRequest(job_id=job, tail=2))
    replies = aiter(stream)
    received = [stored.line.text for stored in (await anext(replies)).lines]
    for stopwatch in tries_within(0.2):  # generous: the benchmark measures it
        delays: list[float] = []
        while len(delays) < 20:
            with Stopwatch() as delay:
                await mine.append(mine.lines(3 + len(received), [f"new {len(received) - 2}"]))
                reply = await anext(replies)
                while not reply.lines:
                    reply = await anext(replies)
            received += [stored.line.text for stored in reply.lines]
            delays.append(delay.took_s)
        stopwatch.took_s = sorted(delays)[10]
    stream.cancel()
    assert received == ["old 3", "old 4", *(f"new {at}" for at in range(len(received) - 2))]


async def test_helpers_may_gather_lines_of_a_job_without_followers(helper: HelperOf, reader: Reader, job: str) -> None:
    mine = helper()

    async def may_gather() -> bool:
        request = pb.AppendRequest(batches=[mine.lines(0, ["a line"])])
        return bool((await mine.call("Append", request)).gather_ms)

    assert await may_gather()
    stream = reader.stream("FollowLines", pb.LinesRequest(job_id=job))
    await stream.read()
    assert not await may_gather()
    stream.cancel()
    await until(may_gather)


async def test_a_follower_of_an_empty_job_gets_keep_alives(reader: Reader, job: str) -> None:
    stream = reader.stream("FollowPoints", pb.PointsRequest(job_id=job, after_seq=0))
    replies = [await stream.read() for _ in range(3)]
    stream.cancel()
    assert [(len(reply.points), reply.through_seq) for reply in replies] == [(0, 0)] * 3


async def test_a_follower_with_a_filter_skips_lines_that_do_not_match(
    helper: HelperOf, reader: Reader, job: str
) -> None:
    mine = helper()
    stream = reader.stream("FollowLines", pb.LinesRequest(job_id=job, search="^yes"))
    await stream.read()
    await mine.append(mine.lines(0, ["no"] * 50))
    await mine.append(mine.lines(50, ["yes"]))
    reply = await stream.read()
    while not reply.lines:
        reply = await stream.read()
    stream.cancel()
    assert [(stored.seq, stored.line.text) for stored in reply.lines] == [(51, "yes")]
    assert reply.through_seq == 51


@own
@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_a_follower_gets_each_line_once_over_restarts_of_the_service(
    service: MetricsProcess, helper: HelperOf, reader: Reader, job: str, end: str
) -> None:
    count = 400

    async def ship() -> None:
        mine, at = helper(), 0
        while at < count:
            (committed,) = await mine.append(mine.lines(at, [str(at), str(at + 1)]))
            at = committed // 10

    async def follow() -> list[int]:
        received: list[int] = []
        after = 0
        while len(received) < count:
            try:
                async for reply in reader.stream("FollowLines", pb.LinesRequest(job_id=job, after_seq=after)):
                    received += [stored.seq for stored in reply.lines]
                    after = reply.through_seq
                    if len(received) >= count:
                        break
            except grpc.RpcError:
                await asyncio.sleep(0.02)
        return received

    following, shipping = asyncio.create_task(follow()), asyncio.create_task(ship())
    for stored in (100, 250):
        await until(lambda stored=stored: _stored(reader, job, stored))  # type: ignore[misc]
        if end == "kill":
            service.kill()
        else:
            assert await asyncio.to_thread(service.stop) == 0
        service.start()
    await shipping
    assert await following == list(range(1, count + 1))


# --- reports and beats ---


async def test_a_report_is_in_etcd_once_its_attempt_is_current(helper: HelperOf, status: StatusStore, job: str) -> None:
    mine = helper()
    await announce(status, job)
    assert await mine.report(Phase.WAITING)
    assert await mine.report(Phase.DOWNLOADING)
    stored = await in_etcd(status, job)
    assert stored is not None
    assert (stored["phase"], stored["seq"], stored["attempt"]) == ("DOWNLOADING", 2, 1)


async def test_an_older_report_never_overwrites_a_newer_one(helper: HelperOf, status: StatusStore, job: str) -> None:
    mine = helper()
    await announce(status, job)
    assert await mine.report(Phase.READY, seq=5)
    assert await mine.report(Phase.WAITING, seq=4)
    stored = await in_etcd(status, job)
    assert stored is not None
    assert (stored["phase"], stored["seq"]) == ("READY", 5)


async def test_a_stale_attempt_is_refused_and_writes_nothing(helper: HelperOf, status: StatusStore, job: str) -> None:
    former, newer = helper(attempt=1), helper(attempt=2)
    await announce(status, job, attempt=1)
    assert await former.report(Phase.PROCESSING)
    await announce(status, job, attempt=2)
    assert await newer.report(Phase.WAITING)
    assert not await former.report(Phase.STORED)
    assert await former.beat() == (False, False)
    stored = await in_etcd(status, job)
    assert stored is not None
    assert (stored["attempt"], stored["phase"]) == (2, "WAITING")


@pytest.mark.parametrize("value", [None, '{"attempt": 1, "learners": 1}', "no JSON", "[]"])
async def test_an_unknown_current_attempt_is_unavailable_not_stale(
    helper: HelperOf, status: StatusStore, job: str, value: str | None
) -> None:
    if value is not None:
        await status.put(f"/jobs/{job}/attempt", value)
    mine = helper(attempt=2)
    await mine.append()  # the service is up
    await until(lambda: is_unknown(mine, "Beat", pb.BeatRequest()))
    await until(lambda: is_unknown(mine, "Report", pb.ReportRequest(status=_json(mine, Phase.READY))))
    assert (await mine.once("Hello", pb.HelloRequest(protocol=1))).current


def _json(helper: Helper, phase: Phase) -> bytes:
    status = helper.status(phase)
    return json.dumps(
        {
            "name": status.name,
            "role": "worker",
            "rank": status.rank,
            "attempt": status.attempt,
            "seq": status.seq,
            "phase": phase.value,
        }
    ).encode()


async def test_no_learner_starts_before_its_gang_is_ready(helper: HelperOf, status: StatusStore, job: str) -> None:
    await announce(status, job, learners=3)
    gang = [helper(rank) for rank in range(3)]
    former = helper(rank=2, attempt=1)
    for member in gang[:2]:
        await member.report(Phase.READY)
        assert await member.beat() == (True, False)
    await former.report(Phase.DOWNLOADING)
    assert await gang[0].beat() == (True, False)
    await gang[2].report(Phase.READY, seq=9)
    assert not (await gang[0].append_with_beat(gang[0].lines(0, ["a"]), progress=0.2)).HasField("beat")
    assert [await member.beat() for member in gang] == [(True, True)] * 3
    reply = await gang[0].append_with_beat(gang[0].lines(1, ["b"]), progress=0.2)
    assert (list(reply.committed), reply.beat.go) == ([20], True)
    await announce(status, job, attempt=2, learners=3)
    await until(lambda: _is(gang[0], current=False))


async def _is(helper: Helper, *, current: bool) -> bool:
    return (await helper.beat())[0] is current


async def test_learners_of_a_former_attempt_do_not_make_a_gang_ready(
    helper: HelperOf, status: StatusStore, job: str
) -> None:
    await announce(status, job, attempt=1, learners=2)
    for rank in range(2):
        await helper(rank).report(Phase.PROCESSING)
    await announce(status, job, attempt=2, learners=2)
    second = helper(0, attempt=2)
    await second.report(Phase.READY)
    assert await second.beat() == (True, False)


async def test_progress_of_a_job_is_that_of_the_slowest_learner_of_its_newest_attempt(
    helper: HelperOf, reader: Reader, status: StatusStore, job: str
) -> None:
    slow, fast, former = helper(0, attempt=2), helper(1, attempt=2), helper(1, attempt=1)
    await announce(status, job, attempt=2)
    for member, progress in ((fast, 0.9), (slow, 0.25), (former, 0.1)):
        await member.call("Beat", pb.BeatRequest(progress=progress, eta_ms=7000))
    summary = await reader.call("Summary", pb.SummaryRequest(job_id=job))
    assert (summary.progress, summary.eta_ms) == (0.25, 7000)


# --- the process ---


async def test_the_service_is_ready_a_member_and_has_metrics(
    service: MetricsProcess, helper: HelperOf, status: StatusStore, job: str
) -> None:
    mine = helper()
    await mine.append(mine.lines(0, ["a"]))
    await until(lambda: _members(status))
    await until(lambda: _ready(service))
    exposed = service.operations("/metrics")
    for name in ("lines_total", "points_total", "batches_refused_total", "followers", "learners_seen", "reports"):
        assert f"weft_metrics_{name}" in exposed


def _ready(service: MetricsProcess) -> bool:
    return bool(json.loads(service.operations("/readyz"))["ready"])


async def _members(status: StatusStore) -> bool:
    return bool(await status.list("/members/metrics/"))


async def test_logs_are_stored_without_etcd_and_reports_return_after_etcd_lost_everything(
    own_etcd: Etcd, tmp_path: Any, job: str
) -> None:
    with running(tmp_path, own_etcd.address) as service:
        mine, reader = Helper(service, job), Reader(service)
        assert await mine.append(mine.lines(0, ["before etcd is there"])) == [10]
        with pytest.raises(Unavailable):
            await mine.once("Report", pb.ReportRequest(status=_json(mine, Phase.READY)))

        own_etcd.start()
        await own_etcd.ready()
        status = EtcdStatusStore(own_etcd.address, timeout_s=HANG_S)
        await announce(status, job)
        assert await mine.report(Phase.READY, seq=7)
        await until(lambda: _may_start(mine))  # the watch, which connects now, may have listed etcd before the report

        own_etcd.kill()
        assert await mine.append(mine.lines(1, ["etcd is dead"])) == [20]
        own_etcd.start_empty()
        await own_etcd.ready()
        assert await in_etcd(status, job) is None

        await announce(status, job)
        await until(lambda: _comes_back(mine, status, job))  # helpers repeat their state
        await until(lambda: _may_start(mine))
        assert await reader.lines(job) == ["before etcd is there", "etcd is dead"]
        await until(lambda: _members(status))
        for client in (mine, reader, status):
            await client.close()


async def _may_start(mine: Helper) -> bool:
    return await mine.beat() == (True, True)


async def _comes_back(mine: Helper, status: StatusStore, job: str) -> bool:
    return await mine.report(Phase.READY, seq=7) and await in_etcd(status, job) is not None


# --- URLs for objects ---


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd, s3: S3) -> Iterator[MetricsProcess]:
    with running(tmp_path_factory.mktemp("signing"), etcd.address, s3.settings("signing")) as service:
        yield service


def sign(verb: str, key: str) -> pb.SignRequest:
    return pb.SignRequest(requests=[pb.ObjectRequest(verb=verb, key=key)])


async def signed(helper: Helper, verb: str, key: str) -> str:
    (url,) = (await helper.call("Sign", sign(verb, key))).urls
    return str(url)


async def test_urls_are_signed_for_the_current_attempt_only(
    signing: MetricsProcess, status: StatusStore, job: str
) -> None:
    old, new = Helper(signing, job, attempt=1), Helper(signing, job, attempt=2)
    own = f"tenants/t/jobs/{job}/attempts/{{}}/results/worker-0/out"
    try:
        await new.call("Hello", pb.HelloRequest(protocol=1))
        unsigned = sign("put", own.format(2))
        await until(lambda: is_unknown(new, "Sign", unsigned))  # the Guardian has not written it yet
        await announce(status, job, attempt=1)
        wire = Wire()
        assert (await wire.send("PUT", await signed(old, "put", own.format(1)), b"from one")).status == 200
        await announce(status, job, attempt=2)
        with pytest.raises(StaleFence):
            await signed(old, "put", own.format(1))
        with pytest.raises(StaleFence):
            await signed(old, "get", own.format(1))
        assert (await wire.send("PUT", await signed(new, "put", own.format(2)), b"from two")).status == 200
        with pytest.raises(PermissionDenied):
            await signed(new, "put", own.format(1))
        await status.delete_prefix(f"/jobs/{job}/")
        await until(lambda: is_unknown(new, "Sign", unsigned))  # etcd has lost it
        wire.close()
    finally:
        await old.close()
        await new.close()


async def test_no_urls_are_signed_for_objects_in_a_folder(helper: HelperOf, status: StatusStore, job: str) -> None:
    await announce(status, job)
    with pytest.raises(InvalidRequest, match="folder"):
        await helper().call("Sign", pb.SignRequest(requests=[pb.ObjectRequest(verb="get", key="x")]))
