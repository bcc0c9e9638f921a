"""REST and gRPC are two entry points to the same use cases: the same permissions, answers and errors."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from services.api import use_cases
from services.api.grpc.auth_interceptor import permission_of as rpc_permission
from services.api.grpc.jobs import Jobs
from services.api.grpc.platform import Keys, Platform, Secrets
from services.api.rest.app import create_routes
from services.api.rest.permissions import permission_of, routes_of
from services.core.gen.weft.v1 import jobs_pb2 as pb
from services.core.gen.weft.v1 import platform_pb2 as pp
from tests.testbed.api import SPEC, Api, a_zip
from tests.testbed.etcd import Etcd
from tests.testbed.learner_telemetry import Learner, running_learner
from tests.testbed.metrics import MetricsProcess
from tests.testbed.user_rpc import Rpc, as_json, bare, speaking, stream_of

SERVICERS: tuple[type, ...] = (Jobs, Keys, Platform, Secrets)
YAML = "name: digits\ncommand: python train.py\n"
MISSING = "j" + "0" * 22


def names_in(code: CodeType) -> set[str]:
    """Every name in a function's code, inner functions included."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


OF_BROWSERS = frozenset({"sessions", "stream"})
"""Modules without gRPC: programs have no cookies, and one connection of gRPC carries any number of streams."""
FILES = frozenset({"download_logs"})
"""A browser saves what one answer holds; programs read pages of log lines, over REST and gRPC alike."""


def all_use_cases() -> set[str]:
    """Names of the public functions of the use-case modules."""
    names = set[str]()
    for entry in pkgutil.iter_modules(use_cases.__path__):
        if entry.name in OF_BROWSERS:
            continue
        module = importlib.import_module(f"{use_cases.__name__}.{entry.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                names.add(name)
    return names - FILES


def rest_calls() -> dict[str, set[str]]:
    """Use case -> permissions of the routes that call it."""
    out: dict[str, set[str]] = {}
    for route in routes_of(create_routes()):
        for name in names_in(inspect.unwrap(route.endpoint).__code__) & all_use_cases():
            out.setdefault(name, set()).add(str(permission_of(route)))
    return out


def rpcs() -> dict[str, Callable[..., Any]]:
    """Method -> the function that answers it, of every method of the services' descriptors."""
    methods: dict[str, Callable[..., Any]] = {}
    for servicer in SERVICERS:
        file = pb.DESCRIPTOR if servicer is Jobs else pp.DESCRIPTOR
        for method in file.services_by_name[servicer.__name__].methods:
            methods[method.name] = getattr(servicer, method.name)
    return methods


def rpc_calls() -> dict[str, set[str]]:
    """Use case -> permissions of the methods that call it."""
    out: dict[str, set[str]] = {}
    for behaviour in rpcs().values():
        for name in names_in(behaviour.__code__) & all_use_cases():
            out.setdefault(name, set()).add(str(rpc_permission(behaviour)))
    return out


@pytest.fixture
async def rpc(api: Api) -> AsyncIterator[Rpc]:
    async with speaking(api.grpc, api.admin_key) as rpc:
        yield rpc


async def test_rest_and_grpc_call_every_use_case_with_the_same_permission() -> None:
    assert set(rest_calls()) == set(rpc_calls()) == all_use_cases()
    assert rest_calls() == rpc_calls()
    assert all(len(permissions) == 1 for permissions in rpc_calls().values())


@dataclass
class Request:
    """One request for both entry points. ``{job}``: a job with log lines; ``{fresh}`` and ``{halted}``: a queued and a
    halted job, made for each entry point, as is the secret ``old``.
    """

    http: tuple[str, str]
    rpc: str
    message: Any
    params: dict[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    metadata: tuple[tuple[str, str], ...] = ()
    varies: frozenset[str] = frozenset()
    """Fields that differ because the request is sent twice."""


def filled(message: Any, **ids: str) -> Any:
    """The message, or the messages of a stream, with their placeholders replaced."""
    if isinstance(message, list):
        return [filled(part, **ids) for part in message]
    out = type(message).FromString(message.SerializeToString())
    for name in ("job_id", "key_id", "a", "b"):
        if name in out.DESCRIPTOR.fields_by_name:
            setattr(out, name, getattr(out, name).format(**ids))
    return out


def submission(**head: Any) -> list[pb.SubmitJobRequest]:
    return [pb.SubmitJobRequest(head=pb.Submission(**{"yaml": YAML, **head}))]


def a_struct(values: dict[str, Any]) -> Struct:
    struct = Struct()
    struct.update(values)
    return struct


NEW = frozenset({"id", "since", "created", "updated", "startup", "trace_id"})
A = {"key": "value"}
AT = Timestamp(seconds=1_700_000_000)
JSON_BODY = {"Content-Type": "application/json"}
ANSWERS = [
    Request(("POST", "/v1/jobs"), "SubmitJob", submission(), body=SPEC, varies=NEW),
    Request(("POST", "/v1/jobs"), "PlanJob", submission(), {"dry_run": "true"}, body=SPEC),
    Request(
        ("GET", "/v1/jobs"),
        "ListJobs",
        pb.ListJobsRequest(limit=2, status=["queued", "PROCESSING"]),
        {"limit": 2, "status": "queued,PROCESSING"},
    ),
    Request(
        ("GET", "/v1/jobs"),
        "ListJobs",
        pb.ListJobsRequest(fields="name,status", tenant="*"),
        {"fields": "name,status", "tenant": "*"},
    ),
    Request(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(deleted=True), {"deleted": "true"}),
    Request(
        ("POST", "/v1/jobs/{fresh}/clone"),
        "CloneJob",
        pb.CloneJobRequest(job_id="{fresh}", name="copy", set=a_struct({"env.SEED": "3", "learners": 2})),
        body={"name": "copy", "set": {"env.SEED": "3", "learners": 2}},
        varies=NEW,
    ),
    Request(
        ("POST", "/v1/jobs/{fresh}/clone"),
        "PlanClone",
        pb.CloneJobRequest(job_id="{fresh}"),
        {"dry_run": "true"},
        body={},
    ),
    Request(
        ("GET", "/v1/diff"), "DiffJobs", pb.DiffJobsRequest(a="{job}", b="{fresh}"), {"a": "{job}", "b": "{fresh}"}
    ),
    Request(
        ("GET", "/v1/statistics"),
        "GetStatistics",
        pb.GetStatisticsRequest(name="loss", q="created<1d", max_points=7),
        {"name": "loss", "q": "created<1d", "max_points": 7},
    ),
    Request(
        ("GET", "/v1/jobs"),
        "ListJobs",
        pb.ListJobsRequest(q="metric.loss.max>0", metrics="loss", order="oldest"),
        {"q": "metric.loss.max>0", "metrics": "loss", "order": "oldest"},
    ),
    Request(("GET", "/v1/jobs/{job}"), "GetJob", pb.GetJobRequest(job_id="{job}")),
    Request(
        ("GET", "/v1/jobs/{job}"),
        "GetJob",
        pb.GetJobRequest(job_id="{job}", progress=True, metrics="*"),
        {"progress": "true", "metrics": "*"},
    ),
    Request(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(progress=True), {"progress": "true"}),
    Request(("GET", "/v1/jobs/{fresh}"), "GetJob", pb.GetJobRequest(job_id="{fresh}"), varies=NEW),
    Request(("POST", "/v1/jobs/{fresh}/halt"), "HaltJob", pb.ChangeJobRequest(job_id="{fresh}"), varies=NEW),
    Request(("POST", "/v1/jobs/{halted}/resume"), "ResumeJob", pb.ChangeJobRequest(job_id="{halted}"), varies=NEW),
    Request(
        ("POST", "/v1/jobs/{fresh}/kill"),
        "KillJob",
        pb.ChangeJobRequest(job_id="{fresh}", generation=1),
        headers={"If-Match": '"1"'},
        varies=NEW | {"finished"},
    ),
    Request(
        ("DELETE", "/v1/jobs/{fresh}"), "DeleteJob", pb.DeleteJobRequest(job_id="{fresh}", kill=True), {"kill": "true"}
    ),
    Request(
        ("DELETE", "/v1/jobs/{fresh}"),
        "DeleteJob",
        pb.DeleteJobRequest(job_id="{fresh}", kill=True, generation=1),
        {"kill": "true"},
        headers={"If-Match": '"1"'},
    ),
    Request(
        ("GET", "/v1/jobs/{job}/history"), "GetHistory", pb.GetHistoryRequest(job_id="{job}", after=1), {"after": 1}
    ),
    Request(("GET", "/v1/jobs/{fresh}/explain"), "ExplainJob", pb.GetJobRequest(job_id="{fresh}"), varies=NEW),
    Request(("GET", "/v1/jobs/{job}/progress"), "GetProgress", pb.GetJobRequest(job_id="{job}")),
    Request(
        ("GET", "/v1/jobs/{job}/logs"),
        "GetLogs",
        pb.GetLogsRequest(job_id="{job}", limit=2, search="o", since=AT),
        {"limit": 2, "search": "o", "since": "2023-11-14T22:13:20Z"},
    ),
    Request(
        ("GET", "/v1/jobs/{job}/logs"),
        "GetLogs",
        pb.GetLogsRequest(job_id="{job}", tail=1, rank=0),
        {"tail": 1, "rank": 0},
    ),
    Request(
        ("GET", "/v1/jobs/{job}/metrics"),
        "GetMetrics",
        pb.GetMetricsRequest(job_id="{job}", name=["loss"]),
        {"name": "loss"},
    ),
    Request(("GET", "/v1/jobs/{job}/artifacts"), "ListArtifacts", pb.ListArtifactsRequest(job_id="{job}")),
    Request(("GET", "/v1/whoami"), "WhoAmI", Empty()),
    Request(("GET", "/v1/keys"), "ListKeys", Empty()),
    Request(
        ("POST", "/v1/keys"), "CreateKey", pp.CreateKeyRequest(name="ci"), body={"name": "ci"}, varies=NEW | {"key"}
    ),
    Request(("DELETE", "/v1/keys/{key}"), "RevokeKey", pp.RevokeKeyRequest(key_id="{key}")),
    Request(
        ("PUT", "/v1/secrets/s3"),
        "SetSecret",
        pp.SetSecretRequest(name="s3", values={"access_key": "a", "secret_key": "ä"}),
        body={"values": {"access_key": "a", "secret_key": "ä"}},
        varies=frozenset({"created", "changed"}),
    ),
    Request(("GET", "/v1/secrets"), "ListSecrets", pp.ListSecretsRequest()),
    Request(("GET", "/v1/secrets"), "ListSecrets", pp.ListSecretsRequest(tenant="acme"), {"tenant": "acme"}),
    Request(("DELETE", "/v1/secrets/old"), "DeleteSecret", pp.DeleteSecretRequest(name="old")),
    Request(("GET", "/v1/version"), "GetVersion", Empty()),
    Request(("GET", "/v1/queue"), "GetQueue", pp.OfTenantRequest()),
    Request(("GET", "/v1/cluster"), "GetCluster", pp.OfTenantRequest(tenant="*"), {"tenant": "*"}),
    Request(
        ("GET", "/v1/usage"),
        "GetUsage",
        pp.GetUsageRequest(tenant="*", until=AT),
        {"tenant": "*", "until": "2023-11-14T22:13:20Z"},
    ),
    Request(("GET", "/v1/storage"), "GetStorage", pp.GetStorageRequest(), varies=frozenset({"measured"})),
    Request(("GET", "/v1/frameworks"), "GetFrameworks", Empty()),
    Request(("GET", "/v1/sizes"), "GetSizes", Empty()),
    Request(("GET", "/v1/quarantine"), "GetQuarantine", Empty()),
]
COMPARED_APART = {"GetSeries", "FollowLogs", "FollowMetrics", "FollowEvents", "GetArtifact"}
"""Streams, and curves (columns in REST, rows in gRPC) have tests of their own."""
ERRORS = [
    Request(("POST", "/v1/jobs"), "SubmitJob", submission(yaml="name: x\n"), body={"name": "x"}),
    Request(
        ("POST", "/v1/jobs"),
        "SubmitJob",
        submission(yaml=YAML + "comand: x\nframework: jaxx\n"),
        body={**SPEC, "comand": "x", "framework": "jaxx"},
    ),
    Request(
        ("POST", "/v1/jobs"), "SubmitJob", submission(json='{"name": NaN}'), body=b'{"name": NaN}', headers=JSON_BODY
    ),
    Request(
        ("POST", "/v1/jobs"),
        "SubmitJob",
        submission(json='{"name": "\\ud800", "command": "x"}'),
        body=b'{"name": "\\ud800", "command": "x"}',
        headers=JSON_BODY,
    ),
    Request(
        ("POST", "/v1/jobs"),
        "SubmitJob",
        submission(yaml="x: " + "y" * 300_000),
        body=b"x: " + b"y" * 300_000,
        headers={"Content-Type": "text/yaml"},
    ),
    Request(
        ("POST", "/v1/jobs"), "SubmitJob", submission(code_digest="sha256:1"), {"code_digest": "sha256:1"}, body=SPEC
    ),
    Request(
        ("POST", "/v1/jobs"),
        "SubmitJob",
        submission(code_digest="sha256:" + "0" * 64),
        {"code_digest": "sha256:" + "0" * 64},
        body=SPEC,
    ),
    Request(("POST", "/v1/jobs"), "SubmitJob", submission(tenant="No Name"), {"tenant": "No Name"}, body=SPEC),
    Request(
        ("POST", "/v1/jobs"),
        "SubmitJob",
        submission(),
        body=SPEC,
        headers={"Idempotency-Key": "a b"},
        metadata=(("idempotency-key", "a b"),),
    ),
    Request(
        ("POST", "/v1/jobs"),
        "SubmitJob",
        submission(yaml=YAML + "tags: [y]\n"),
        body={**SPEC, "tags": ["y"]},
        headers={"Idempotency-Key": "taken"},
        metadata=(("idempotency-key", "taken"),),
    ),
    Request(("GET", "/v1/usage"), "GetUsage", pp.GetUsageRequest(since=AT), {"since": "2023-11-14T22:13:20Z"}),
    Request(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(limit=0), {"limit": 0}),
    Request(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(q="nam=x"), {"q": "nam=x"}),
    Request(
        ("POST", "/v1/jobs/{job}/clone"),
        "CloneJob",
        pb.CloneJobRequest(job_id="{job}", set=a_struct({"comand": "x"})),
        body={"set": {"comand": "x"}},
    ),
    Request(("GET", "/v1/diff"), "DiffJobs", pb.DiffJobsRequest(a="{job}", b="x"), {"a": "{job}", "b": "x"}),
    Request(("GET", "/v1/statistics"), "GetStatistics", pb.GetStatisticsRequest(name="loss"), {"name": "loss"}),
    Request(
        ("GET", "/v1/statistics"),
        "GetStatistics",
        pb.GetStatisticsRequest(name="loss", q="(", max_points=1),
        {"name": "loss", "q": "(", "max_points": 1},
    ),
    Request(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(order="best"), {"order": "best"}),
    Request(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(limit=501), {"limit": 501}),
    Request(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(after="x"), {"after": "x"}),
    Request(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(status=["DONE"]), {"status": "DONE"}),
    Request(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(fields="nam"), {"fields": "nam"}),
    Request(("GET", "/v1/jobs/" + MISSING), "GetJob", pb.GetJobRequest(job_id=MISSING)),
    Request(("GET", "/v1/jobs/x"), "GetJob", pb.GetJobRequest(job_id="x")),
    Request(("POST", "/v1/jobs/{fresh}/resume"), "ResumeJob", pb.ChangeJobRequest(job_id="{fresh}")),
    Request(
        ("POST", "/v1/jobs/{fresh}/halt"),
        "HaltJob",
        pb.ChangeJobRequest(job_id="{fresh}", generation=7),
        headers={"If-Match": '"7"'},
    ),
    Request(
        ("POST", "/v1/jobs/{fresh}/kill"),
        "KillJob",
        pb.ChangeJobRequest(job_id="{fresh}"),
        headers={"Idempotency-Key": "halting"},
        metadata=(("idempotency-key", "halting"),),
    ),
    Request(("DELETE", "/v1/jobs/{job}"), "DeleteJob", pb.DeleteJobRequest(job_id="{job}")),
    Request(
        ("DELETE", "/v1/jobs/{fresh}"),
        "DeleteJob",
        pb.DeleteJobRequest(job_id="{fresh}", kill=True, generation=7),
        {"kill": "true"},
        headers={"If-Match": '"7"'},
    ),
    Request(
        ("GET", "/v1/jobs/{job}/history"),
        "GetHistory",
        pb.GetHistoryRequest(job_id="{job}", after=2**60),
        {"after": 2**60},
    ),
    Request(("GET", "/v1/jobs/{job}/logs"), "GetLogs", pb.GetLogsRequest(job_id="{job}", search="("), {"search": "("}),
    Request(
        ("GET", "/v1/jobs/{job}/logs"),
        "GetLogs",
        pb.GetLogsRequest(job_id="{job}", limit=10_001, tail=10_001),
        {"limit": 10_001, "tail": 10_001},
    ),
    Request(
        ("GET", "/v1/jobs/{job}/metrics"),
        "GetMetrics",
        pb.GetMetricsRequest(job_id="{job}", max_points=1),
        {"max_points": 1},
    ),
    Request(
        ("GET", "/v1/jobs/{job}/artifacts"),
        "ListArtifacts",
        pb.ListArtifactsRequest(job_id="{job}", prefix="x"),
        {"prefix": "x"},
    ),
    Request(
        ("GET", "/v1/jobs/{job}/artifacts/attempts/1/x"),
        "GetArtifact",
        pb.GetArtifactRequest(job_id="{job}", path="attempts/1/x"),
    ),
    Request(("POST", "/v1/keys"), "CreateKey", pp.CreateKeyRequest(scope="root"), body={"scope": "root"}),
    Request(("POST", "/v1/keys"), "CreateKey", pp.CreateKeyRequest(name="\n"), body={"name": "\n"}),
    Request(("DELETE", "/v1/keys/x"), "RevokeKey", pp.RevokeKeyRequest(key_id="x")),
    Request(("PUT", "/v1/secrets/A"), "SetSecret", pp.SetSecretRequest(name="A", values=A), body={"values": A}),
    Request(("PUT", "/v1/secrets/s3"), "SetSecret", pp.SetSecretRequest(name="s3"), body={"values": {}}),
    Request(
        ("PUT", "/v1/secrets/s3"),
        "SetSecret",
        pp.SetSecretRequest(name="s3", values={"a": "", "b": "x"}),
        body={"values": {"a": "", "b": "x"}},
    ),
    Request(
        ("PUT", "/v1/secrets/s3"),
        "SetSecret",
        pp.SetSecretRequest(name="s3", values=A, tenant="No Name"),
        {"tenant": "No Name"},
        body={"values": A},
    ),
    Request(("GET", "/v1/secrets"), "ListSecrets", pp.ListSecretsRequest(tenant="*"), {"tenant": "*"}),
    Request(("DELETE", "/v1/secrets/missing"), "DeleteSecret", pp.DeleteSecretRequest(name="missing")),
    Request(("GET", "/v1/queue"), "GetQueue", pp.OfTenantRequest(tenant=""), {"tenant": ""}),
]


class EntryPoints:
    """Sends a request to REST or to gRPC. ``job_id``: a job with log lines."""

    def __init__(self, api: Api, rpc: Rpc, job_id: str) -> None:
        self.api, self.rpc, self.job_id = api, rpc, job_id

    async def ids(self) -> dict[str, str]:
        """New objects for one request."""
        halted = (await self.api.submit())["id"]
        await self.api.admin.post(f"/v1/jobs/{halted}/halt")
        key = (await self.api.admin.post("/v1/keys", json={"name": "k"})).json()["id"]
        await self.api.admin.put("/v1/secrets/old", json={"values": A})
        return {"job": self.job_id, "fresh": (await self.api.submit())["id"], "halted": halted, "key": key}

    async def rest(self, request: Request, ids: dict[str, str]) -> Any:
        method, path = request.http
        body: dict[str, Any] = {"content" if isinstance(request.body, bytes) else "json": request.body}
        return await self.api.admin.request(
            method,
            path.format(**ids),
            params={
                name: value.format(**ids) if isinstance(value, str) else value for name, value in request.params.items()
            },
            headers=request.headers,
            **({} if request.body is None else body),
        )

    def grpc(self, request: Request, ids: dict[str, str]) -> Any:
        stubs = (self.rpc.jobs, self.rpc.keys, self.rpc.platform, self.rpc.secrets)
        method = next(getattr(stub, request.rpc) for stub in stubs if hasattr(stub, request.rpc))
        message = filled(request.message, **ids)
        sent = stream_of(message) if isinstance(message, list) else message
        return method(sent, metadata=(*self.rpc.metadata, *request.metadata), timeout=120)


@pytest.fixture
async def learner(api: Api, metrics: MetricsProcess, etcd: Etcd) -> AsyncIterator[Learner]:
    async with running_learner(api, metrics, etcd) as speaker:
        await speaker.write_lines("one", "two", "three")
        await speaker.write_points(0.5, float("nan"), float("-inf"))
        yield speaker


def without(shape: Any, varies: frozenset[str]) -> Any:
    return {key: item for key, item in shape.items() if key not in varies} if isinstance(shape, dict) else shape


async def test_every_rpc_is_compared_with_rest() -> None:
    assert {request.rpc for request in ANSWERS} | COMPARED_APART == set(rpcs())


async def test_rest_and_grpc_give_the_same_answers(api: Api, rpc: Rpc, learner: Learner) -> None:
    entry_points = EntryPoints(api, rpc, learner.job)
    for request in ANSWERS:
        ids = await entry_points.ids()
        response = await entry_points.rest(request, ids)
        assert response.is_success, (request, response.text)
        if request.http[0] != "GET":
            ids = await entry_points.ids()
        message = await entry_points.grpc(request, ids)
        by_rest = bare(response.json()) if response.content else {}
        if request.rpc in {"GetMetrics", "GetProgress"}:  # JSON has words for numbers that are not finite
            for point in [*by_rest["latest"].values()] if "latest" in by_rest else by_rest["points"]:
                point["value"] = float(point["value"])
        for job in by_rest.get("jobs", [by_rest]) if "metrics" in request.params else ():
            for metric in job["metrics"]:
                metric.update({name: float(metric[name]) for name in ("last", "min", "max", "best")})
        for group in by_rest.get("groups", ()):
            group.update({name: [float(value) for value in group[name]] for name in ("mean", "std", "min", "max")})
        by_grpc = as_json(message)
        if "fields" in request.params:  # a message has all fields; those that were not requested are empty
            requested = by_rest["jobs"][0]
            by_grpc["jobs"] = [{key: job[key] for key in job if key in requested} for job in by_grpc["jobs"]]
        by_grpc, by_rest = without(by_grpc, request.varies), without(by_rest, request.varies)
        assert repr(by_grpc) == repr(_ordered(by_rest, by_grpc)), request


def _ordered(shape: Any, like: Any) -> Any:
    """``shape`` with its keys in the order of ``like``, so that NaN can be compared as text."""
    if isinstance(shape, dict) and isinstance(like, dict):
        keys = [key for key in like if key in shape] + sorted(key for key in shape if key not in like)
        return {key: _ordered(shape[key], like.get(key)) for key in keys}
    if isinstance(shape, list) and isinstance(like, list) and len(shape) == len(like):
        return [_ordered(item, other) for item, other in zip(shape, like, strict=True)]
    if isinstance(like, float) and isinstance(shape, int):
        return float(shape)
    return shape


async def test_rest_and_grpc_give_the_same_errors(api: Api, rpc: Rpc, learner: Learner) -> None:
    entry_points = EntryPoints(api, rpc, learner.job)
    await api.submit(headers={"Idempotency-Key": "taken"})
    held = (await api.submit())["id"]
    await api.admin.post(f"/v1/jobs/{held}/halt", headers={"Idempotency-Key": "halting"})
    codes = set[str]()
    for request in ERRORS:
        ids = await entry_points.ids()
        response = await entry_points.rest(request, ids)
        problem = response.json()
        assert 400 <= response.status_code < 500, (request, problem)
        refused = await rpc.refused(entry_points.grpc(request, ids))
        assert (refused.code, refused.message) == (problem["code"], problem["detail"]), request
        pointers = {error["pointer"].removeprefix("/query") for error in problem["errors"]}
        assert set(refused.fields) == pointers, request
        assert len(refused.trace_id) == 32
        codes.add(refused.code)
    assert len(codes) >= 8, codes


async def test_rest_and_grpc_give_the_same_curves(api: Api, rpc: Rpc, learner: Learner) -> None:
    by_rest = (await api.admin.get(f"/v1/jobs/{learner.job}/metrics", params={"series": "true"})).json()["series"]
    by_grpc = await rpc.jobs.GetSeries(pb.GetMetricsRequest(job_id=learner.job), metadata=rpc.metadata)
    assert [curve.name for curve in by_grpc.series] == [curve["name"] for curve in by_rest]
    for rows, columns in zip(by_grpc.series, by_rest, strict=True):
        assert repr([point.value for point in rows.points]) == repr([float(value) for value in columns["values"]])
        assert [point.step if point.HasField("step") else None for point in rows.points] == columns["steps"]
        assert [point.attempt for point in rows.points] == columns["attempts"]


async def test_an_idempotency_key_used_over_grpc_replays_over_rest(api: Api, rpc: Rpc) -> None:
    code = a_zip()
    parts = [*submission(), pb.SubmitJobRequest(code=code[:50]), pb.SubmitJobRequest(code=code[50:])]
    call = rpc.jobs.SubmitJob(stream_of(parts), metadata=rpc.under("both"))
    made = await call
    assert "idempotency-replayed" not in dict(await call.trailing_metadata())
    files = {"spec": ("s", YAML.encode(), "application/yaml"), "code": ("c", code, "application/zip")}
    replay = await api.admin.post("/v1/jobs", files=files, headers={"Idempotency-Key": "both"})
    assert (replay.json()["id"], replay.headers["idempotency-replayed"]) == (made.id, "true")
    again = rpc.jobs.SubmitJob(stream_of(parts), metadata=rpc.under("both"))
    assert (await again).id == made.id
    assert dict(await again.trailing_metadata())["idempotency-replayed"] == "true"
    fetched = await api.admin.get(f"/v1/jobs/{made.id}/artifacts/code.zip")
    assert fetched.content == code
