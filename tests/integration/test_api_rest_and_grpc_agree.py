"""REST and gRPC are two doors of one house: the same actions, permissions, answers and errors behind both."""

# ruff: noqa: E501 - a table reads better in long lines

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp

from services.api import use_cases
from services.api.grpc.auth_interceptor import permission_of as rpc_permission
from services.api.grpc.jobs import Jobs
from services.api.grpc.platform import Keys, Platform
from services.api.rest.app import create_routes
from services.api.rest.permissions import permission_of, routes_of
from services.core.gen.weft.v1 import jobs_pb2 as pb
from services.core.gen.weft.v1 import platform_pb2 as pp
from tests.testbed.api import SPEC, Api, a_zip
from tests.testbed.etcd import Etcd
from tests.testbed.learner_telemetry import Learner, api_over, running_learner
from tests.testbed.metrics import MetricsProcess, running
from tests.testbed.user_rpc import Rpc, as_shape, bare, speaking, stream_of

SERVICERS: tuple[type, ...] = (Jobs, Keys, Platform)
YAML = "name: digits\ncommand: python train.py\n"
MISSING = "j" + "0" * 22


def names_in(code: CodeType) -> set[str]:
    """Every name that a function's code mentions, inner functions included."""
    inner = (names_in(one) for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*inner)


def all_actions() -> set[str]:
    found = inspect.getmembers(use_cases, inspect.isfunction)
    return {name for name, one in found if one.__module__ == use_cases.__name__ and not name.startswith("_")}


def rest_calls(api: Api) -> dict[str, set[str]]:
    """Action -> permissions of the routes of the running app that call it."""
    out: dict[str, set[str]] = {}
    for route in routes_of(create_routes(api.gateway)):
        for name in names_in(inspect.unwrap(route.endpoint).__code__) & all_actions():
            out.setdefault(name, set()).add(str(permission_of(route)))
    return out


def rpcs() -> dict[str, Callable[..., Any]]:
    """Method -> what answers it: every method of the services' descriptors, as the server was given them."""
    found: dict[str, Callable[..., Any]] = {}
    for servicer in SERVICERS:
        file = pb.DESCRIPTOR if servicer is Jobs else pp.DESCRIPTOR
        for method in file.services_by_name[servicer.__name__].methods:
            found[method.name] = getattr(servicer, method.name)
    return found


def rpc_calls() -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for behaviour in rpcs().values():
        for name in names_in(behaviour.__code__) & all_actions():
            out.setdefault(name, set()).add(str(rpc_permission(behaviour)))
    return out


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Any:
    with running(tmp_path_factory.mktemp("metrics"), etcd.address) as service:
        yield service


@pytest.fixture
async def api(tmp_path: Path, metrics: MetricsProcess) -> AsyncIterator[Api]:
    async with api_over(tmp_path, metrics.address) as one:
        yield one


@pytest.fixture
async def rpc(api: Api) -> AsyncIterator[Rpc]:
    async with speaking(api.grpc, api.admin_key) as one:
        yield one


async def test_both_doors_lead_to_every_action_with_the_same_permission(api: Api) -> None:
    assert set(rest_calls(api)) == set(rpc_calls()) == all_actions()
    assert rest_calls(api) == rpc_calls()
    assert all(len(permissions) == 1 for permissions in rpc_calls().values())


@dataclass
class Same:
    """One request as both doors take it. ``{job}``: a job that has spoken; ``{fresh}``: one that waits, made anew for
    each door.
    """

    http: tuple[str, str]
    rpc: str
    message: Any
    params: dict[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    metadata: tuple[tuple[str, str], ...] = ()
    varies: frozenset[str] = frozenset()
    """What differs because it was asked twice."""


def filled(message: Any, **ids: str) -> Any:
    """The message with its placeholders replaced; of a stream, all of them."""
    if isinstance(message, list):
        return [filled(one, **ids) for one in message]
    out = type(message).FromString(message.SerializeToString())
    for name in ("job_id", "key_id"):
        if name in out.DESCRIPTOR.fields_by_name:
            setattr(out, name, getattr(out, name).format(**ids))
    return out


def submission(**head: Any) -> list[pb.SubmitJobRequest]:
    return [pb.SubmitJobRequest(head=pb.Submission(**{"yaml": YAML, **head}))]


NEW = frozenset({"id", "since", "created", "updated", "trace_id"})
AT = Timestamp(seconds=1_700_000_000)
JSON_BODY = {"Content-Type": "application/json"}
ANSWERS = [
    Same(("POST", "/v1/jobs"), "SubmitJob", submission(), body=SPEC, varies=NEW),
    Same(("POST", "/v1/jobs"), "PlanJob", submission(), {"dry_run": "true"}, body=SPEC),
    Same(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(limit=2, status=["queued", "PROCESSING"]), {"limit": 2, "status": "queued,PROCESSING"}),
    Same(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(fields="name,status", tenant="*"), {"fields": "name,status", "tenant": "*"}),
    Same(("GET", "/v1/jobs/{job}"), "GetJob", pb.GetJobRequest(job_id="{job}")),
    Same(("GET", "/v1/jobs/{fresh}"), "GetJob", pb.GetJobRequest(job_id="{fresh}"), varies=NEW),
    Same(("POST", "/v1/jobs/{fresh}/halt"), "HaltJob", pb.ChangeJobRequest(job_id="{fresh}"), varies=NEW),
    Same(("POST", "/v1/jobs/{halted}/resume"), "ResumeJob", pb.ChangeJobRequest(job_id="{halted}"), varies=NEW),
    Same(("POST", "/v1/jobs/{fresh}/kill"), "KillJob", pb.ChangeJobRequest(job_id="{fresh}", generation=1), headers={"If-Match": '"1"'}, varies=NEW | {"finished"}),
    Same(("DELETE", "/v1/jobs/{fresh}"), "DeleteJob", pb.DeleteJobRequest(job_id="{fresh}", kill=True), {"kill": "true"}),
    Same(("GET", "/v1/jobs/{job}/history"), "GetHistory", pb.GetHistoryRequest(job_id="{job}", after=1), {"after": 1}),
    Same(("GET", "/v1/jobs/{fresh}/explain"), "ExplainJob", pb.GetJobRequest(job_id="{fresh}"), varies=NEW),
    Same(("GET", "/v1/jobs/{job}/progress"), "GetProgress", pb.GetJobRequest(job_id="{job}")),
    Same(("GET", "/v1/jobs/{job}/logs"), "GetLogs", pb.GetLogsRequest(job_id="{job}", limit=2, search="o", since=AT), {"limit": 2, "search": "o", "since": "2023-11-14T22:13:20Z"}),
    Same(("GET", "/v1/jobs/{job}/logs"), "GetLogs", pb.GetLogsRequest(job_id="{job}", tail=1, rank=0), {"tail": 1, "rank": 0}),
    Same(("GET", "/v1/jobs/{job}/metrics"), "GetMetrics", pb.GetMetricsRequest(job_id="{job}", name=["loss"]), {"name": "loss"}),
    Same(("GET", "/v1/jobs/{job}/artifacts"), "ListArtifacts", pb.ListArtifactsRequest(job_id="{job}")),
    Same(("GET", "/v1/whoami"), "WhoAmI", Empty()),
    Same(("GET", "/v1/keys"), "ListKeys", Empty()),
    Same(("POST", "/v1/keys"), "CreateKey", pp.CreateKeyRequest(name="ci"), body={"name": "ci"}, varies=NEW | {"key"}),
    Same(("DELETE", "/v1/keys/{key}"), "RevokeKey", pp.RevokeKeyRequest(key_id="{key}")),
    Same(("GET", "/v1/version"), "GetVersion", Empty()),
    Same(("GET", "/v1/queue"), "GetQueue", pp.OfTenantRequest()),
    Same(("GET", "/v1/cluster"), "GetCluster", pp.OfTenantRequest(tenant="*"), {"tenant": "*"}),
    Same(("GET", "/v1/frameworks"), "GetFrameworks", Empty()),
    Same(("GET", "/v1/sizes"), "GetSizes", Empty()),
    Same(("GET", "/v1/quarantine"), "GetQuarantine", Empty()),
]  # fmt: skip
ASIDE = {"GetSeries", "FollowLogs", "FollowMetrics", "FollowEvents", "GetArtifact"}
"""Streams, and curves (columns there, rows here): compared in tests of their own."""
ERRORS = [
    Same(("POST", "/v1/jobs"), "SubmitJob", submission(yaml="name: x\n"), body={"name": "x"}),
    Same(("POST", "/v1/jobs"), "SubmitJob", submission(yaml=YAML + "comand: x\nframework: jaxx\n"), body={**SPEC, "comand": "x", "framework": "jaxx"}),
    Same(("POST", "/v1/jobs"), "SubmitJob", submission(json='{"name": NaN}'), body=b'{"name": NaN}', headers=JSON_BODY),
    Same(("POST", "/v1/jobs"), "SubmitJob", submission(json='{"name": "\\ud800", "command": "x"}'), body=b'{"name": "\\ud800", "command": "x"}', headers=JSON_BODY),
    Same(("POST", "/v1/jobs"), "SubmitJob", submission(yaml="x: " + "y" * 300_000), body=b"x: " + b"y" * 300_000, headers={"Content-Type": "text/yaml"}),
    Same(("POST", "/v1/jobs"), "SubmitJob", submission(code_digest="sha256:1"), {"code_digest": "sha256:1"}, body=SPEC),
    Same(("POST", "/v1/jobs"), "SubmitJob", submission(code_digest="sha256:" + "0" * 64), {"code_digest": "sha256:" + "0" * 64}, body=SPEC),
    Same(("POST", "/v1/jobs"), "SubmitJob", submission(tenant="No Name"), {"tenant": "No Name"}, body=SPEC),
    Same(("POST", "/v1/jobs"), "SubmitJob", submission(), body=SPEC, headers={"Idempotency-Key": "a b"}, metadata=(("idempotency-key", "a b"),)),
    Same(("POST", "/v1/jobs"), "SubmitJob", submission(yaml=YAML + "tags: [y]\n"), body={**SPEC, "tags": ["y"]}, headers={"Idempotency-Key": "taken"}, metadata=(("idempotency-key", "taken"),)),
    Same(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(limit=0), {"limit": 0}),
    Same(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(limit=501), {"limit": 501}),
    Same(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(after="x"), {"after": "x"}),
    Same(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(status=["DONE"]), {"status": "DONE"}),
    Same(("GET", "/v1/jobs"), "ListJobs", pb.ListJobsRequest(fields="nam"), {"fields": "nam"}),
    Same(("GET", "/v1/jobs/" + MISSING), "GetJob", pb.GetJobRequest(job_id=MISSING)),
    Same(("GET", "/v1/jobs/x"), "GetJob", pb.GetJobRequest(job_id="x")),
    Same(("POST", "/v1/jobs/{fresh}/resume"), "ResumeJob", pb.ChangeJobRequest(job_id="{fresh}")),
    Same(("POST", "/v1/jobs/{fresh}/halt"), "HaltJob", pb.ChangeJobRequest(job_id="{fresh}", generation=7), headers={"If-Match": '"7"'}),
    Same(("POST", "/v1/jobs/{fresh}/kill"), "KillJob", pb.ChangeJobRequest(job_id="{fresh}"), headers={"Idempotency-Key": "halting"}, metadata=(("idempotency-key", "halting"),)),
    Same(("DELETE", "/v1/jobs/{job}"), "DeleteJob", pb.DeleteJobRequest(job_id="{job}")),
    Same(("GET", "/v1/jobs/{job}/history"), "GetHistory", pb.GetHistoryRequest(job_id="{job}", after=2**60), {"after": 2**60}),
    Same(("GET", "/v1/jobs/{job}/logs"), "GetLogs", pb.GetLogsRequest(job_id="{job}", search="("), {"search": "("}),
    Same(("GET", "/v1/jobs/{job}/logs"), "GetLogs", pb.GetLogsRequest(job_id="{job}", limit=10_001, tail=10_001), {"limit": 10_001, "tail": 10_001}),
    Same(("GET", "/v1/jobs/{job}/metrics"), "GetMetrics", pb.GetMetricsRequest(job_id="{job}", max_points=1), {"max_points": 1}),
    Same(("GET", "/v1/jobs/{job}/artifacts"), "ListArtifacts", pb.ListArtifactsRequest(job_id="{job}", prefix="x"), {"prefix": "x"}),
    Same(("GET", "/v1/jobs/{job}/artifacts/attempts/1/x"), "GetArtifact", pb.GetArtifactRequest(job_id="{job}", path="attempts/1/x")),
    Same(("POST", "/v1/keys"), "CreateKey", pp.CreateKeyRequest(scope="root"), body={"scope": "root"}),
    Same(("POST", "/v1/keys"), "CreateKey", pp.CreateKeyRequest(name="\n"), body={"name": "\n"}),
    Same(("DELETE", "/v1/keys/x"), "RevokeKey", pp.RevokeKeyRequest(key_id="x")),
    Same(("GET", "/v1/queue"), "GetQueue", pp.OfTenantRequest(tenant=""), {"tenant": ""}),
]  # fmt: skip


class Doors:
    """The same request at both."""

    def __init__(self, api: Api, rpc: Rpc, spoken: str) -> None:
        self.api, self.rpc, self.spoken = api, rpc, spoken

    async def ids(self) -> dict[str, str]:
        """Fresh objects for one request."""
        halted = (await self.api.submit())["id"]
        await self.api.admin.post(f"/v1/jobs/{halted}/halt")
        key = (await self.api.admin.post("/v1/keys", json={"name": "k"})).json()["id"]
        return {"job": self.spoken, "fresh": (await self.api.submit())["id"], "halted": halted, "key": key}

    async def by_http(self, one: Same, ids: dict[str, str]) -> Any:
        method, path = one.http
        body: dict[str, Any] = {"content": one.body} if isinstance(one.body, bytes) else {"json": one.body}
        return await self.api.admin.request(
            method, path.format(**ids), params=one.params, headers=one.headers, **({} if one.body is None else body)
        )

    def by_rpc(self, one: Same, ids: dict[str, str]) -> Any:
        stub = next(
            getattr(each, one.rpc)
            for each in (self.rpc.jobs, self.rpc.keys, self.rpc.platform)
            if hasattr(each, one.rpc)
        )
        message = filled(one.message, **ids)
        request = stream_of(message) if isinstance(message, list) else message
        return stub(request, metadata=(*self.rpc.metadata, *one.metadata), timeout=120)


@pytest.fixture
async def spoken(api: Api, metrics: MetricsProcess, etcd: Etcd) -> AsyncIterator[Learner]:
    async with running_learner(api, metrics, etcd) as learner:
        await learner.write_lines("one", "two", "three")
        await learner.write_points(0.5, float("nan"), float("-inf"))
        yield learner


def without(shape: Any, varies: frozenset[str]) -> Any:
    return {key: one for key, one in shape.items() if key not in varies} if isinstance(shape, dict) else shape


async def test_every_rpc_is_compared_with_rest() -> None:
    assert {one.rpc for one in ANSWERS} | ASIDE == set(rpcs())


async def test_both_doors_give_the_same_answers(api: Api, rpc: Rpc, spoken: Learner) -> None:
    doors = Doors(api, rpc, spoken.job)
    for one in ANSWERS:
        ids = await doors.ids()
        told = await doors.by_http(one, ids)
        assert told.is_success, (one, told.text)
        if one.http[0] != "GET":
            ids = await doors.ids()
        message = await doors.by_rpc(one, ids)
        shown = bare(told.json()) if told.content else {}
        if one.rpc in {"GetMetrics", "GetProgress"}:  # JSON spells what is not finite
            for point in [*shown["latest"].values()] if "latest" in shown else shown["points"]:
                point["value"] = float(point["value"])
        answered = as_shape(message)
        if "fields" in one.params:  # a message has all its fields, those that nobody asked for empty
            answered["jobs"] = [{key: job[key] for key in job if key in shown["jobs"][0]} for job in answered["jobs"]]
        answered, shown = without(answered, one.varies), without(shown, one.varies)
        assert repr(answered) == repr(_ordered(shown, answered)), one


def _ordered(shape: Any, like: Any) -> Any:
    """The same with its keys in the other's order, so that NaN can be compared as text."""
    if isinstance(shape, dict) and isinstance(like, dict):
        keys = [key for key in like if key in shape] + sorted(key for key in shape if key not in like)
        return {key: _ordered(shape[key], like.get(key)) for key in keys}
    if isinstance(shape, list) and isinstance(like, list) and len(shape) == len(like):
        return [_ordered(one, other) for one, other in zip(shape, like, strict=True)]
    if isinstance(like, float) and isinstance(shape, int):
        return float(shape)
    return shape


async def test_both_doors_give_the_same_errors(api: Api, rpc: Rpc, spoken: Learner) -> None:
    doors = Doors(api, rpc, spoken.job)
    await api.submit(headers={"Idempotency-Key": "taken"})
    held = (await api.submit())["id"]
    await api.admin.post(f"/v1/jobs/{held}/halt", headers={"Idempotency-Key": "halting"})
    codes = set[str]()
    for one in ERRORS:
        ids = await doors.ids()
        told = await doors.by_http(one, ids)
        problem = told.json()
        assert 400 <= told.status_code < 500, (one, problem)
        refused = await rpc.refused(doors.by_rpc(one, ids))
        assert (refused.code, refused.message) == (problem["code"], problem["detail"]), one
        pointed = {each["pointer"].removeprefix("/query") for each in problem["errors"]}
        assert set(refused.fields) == pointed, one
        assert len(refused.trace_id) == 32
        codes.add(refused.code)
    assert len(codes) >= 8, codes


async def test_curves_are_the_same_at_both_doors(api: Api, rpc: Rpc, spoken: Learner) -> None:
    told = (await api.admin.get(f"/v1/jobs/{spoken.job}/metrics", params={"series": "true"})).json()["series"]
    found = await rpc.jobs.GetSeries(pb.GetMetricsRequest(job_id=spoken.job), metadata=rpc.metadata)
    assert [one.name for one in found.series] == [one["name"] for one in told]
    for curve, shown in zip(found.series, told, strict=True):
        assert repr([each.value for each in curve.points]) == repr([float(each) for each in shown["values"]])
        assert [each.step if each.HasField("step") else None for each in curve.points] == shown["steps"]
        assert [each.attempt for each in curve.points] == shown["attempts"]


async def test_a_job_made_at_one_door_is_the_answer_to_its_key_at_the_other(api: Api, rpc: Rpc) -> None:
    code = a_zip()
    parts = [*submission(), pb.SubmitJobRequest(code=code[:50]), pb.SubmitJobRequest(code=code[50:])]
    call = rpc.jobs.SubmitJob(stream_of(parts), metadata=rpc.under("both"))
    made = await call
    assert "idempotency-replayed" not in dict(await call.trailing_metadata())
    files = {"spec": ("s", YAML.encode(), "application/yaml"), "code": ("c", code, "application/zip")}
    told = await api.admin.post("/v1/jobs", files=files, headers={"Idempotency-Key": "both"})
    assert (told.json()["id"], told.headers["idempotency-replayed"]) == (made.id, "true")
    again = rpc.jobs.SubmitJob(stream_of(parts), metadata=rpc.under("both"))
    assert (await again).id == made.id
    assert dict(await again.trailing_metadata())["idempotency-replayed"] == "true"
    fetched = await api.admin.get(f"/v1/jobs/{made.id}/artifacts/code.zip")
    assert fetched.content == code
