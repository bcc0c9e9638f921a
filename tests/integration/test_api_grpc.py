"""The gRPC entry point: authentication, malformed messages, uploads, downloads, live streams."""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
import structlog.testing
from google.protobuf.empty_pb2 import Empty
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.api import access_end
from services.api.grpc.auth_interceptor import OPEN_SERVICES, PUBLIC, permission_of
from services.api.grpc.jobs import Jobs
from services.api.grpc.platform import Keys, Platform, Secrets
from services.api.grpc.server import serve
from services.core.domain.errors import WeftError
from services.core.gen.weft.v1 import jobs_pb2 as pb
from services.core.gen.weft.v1 import jobs_pb2_grpc
from services.core.gen.weft.v1 import platform_pb2 as pp
from tests.testbed.api import Api, a_zip, running_api
from tests.testbed.etcd import Etcd
from tests.testbed.learner_telemetry import api_over, running_learner
from tests.testbed.metrics import MetricsProcess, running
from tests.testbed.mongo import Mongo
from tests.testbed.user_rpc import Rpc, refusal, speaking, stream_of
from tests.waiting import until

YAML = "name: digits\ncommand: python train.py\n"
SERVICERS: dict[str, type] = {
    "weft.v1.Jobs": Jobs,
    "weft.v1.Keys": Keys,
    "weft.v1.Platform": Platform,
    "weft.v1.Secrets": Secrets,
}
STREAMING = {"SubmitJob", "PlanJob"}
NEVER = {"INTERNAL", "UNKNOWN", "UNIMPLEMENTED", "DEADLINE_EXCEEDED"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    async with running_api(tmp_path_factory.mktemp("api")) as api:
        yield api


@pytest_asyncio.fixture(loop_scope="module")
async def rpc(api: Api) -> AsyncIterator[Rpc]:
    async with speaking(api.grpc, api.admin_key) as rpc:
        yield rpc


async def methods_of(address: str) -> list[str]:
    """``/service/method`` of every method, as the server's reflection lists them."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub
        ask = stub(channel).ServerReflectionInfo
        request = reflection_pb2.ServerReflectionRequest
        listed = [reply async for reply in ask(stream_of([request(list_services="")]))]
        out: list[str] = []
        for service in listed[0].list_services_response.service:
            files = [reply async for reply in ask(stream_of([request(file_containing_symbol=service.name)]))]
            for raw in files[0].file_descriptor_response.file_descriptor_proto:
                file = _file(raw)
                for entry in file.service:
                    if f"{file.package}.{entry.name}" == service.name:
                        out += [f"/{service.name}/{method.name}" for method in entry.method]
        return out


def _file(raw: bytes) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - needed here alone

    return FileDescriptorProto.FromString(raw)


def _service(method: str) -> str:
    return method.split("/")[1]


def sent(channel: Any, method: str, raw: bytes | list[bytes], metadata: Any) -> Any:
    """A call with these bytes as its message."""
    name = method.rpartition("/")[2]
    if name in STREAMING:
        pieces = raw if isinstance(raw, list) else [raw]
        return channel.stream_unary(method)(stream_of(pieces), metadata=metadata, timeout=120)
    assert isinstance(raw, bytes)
    if name.startswith("Follow") or name == "GetArtifact":
        return channel.unary_stream(method)(raw, metadata=metadata, timeout=120)
    return channel.unary_unary(method)(raw, metadata=metadata, timeout=120)


async def test_every_rpc_of_the_running_server_declares_its_permission(api: Api) -> None:
    methods = await methods_of(api.grpc)
    ours = [method for method in methods if _service(method) not in OPEN_SERVICES]
    assert len(ours) > 25
    declared = {
        method: permission_of(getattr(SERVICERS[_service(method)], method.rpartition("/")[2])) for method in ours
    }
    assert [method for method, permission in declared.items() if permission is None] == []
    assert [method for method, permission in declared.items() if permission == PUBLIC] == [
        "/weft.v1.Platform/GetVersion"
    ]


class Careless(Jobs):
    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.Job:  # noqa: N802 - the proto's name
        return pb.Job(id="leaked")


async def test_an_rpc_without_a_declared_permission_is_closed(api: Api) -> None:
    from services.api.grpc.auth_interceptor import AuthInterceptor  # noqa: PLC0415 - needed here alone

    server = grpc.aio.server(interceptors=(AuthInterceptor(api.services, lambda _: None),))
    jobs_pb2_grpc.add_JobsServicer_to_server(Careless(api.services), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with speaking(f"127.0.0.1:{port}", api.admin_key) as rpc:
        refused = await rpc.refused(rpc.jobs.GetJob(pb.GetJobRequest(), metadata=rpc.metadata))
    await server.stop(None)
    assert refused.code == "permission-denied"


BAD: list[tuple[tuple[str, Any], ...]] = [
    (),
    (("authorization", "Bearer"),),
    (("authorization", "Bearer weft_k" + "0" * 22 + "_" + "0" * 64),),
    (("authorization", "Basic {key}"),),
    (("authorization", "Learner {key}"),),
    (("authorization", "{key}"),),
    (("authorization", "Bearer {key}0"),),
    (("authorization-bin", b"Bearer {key}"), ("x-api-key", "{key}"), ("cookie", "key={key}")),
]


async def test_no_rpc_answers_a_bad_credential(api: Api) -> None:
    methods = [method for method in await methods_of(api.grpc) if _service(method) not in OPEN_SERVICES]
    async with grpc.aio.insecure_channel(api.grpc) as channel:
        for credential in BAD:
            metadata = tuple(
                (name, value.replace("{key}", api.admin_key) if isinstance(value, str) else value)
                for name, value in credential
            )
            for method in methods:
                if method == "/weft.v1.Platform/GetVersion":
                    continue
                status = await _status(sent(channel, method, b"", metadata))
                assert status == "UNAUTHENTICATED", (method, credential)


async def _status(call: Any) -> str:
    try:
        if hasattr(call, "read"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


async def test_a_users_key_is_limited_to_its_scope_and_tenant(api: Api, rpc: Rpc) -> None:
    made = await rpc.jobs.SubmitJob(stream_of([head()]), metadata=rpc.metadata)
    async with speaking(api.grpc, await api.key("ada", "acme")) as ada:
        assert (await ada.keys.WhoAmI(Empty(), metadata=ada.metadata)).tenant == "acme"
        foreign = await ada.refused(ada.jobs.GetJob(pb.GetJobRequest(job_id=made.id), metadata=ada.metadata))
        missing = "j" + "0" * 22
        absent = await ada.refused(ada.jobs.GetJob(pb.GetJobRequest(job_id=missing), metadata=ada.metadata))
        assert foreign.message.replace(made.id, missing) == absent.message
        assert (foreign.code, foreign.status) == ("not-found", "NOT_FOUND")
        listed = await ada.jobs.ListJobs(pb.ListJobsRequest(), metadata=ada.metadata)
        assert list(listed.jobs) == []
        for call in (
            ada.platform.GetQuarantine(Empty(), metadata=ada.metadata),
            ada.jobs.ListJobs(pb.ListJobsRequest(tenant="*"), metadata=ada.metadata),
            ada.keys.CreateKey(pp.CreateKeyRequest(scope="admin"), metadata=ada.metadata),
        ):
            assert (await ada.refused(call)).status == "PERMISSION_DENIED"


def head(**more: Any) -> pb.SubmitJobRequest:
    return pb.SubmitJobRequest(head=pb.Submission(**{"yaml": YAML, **more}))


async def test_an_unauthenticated_call_is_refused_before_its_stream_is_read(api: Api) -> None:
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[pb.SubmitJobRequest]:
        begun.set()
        yield head()
        await asyncio.Event().wait()

    async with speaking(api.grpc, None) as nobody:
        refused = await nobody.refused(nobody.jobs.SubmitJob(endless(), timeout=120))
    assert refused.code == "unauthenticated"


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([], "invalid-request"),
        ([pb.SubmitJobRequest()], "invalid-request"),
        ([pb.SubmitJobRequest(code=b"x")], "invalid-request"),
        ([head(), head()], "invalid-request"),
        ([head(), pb.SubmitJobRequest()], "invalid-request"),
        ([head(code_digest="sha256:" + "0" * 64), pb.SubmitJobRequest(code=b"x")], "invalid-request"),
        ([head(), pb.SubmitJobRequest(code=b"no zip")], "invalid-archive"),
        ([head(yaml="")], "invalid-spec"),
    ],
)
async def test_an_invalid_submission_is_refused_and_leaves_no_file(
    api: Api, rpc: Rpc, messages: list[pb.SubmitJobRequest], code: str
) -> None:
    for method in (rpc.jobs.SubmitJob, rpc.jobs.PlanJob):
        assert (await rpc.refused(method(stream_of(messages), metadata=rpc.metadata))).code == code
    assert list((api.settings.home / "uploads").iterdir()) == []


async def test_code_beyond_the_limit_is_refused_during_the_upload(tmp_path: Path) -> None:
    async def unfinished() -> AsyncIterator[pb.SubmitJobRequest]:
        # It sends no more than the limit allows and one piece: grpc.aio reports a write that fails because the call has
        # ended as INTERNAL, in place of the call's status.
        yield head()
        for _ in range(2):
            yield pb.SubmitJobRequest(code=bytes(60_000))
        await asyncio.Event().wait()

    async with running_api(tmp_path, max_code_bytes=100_000) as api, speaking(api.grpc, api.admin_key) as rpc:
        refused = await rpc.refused(rpc.jobs.SubmitJob(unfinished(), metadata=rpc.metadata, timeout=120))
        assert (refused.status, refused.code) == ("RESOURCE_EXHAUSTED", "too-large")


async def test_a_file_is_downloaded_whole_or_by_ranges_of_one_version(rpc: Rpc) -> None:
    noise = random.Random(1).randbytes(3_000_000)
    code = a_zip({"noise": noise})
    parts = [head(), *(pb.SubmitJobRequest(code=code[at : at + 500_000]) for at in range(0, len(code), 500_000))]
    job = (await rpc.jobs.SubmitJob(stream_of(parts), metadata=rpc.metadata)).id

    async def fetched(**range_: Any) -> tuple[pb.JobArtifact, bytes, int]:
        wanted = pb.GetArtifactRequest(job_id=job, path="code.zip", **range_)
        first, *rest = [reply async for reply in rpc.jobs.GetArtifact(wanted, metadata=rpc.metadata)]
        return (
            first.artifact,
            b"".join(reply.data for reply in rest),
            max((len(reply.data) for reply in rest), default=0),
        )

    artifact, whole, largest = await fetched()
    assert (artifact.path, artifact.size, whole) == ("code.zip", len(code), code)
    assert largest <= 2**20
    assert (await fetched(start=10, end=20))[1] == code[10:20]
    assert (await fetched(start=len(code) - 5, end=2**40, etag=artifact.etag))[1] == code[-5:]
    assert (await fetched(start=len(code)))[1] == b""
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"start": len(code) + 1}, "invalid-request"),
        ({"etag": "other"}, "precondition-failed"),
    ]
    for wrong, code_ in wrongs:
        wanted = pb.GetArtifactRequest(job_id=job, path="code.zip", **wrong)
        assert (await rpc.refused(rpc.jobs.GetArtifact(wanted, metadata=rpc.metadata))).code == code_


async def test_many_field_errors_fit_into_the_error_details(rpc: Rpc) -> None:
    spec = YAML + "".join(f"unknown_{number}: {'x' * 50}\n" for number in range(400))
    refused = await rpc.refused(rpc.jobs.SubmitJob(stream_of([head(yaml=spec)]), metadata=rpc.metadata))
    assert (refused.status, refused.code) == ("INVALID_ARGUMENT", "invalid-spec")
    assert 10 < len(refused.fields) < 400


async def test_health_and_reflection_need_no_key(api: Api) -> None:
    async with grpc.aio.insecure_channel(api.grpc) as channel:
        stub: Any = health_pb2_grpc.HealthStub
        health = stub(channel)
        for service in ("", "weft.v1.Jobs"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert "/weft.v1.Jobs/SubmitJob" in await methods_of(api.grpc)


async def test_a_taken_port_is_reported(api: Api) -> None:
    with pytest.raises(WeftError, match="the port is taken"):
        await serve(api.grpc, api.services)


async def test_a_message_beyond_the_limit_is_refused(rpc: Rpc) -> None:
    refused = await rpc.refused(
        rpc.jobs.SubmitJob(stream_of([head(), pb.SubmitJobRequest(code=bytes(5 * 2**20))]), metadata=rpc.metadata)
    )
    assert refused.status == "RESOURCE_EXHAUSTED"


async def test_a_call_that_exceeds_its_deadline_leaves_no_file(api: Api, rpc: Rpc) -> None:
    async def slow() -> AsyncIterator[pb.SubmitJobRequest]:
        yield head()
        await asyncio.Event().wait()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rpc.jobs.SubmitJob(slow(), metadata=rpc.metadata, timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: list((api.settings.home / "uploads").iterdir()) == [])


# --- malformed messages ---------------------------------------------------------------

MESSAGES = {
    "GetJob": pb.GetJobRequest,
    "ListJobs": pb.ListJobsRequest,
    "KillJob": pb.ChangeJobRequest,
    "DeleteJob": pb.DeleteJobRequest,
    "GetHistory": pb.GetHistoryRequest,
    "GetLogs": pb.GetLogsRequest,
    "FollowLogs": pb.GetLogsRequest,
    "FollowMetrics": pb.GetMetricsRequest,
    "GetSeries": pb.GetMetricsRequest,
    "FollowEvents": pb.FollowEventsRequest,
    "ListArtifacts": pb.ListArtifactsRequest,
    "GetArtifact": pb.GetArtifactRequest,
    "CreateKey": pp.CreateKeyRequest,
    "GetQueue": pp.OfTenantRequest,
    "RevokeKey": pp.RevokeKeyRequest,
    "SubmitJob": pb.SubmitJobRequest,
}


def values(kind: Any, job: str) -> st.SearchStrategy[Any]:
    """Well-formed messages of the kind with any values in their fields."""
    texts = st.one_of(st.text(max_size=20), st.sampled_from([job, "*", "a\x00b", "..", "x" * 3000, "\U0010ffff"]))
    numbers = {
        "TYPE_UINT32": st.integers(0, 2**32 - 1),
        "TYPE_UINT64": st.integers(0, 2**64 - 1),
        "TYPE_INT64": st.integers(-(2**63), 2**63 - 1),
        "TYPE_INT32": st.integers(-(2**31), 2**31 - 1),
    }

    def of(field: Any) -> st.SearchStrategy[Any]:
        if field.message_type is not None:
            return values(field.message_type._concrete_class, job)
        if field.type == field.TYPE_BOOL:
            return st.booleans()
        if field.type == field.TYPE_STRING:
            return texts
        if field.type == field.TYPE_BYTES:
            return st.binary(max_size=50)
        return numbers[next(name for name in numbers if getattr(field, name) == field.type)]

    fields = {}
    for field in kind.DESCRIPTOR.fields:
        strategy = of(field)
        fields[field.name] = st.lists(strategy, max_size=3) if field.is_repeated else strategy

    def build(given_: dict[str, Any]) -> Any:
        return kind(**given_)

    return st.fixed_dictionaries({}, optional=fields).map(build)


def bytes_of(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 1, 2, 5, 17, 100, 1000]))


async def test_no_message_bytes_cause_a_server_error(api: Api, rpc: Rpc) -> None:
    methods = [method for method in await methods_of(api.grpc) if _service(method) not in OPEN_SERVICES]
    rng = random.Random(7)
    with structlog.testing.capture_logs() as logs:
        for method in methods:
            for _ in range(15):
                raw: bytes | list[bytes] = bytes_of(rng)
                if method.rpartition("/")[2] in STREAMING:
                    raw = [bytes_of(rng), bytes_of(rng)]
                status = await _status(sent(rpc.channel, method, raw, rpc.metadata))
                assert status not in NEVER, (method, raw)
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


async def test_no_well_formed_message_causes_a_server_error(api: Api, rpc: Rpc) -> None:
    job = (await api.submit())["id"]
    loop = asyncio.get_running_loop()
    services = {method.rpartition("/")[2]: method for method in await methods_of(api.grpc)}

    async def ask(name: str, message: Any) -> None:
        raw = message.SerializeToString()
        status = await _status(sent(rpc.channel, services[name], raw, rpc.metadata))
        assert status not in NEVER, (name, message)

    @settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
    @given(st.data())
    def check(name: str, data: st.DataObject) -> None:
        # A stream of an existing job would last as long as the job.
        message = data.draw(values(MESSAGES[name], "j" + "0" * 22 if name.startswith("Follow") else job))
        asyncio.run_coroutine_threadsafe(ask(name, message), loop).result(150)

    with structlog.testing.capture_logs() as logs:
        for name in MESSAGES:
            await asyncio.to_thread(check, name)
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


# --- live streams -------------------------------------------------------------------


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[MetricsProcess]:
    with running(tmp_path_factory.mktemp("metrics"), etcd.address) as service:
        yield service


async def test_a_log_stream_continues_after_a_cut_and_ends_with_the_job(
    tmp_path: Path, metrics: MetricsProcess, etcd: Etcd
) -> None:
    async with (
        api_over(tmp_path, metrics.address) as api,
        running_learner(api, metrics, etcd) as learner,
        speaking(api.grpc, api.admin_key) as rpc,
    ):
        await learner.write_lines("one", "two")
        lines: list[Any] = []
        stream = rpc.jobs.FollowLogs(pb.GetLogsRequest(job_id=learner.job), metadata=rpc.metadata)
        async for reply in stream:
            lines += [(line.seq, line.text) for line in reply.lines.lines]
            if len(lines) == 2:
                stream.cancel()
                break
        await until(lambda: "weft_followers 0.0" in api.measured())
        await learner.write_lines("three")
        again = rpc.jobs.FollowLogs(pb.GetLogsRequest(job_id=learner.job, after=lines[-1][0]), metadata=rpc.metadata)
        end: Any = None
        async for reply in again:
            if reply.HasField("end"):
                end = reply.end
            else:
                lines += [(line.seq, line.text) for line in reply.lines.lines]
                await learner.complete_and_release()
        assert [text for _, text in lines] == ["one", "two", "three"]
        assert (end.status, end.at_rest) == ("COMPLETED", True)
        await learner_points(rpc, learner.job)
        wanted = pb.FollowEventsRequest(job_id=learner.job)
        events = [event async for event in rpc.jobs.FollowEvents(wanted, metadata=rpc.metadata)]
        history = [event.event.to for event in events if event.HasField("event")]
        assert history == ["QUEUED", "PENDING", "PROCESSING", "COMPLETED"]
        assert events[-1].end.status == "COMPLETED"
        assert [event.status.status for event in events if event.HasField("status")] == ["COMPLETED"]


async def learner_points(rpc: Rpc, job: str) -> None:
    replies = [reply async for reply in rpc.jobs.FollowMetrics(pb.GetMetricsRequest(job_id=job), metadata=rpc.metadata)]
    assert [reply.HasField("end") for reply in replies] == [True]


async def test_a_stopping_service_ends_streams_with_unavailable_and_without_an_end(
    tmp_path: Path, metrics: MetricsProcess, etcd: Etcd
) -> None:
    async with (
        api_over(tmp_path, metrics.address) as api,
        running_learner(api, metrics, etcd) as learner,
        speaking(api.grpc, api.admin_key) as rpc,
    ):
        await learner.write_lines("one")
        stream = rpc.jobs.FollowLogs(pb.GetLogsRequest(job_id=learner.job), metadata=rpc.metadata)
        replies = aiter(stream)
        assert [line.text for line in (await anext(replies)).lines.lines] == ["one"]
        api.stopping.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(replies)
        refused = refusal(caught.value)
        assert (refused.status, refused.code, refused.retry_s) == ("UNAVAILABLE", "unavailable", 1)


@pytest.mark.parametrize("method", ["FollowLogs", "FollowMetrics", "FollowEvents"])
async def test_a_live_stream_ends_with_unauthenticated_when_its_key_is_revoked(
    tmp_path: Path, metrics: MetricsProcess, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(access_end, "CHECK_S", 0.05)
    async with api_over(tmp_path, metrics.address) as api:
        job = (await api.submit())["id"]
        made = (await api.admin.post("/v1/keys", json={"name": "laptop"})).json()
        async with speaking(api.grpc, made["key"]) as rpc:
            request: Any = MESSAGES[method]
            replies = getattr(rpc.jobs, method)(request(job_id=job), metadata=rpc.metadata)
            reading = asyncio.create_task(_all_of(replies))
            await until(lambda: "weft_followers 1.0" in api.measured())
            await api.admin.delete(f"/v1/keys/{made['id']}")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await reading
            refused = refusal(caught.value)
            assert (refused.status, refused.code) == ("UNAUTHENTICATED", "unauthenticated")
            await until(lambda: "weft_followers 0.0" in api.measured())


async def _all_of(replies: Any) -> list[Any]:
    return [reply async for reply in replies]


async def test_the_grpc_example_of_the_documentation_works(api: Api) -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    [example] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import grpc" in block]
    environment = {**os.environ, "WEFT_GRPC": api.grpc, "WEFT_KEY": api.admin_key}
    running_it = await asyncio.create_subprocess_exec(
        sys.executable, "-c", example, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, complained = await running_it.communicate()
    assert running_it.returncode == 0, complained.decode()
    first, *listed, refused = output.decode().splitlines()
    assert first.endswith(" QUEUED")
    assert f"{first.split()[0]} hello QUEUED" in listed
    assert refused == "INVALID_ARGUMENT limit: write at most 500"


async def test_stale_answers_while_the_store_is_away_have_their_age(tmp_path: Path, own_mongo: Mongo) -> None:
    async with (
        running_api(tmp_path, job_store=f"{own_mongo.uri}weft") as api,
        speaking(api.grpc, api.admin_key) as rpc,
    ):
        wanted = pb.GetJobRequest(job_id=(await api.submit())["id"])
        fresh = rpc.jobs.GetJob(wanted, metadata=rpc.metadata)
        assert (await fresh).status == "QUEUED"
        assert "age" not in dict(await fresh.trailing_metadata())
        await asyncio.to_thread(own_mongo.kill)
        stale = rpc.jobs.GetJob(wanted, metadata=rpc.metadata)
        assert (await stale).status == "QUEUED"
        assert int(dict(await stale.trailing_metadata())["age"]) >= 0


async def test_api_starts_where_folders_get_the_setgid_bit_as_in_volumes_of_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o2777)
    monkeypatch.setattr(tempfile, "tempdir", str(volume))
    async with running_api(tmp_path / "home") as api, speaking(api.grpc, api.admin_key) as rpc:
        assert [folder.stat().st_mode & 0o7777 for folder in volume.iterdir()] == [0o700]
        assert (await rpc.platform.GetVersion(Empty(), metadata=rpc.metadata)).version
