"""Tricks of a user who wants what belongs to another tenant."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final
from urllib.parse import urlsplit

import grpc

from services.core.gen.weft.v1 import jobs_pb2, jobs_pb2_grpc
from tests.hostile.arena import VICTIMS_KEY, Arena
from tests.hostile.clusters.kind import VICTIM
from tests.hostile.sending import (
    ANSWER_S,
    ended,
    request,
    spec_with,
)
from tests.hostile.trick import Trick, judge, leaked, of_request
from tests.waiting import eventually

_UP: Final = (
    "../../../../etc/passwd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/secrets/service",
    "..\\..\\secrets",
    "/etc/passwd",
    "%00",
    "%ff",
    "....//....//etc/passwd",
    "tenants/acme",
    "attempts/../../../../secrets/service",
    "results/..%252f..%252fsecrets",
    "%c0%ae%c0%ae/",
    ";/../..",
    "worker-0/../../../../../secrets/master-key",
)


@of_request("tenants", quick=True)
def others_jobs_over_rest(arena: Arena) -> Iterator[str]:
    """Every route of the REST API with the ids of the victim's jobs."""
    document = json.loads(request(arena, "GET", "/openapi.json")[1])
    for path, methods in document["paths"].items():
        if "{job_id}" not in path:
            continue
        for job in (arena.guard.id, arena.vault.id):
            place = path.replace("{job_id}", job).replace("{path}", "attempts/1/results/worker-0/key")
            for method in methods:
                status, body = request(arena, method.upper(), f"{place}?kill=true", b"{}" if method != "get" else b"")
                if status != 404 and not (status == 400 and method == "patch"):
                    yield f"{method} {place}: {status} {body[:200]!r}"
                yield from leaked(arena, place, body.decode("latin-1"))


@of_request("tenants")
def others_jobs_over_grpc(arena: Arena) -> Iterator[str]:
    """Every call of the gRPC API with the ids of the victim's jobs."""
    metadata = (("authorization", f"Bearer {arena.attacker_key}"),)
    requests: list[tuple[str, Callable[[str], object]]] = [
        ("GetJob", lambda job: jobs_pb2.GetJobRequest(job_id=job)),
        ("HaltJob", lambda job: jobs_pb2.ChangeJobRequest(job_id=job)),
        ("ResumeJob", lambda job: jobs_pb2.ChangeJobRequest(job_id=job)),
        ("KillJob", lambda job: jobs_pb2.ChangeJobRequest(job_id=job)),
        ("DeleteJob", lambda job: jobs_pb2.DeleteJobRequest(job_id=job, kill=True)),
        ("GetHistory", lambda job: jobs_pb2.GetHistoryRequest(job_id=job)),
        ("ExplainJob", lambda job: jobs_pb2.GetJobRequest(job_id=job)),
        ("GetProgress", lambda job: jobs_pb2.GetJobRequest(job_id=job)),
        ("GetLogs", lambda job: jobs_pb2.GetLogsRequest(job_id=job)),
        ("FollowLogs", lambda job: jobs_pb2.GetLogsRequest(job_id=job)),
        ("GetMetrics", lambda job: jobs_pb2.GetMetricsRequest(job_id=job)),
        ("GetSeries", lambda job: jobs_pb2.GetMetricsRequest(job_id=job)),
        ("FollowMetrics", lambda job: jobs_pb2.GetMetricsRequest(job_id=job)),
        ("FollowEvents", lambda job: jobs_pb2.FollowEventsRequest(job_id=job)),
        ("ListArtifacts", lambda job: jobs_pb2.ListArtifactsRequest(job_id=job)),
        ("GetArtifact", lambda job: jobs_pb2.GetArtifactRequest(job_id=job, path="attempts/1/results/worker-0/key")),
    ]
    with grpc.insecure_channel(arena.weft.home.addresses()["api-grpc"]) as channel:
        stub = jobs_pb2_grpc.JobsStub(channel)
        for name, request in requests:
            for job in (arena.guard.id, arena.vault.id):
                try:
                    reply = getattr(stub, name)(request(job), metadata=metadata, timeout=ANSWER_S)
                    text = str(reply if not hasattr(reply, "__next__") else [*reply])
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.NOT_FOUND:
                        yield f"{name}: {error.code()}"
                else:
                    yield f"{name} answers with {text[:200]}"


@of_request("tenants")
def another_tenant_is_named(arena: Arena) -> Iterator[str]:
    """The victim's tenant in parameters and headers, keys for it, its code by digest, its idempotency key."""
    spec = json.dumps(spec_with()).encode()
    for path in (f"/v1/jobs?tenant={VICTIM}", "/v1/jobs?tenant=*", f"/v1/queue?tenant={VICTIM}", "/v1/queue?tenant=*"):
        status, body = request(arena, "GET", path)
        if status != 403:
            yield f"GET {path}: {status} {body[:200]!r}"
    status, body = request(arena, "POST", f"/v1/jobs?tenant={VICTIM}", spec, {"Content-Type": "application/json"})
    if status != 403:
        yield f"a job for another tenant: {status} {body[:200]!r}"
    for wanted in ({"tenant": VICTIM}, {"user": VICTIM}, {"scope": "admin"}):
        body = json.dumps({"name": "x", **wanted}).encode()
        if (status := request(arena, "POST", "/v1/keys", body, {"Content-Type": "application/json"})[0]) != 403:
            yield f"a key for {wanted}: {status}"
    headers = {
        "X-Weft-Tenant": VICTIM,
        "X-Forwarded-User": "admin",
        "X-Weft-User": "admin",
        "X-Original-URL": "/v1/keys",
    }
    holder = json.loads(request(arena, "GET", "/v1/whoami", headers=headers)[1])
    if holder["tenant"] == VICTIM or holder["scope"] == "admin":
        yield f"headers change the caller: {holder}"
    digest = arena.vault.document["code_digest"]
    kind = {"Content-Type": "application/json"}
    status, body = request(arena, "POST", f"/v1/jobs?code_digest={digest}", spec, kind)
    if status == 201:
        yield f"the victim's code by its digest: {status} {body[:200]!r}"
    status, body = request(arena, "POST", "/v1/jobs", spec, {**kind, "Idempotency-Key": VICTIMS_KEY})
    if arena.vault.id.encode() in body:
        yield "the victim's idempotency key gives the victim's job"
    if status == 201:
        yield from ended(arena, arena.attacker.jobs.get(str(json.loads(body)["id"])))


@of_request("tenants")
def paths_lead_above(arena: Arena) -> Iterator[str]:
    """Paths that lead above, in every parameter of every route, raw and encoded once and twice."""
    job = arena.submit({"name": "own", "command": "echo own > $RESULT_DIR/own"})
    yield from judge(arena, job, finishes=False)
    for up in _UP:
        for path in (
            f"/v1/jobs/{up}",
            f"/v1/jobs/{job.id}/artifacts/{up}",
            f"/v1/jobs/{job.id}/artifacts?prefix={up}",
            f"/v1/jobs/{job.id}/logs?role={up}",
            f"/v1/jobs/{job.id}/metrics?name={up}",
            f"/v1/keys/{up}",
            f"/{up}",
            f"/v1/jobs/{job.id}/{up}",
            f"/v1/jobs?tag={up}&name={up}&after={up}",
        ):
            status, body = request(arena, "GET", path)
            if status >= 500:
                yield f"GET {path}: {status} {body[:200]!r}"
            yield from leaked(arena, path, body.decode("latin-1"))
            if b"root:x:0" in body:
                yield f"GET {path} gives /etc/passwd"


@of_request("tenants")
def requests_are_malformed(arena: Arena) -> Iterator[str]:
    """Two lengths, endless headers, chunks that lie, a body that is never sent, and bytes that are no HTTP."""
    parts = urlsplit(arena.weft.url)
    key = arena.attacker_key.encode()
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key + b"\r\n"
    smuggled = b"GET /v1/keys HTTP/1.1\r\nHost: x\r\n\r\n"
    for text in (
        head + b"Content-Length: 5\r\nContent-Length: 60\r\n\r\n" + smuggled,
        head + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + smuggled,
        head + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n" + b"x" * 1_000,
        head + b"Content-Length: -1\r\n\r\n",
        head + b"Content-Length: 99999999999999999999\r\n\r\n{}",
        head + b"X: " + b"y" * 2_000_000 + b"\r\n\r\n",
        b"GET " + b"/" * 500_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + b"\x00" * 100,
        b"\x00" * 1_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1_000,
    ):
        connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=3)
        with closing(connection):
            answer = b""
            try:
                connection.sendall(text)
                while chunk := connection.recv(65_536):
                    answer += chunk
            except OSError:
                pass
            if b" 500 " in answer[:50] or b'"keys"' in answer:
                yield f"{text[:80]!r}: {answer[:200]!r}"


@of_request("tenants")
def uploads_are_cut_off(arena: Arena) -> Iterator[str]:
    """Uploads of code that end in the middle, and uploads that declare more bytes than are accepted."""
    parts = urlsplit(arena.weft.url)
    before = len([*(arena.weft.home.root / "uploads").rglob("*")])
    for number in range(20):
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_S)
        with closing(connection):
            boundary = f"b{number}"
            body = (
                f'--{boundary}\r\nContent-Disposition: form-data; name="spec"\r\n\r\n{json.dumps(spec_with())}\r\n'
                f'--{boundary}\r\nContent-Disposition: form-data; name="code"; filename="../../x.zip"\r\n\r\n'
            )
            connection.putrequest("POST", "/v1/jobs")
            connection.putheader("Authorization", f"Bearer {arena.attacker_key}")
            connection.putheader("Content-Type", f"multipart/form-data; boundary={boundary}")
            connection.putheader("Content-Length", str(10**8 * (1 + number % 2 * 100)))
            connection.endheaders(body.encode() + b"x" * 100_000)
    eventually(lambda: len([*(arena.weft.home.root / "uploads").rglob("*")]) <= before)
    yield from ()


TRICKS: Final[tuple[Trick, ...]] = (
    others_jobs_over_rest,
    others_jobs_over_grpc,
    another_tenant_is_named,
    paths_lead_above,
    requests_are_malformed,
    uploads_are_cut_off,
)
