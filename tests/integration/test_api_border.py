"""Malformed requests are answered with client errors, never with server errors; the OpenAPI document is correct."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import structlog.testing

from services.api.answers import Time, to_json
from services.api.explain import JobExplanation
from services.api.job_answer import Job
from services.api.use_cases import artifacts, jobs, keys, platform, submission
from tests.testbed.api import SPEC, Api, running_api
from tests.waiting import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Api]:
    async with running_api(tmp_path_factory.mktemp("api")) as api:
        yield api


async def raw(api: Api, request: bytes, *, within_s: float = 1) -> bytes:
    """The response to these bytes within ``within_s``; empty if the api waits for more of them."""
    host, _, port = api.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**22)
    received = bytearray()
    try:
        writer.write(request)
        async with asyncio.timeout(within_s):
            while chunk := await reader.read(2**22):
                received += chunk
    except TimeoutError:
        return b""
    except ConnectionResetError:
        pass  # it answered, and closed the connection before all of the body had come
    finally:
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()
    return bytes(received)


def request(api: Api, method: bytes, target: bytes, headers: bytes = b"", body: bytes = b"") -> bytes:
    head = b"%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n"
    return head % (method, target, api.admin_key.encode(), len(body), headers) + body


JSON = b"Content-Type: application/json\r\n"
YAML = b"Content-Type: application/yaml\r\n"
FORM = b"Content-Type: multipart/form-data; boundary=b\r\n"
JOB = b"j" + b"0" * 22
BODIES = [
    b"",
    b"\x00",
    b"\xff\xfe\x00",
    b"{",
    b"}",
    b"[]",
    b"null",
    b"true",
    b"0",
    b'""',
    b"NaN",
    b"-Infinity",
    b'{"name": NaN}',
    b'{"name": "\\ud800", "command": "x"}',
    b'{"name": "x", "command": "\\udfff"}',
    b'{"name": "x", "command": "\\u0000"}',
    b'{"\\ud800": 1}',
    b'{"name": "\xc3\x28"}',
    b"\xef\xbb\xbf{}",
    b'{"a":' * 5000,
    b"[" * 100_000,
    b'{"name": 1e999}',
    b'{"name": ' + b"9" * 5000 + b"}",
    b'{"name": "x", "command": "x", "resources": {"memory": ' + b"9" * 4000 + b"}}",
    b'{"name": "x", "command": "x", "resources": {"memory": "' + b"9" * 4000 + b'GB"}}',
    b'{"name": "x", "command": "x", "max_runtime": "' + b"9" * 4000 + b'h"}',
    b'{"name": "x", "command": "x", "max_runtime": 1e308}',
    b'{"name": "x", "command": "x", "learners": 1e308}',
    b'{"name": "x", "command": "x", "learners": true}',
    b'{"name": "x", "command": "x", "roles": {"": {"count": 1}}}',
    b'{"name": "x", "command": "x", "env": {"A": {"b": 1}}}',
    b'{"name": "x", "command": "x", "env": [["A", "b"]]}',
    b'{"name": "x", "command": "x", "framework": {"name": {}}}',
    b'{"name": "x", "command": "x", "framework": ["jax"]}',
    b'{"name": "x", "command": "x", "data_stores": [{"id": "d", "type": "http", "url": "http://[::1"}]}',
    b'{"name": "x", "command": "x", "data_stores": [{"id": "d", "type": "s3", "x": "\\ud800"}]}',
    b'{"desired": "\\ud800"}',
    b'{"desired": ["kill"]}',
    b'{"name": "\\u0000"}',
    b"a: &a [*a]",
    b"? [x]\n: y",
    b"!!python/none",
    b"--b\r\n\r\n",
    b"--b--",
    b'--b\r\nContent-Disposition: form-data; name="spec"\r\n\r\n\xff\r\n--b--\r\n',
]
TARGETS = [
    (b"POST", b"/v1/jobs"),
    (b"POST", b"/v1/jobs?dry_run=true"),
    (b"PATCH", b"/v1/jobs/" + JOB),
    (b"POST", b"/v1/keys"),
    (b"POST", b"/v1/jobs/" + JOB + b"/halt"),
    (b"DELETE", b"/v1/jobs/" + JOB),
    (b"GET", b"/v1/jobs"),
]


async def test_no_request_body_causes_a_server_error(api: Api) -> None:
    for body in BODIES:
        for method, target in TARGETS:
            for kind in (JSON, YAML, FORM, b"", b"Content-Type: \xff\r\n"):
                answer = await raw(api, request(api, method, target, kind, body), within_s=HANG_S)
                status = int(answer[9:12])
                assert status in {200, 201, 400, 404, 413}, (method, target, kind, body[:80], answer[:300])
                if status >= 400:
                    assert b"application/problem+json" in answer
    assert 'status="5' not in api.measured()


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/jobs/%00",
        b"/v1/jobs/%ff",
        b"/v1/jobs/\xff",
        b"/v1/jobs/" + b"a" * 20_000,
        b"/v1/jobs/..%2f..%2fkeys",
        b"/v1/jobs/" + JOB + b"%00",
        b"/v1/jobs//logs",
        b"/v1/jobs/%ED%A0%80/logs",
        b"/v1/jobs?after=%00",
        b"/v1/jobs?name=%ED%A0%80",
        b"/v1/jobs?name=%00",
        b"/v1/jobs?tag=%ff",
        b"/v1/jobs?limit=1e9",
        b"/v1/jobs?limit=%D9%A3",
        b"/v1/jobs?limit=" + b"9" * 5000,
        b"/v1/jobs?status=",
        b"/v1/jobs?status=%00",
        b"/v1/jobs?fields=,,,",
        b"/v1/jobs?user=" + b"x" * 30_000,
        b"/v1/jobs?tenant=../..",
        b"/v1/jobs?tenant=%00",
        b"/v1/jobs?%ff=%ff",
        b"/v1/jobs?limit=1&limit=2",
        b"/v1/queue?tenant=a/b",
        b"/v1/cluster?tenant=%ED%A0%80",
        b"/v1/keys/%00",
        b"/v1/jobs/" + JOB + b"/artifacts/%00",
        b"/v1/jobs/" + JOB + b"/artifacts/%ED%A0%80",
        b"/%",
        b"/v1/%zz",
        b"//",
        b"/?",
        b"*",
        b"http://elsewhere/v1/jobs",
        b"/v1/jobs#x",
        b"/v1/jobs/" + JOB + b"/logs?since=" + b"9" * 400,
        b"/v1/jobs/" + JOB + b"/logs?search=" + b"(" * 2000,
        b"/v1/jobs?dry_run=maybe&after=j",
    ],
)
async def test_no_request_target_causes_a_server_error(api: Api, target: bytes) -> None:
    for method in (b"GET", b"POST", b"DELETE", b"PATCH", b"PUT", b"OPTIONS", b"TRACE", b"BREW", b"HEAD"):
        answer = await raw(api, request(api, method, target))
        assert answer == b"" or int(answer[9:12]) < 500, (method, target, answer[:300])
    assert 'status="5' not in api.measured()


@pytest.mark.parametrize(
    "headers",
    [
        b"X: " + b"y" * 60_000 + b"\r\n",
        b"X: y\r\n" * 5000,
        b"Idempotency-Key: \xff\r\n",
        b"Idempotency-Key:\r\n",
        b"Idempotency-Key: " + b"k" * 256 + b"\r\n",
        b"Idempotency-Key: a b\r\n",
        b"If-Match: \xff\r\n",
        b'If-Match: "' + b"9" * 400 + b'"\r\n',
        b"If-Match: 1, 2\r\n",
        b"traceparent: \xff\r\n",
        b"traceparent: 00--\r\n",
        b"Accept: \xff\r\n",
        b"Range: bytes=" + b"9" * 400 + b"-\r\n",
        b"Range: \xff\r\n",
        b"Last-Event-ID: \xff\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: x\r\n",
        b"Expect: 100-continue\r\n",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
        b"Host: y\r\n",
        b": x\r\n",
        b"\x00: x\r\n",
        b"Content-Encoding: gzip\r\n",
        b"Content-Type: application/json; charset=utf-16\r\n",
        b"X-HTTP-Method-Override: DELETE\r\n",
    ],
    ids=lambda headers: str(headers[:30]),
)
async def test_no_request_header_causes_a_server_error(api: Api, headers: bytes) -> None:
    for method, target in [*TARGETS, (b"GET", b"/v1/jobs/" + JOB + b"/artifacts/code.zip")]:
        answer = await raw(api, request(api, method, target, headers, b'{"name": "x", "command": "true"}'))
        assert answer == b"" or int(answer[9:12]) < 500, (method, target, answer[:300])
    assert 'status="5' not in api.measured()


async def test_errors_do_not_repeat_values_of_the_request(api: Api) -> None:
    marker = "s3cr3tm4rk3r"
    for answer in (
        await api.admin.post("/v1/jobs", json={**SPEC, "learners": marker}),
        await api.admin.post("/v1/jobs", json={**SPEC, "env": {"A": [marker]}}),
        await api.admin.patch(f"/v1/jobs/{JOB.decode()}", json={"desired": marker}),
        await api.admin.post("/v1/keys", json={"name": [marker]}),
        await api.admin.post("/v1/keys", json={"scope": marker}),
        await api.admin.get("/v1/jobs", params={"limit": marker}),
        await api.admin.get("/v1/jobs", params={"status": marker}),
        await api.admin.get("/v1/" + marker),
    ):
        assert 400 <= answer.status_code < 500
        assert marker not in answer.text


async def test_unknown_paths_and_methods_are_answered_with_problems(api: Api) -> None:
    nowhere = await api.admin.get("/v1/nothing")
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "not-found")
    cannot = await api.admin.put("/v1/jobs")
    assert (cannot.status_code, cannot.json()["code"]) == (405, "method-not-allowed")
    assert cannot.headers["content-type"] == "application/problem+json"
    assert {method.strip() for method in cannot.headers["allow"].split(",")} == {"GET", "POST"}


async def test_invented_methods_without_a_key_take_no_memory_of_the_api(api: Api) -> None:
    def series() -> int:
        return sum(line.startswith("weft_http_request") for line in api.measured().splitlines())

    async def invent(first: int) -> None:
        for number in range(first, first + 20):
            answer = await raw(
                api, b"A%09d /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % number, within_s=HANG_S
            )
            assert answer.startswith(b"HTTP/1.1 401"), answer[:300]

    await invent(0)
    before = series()
    await invent(20)
    assert series() == before
    assert 'weft_http_requests_total{method="other",route="unknown",status="401"}' in api.measured()


async def test_an_unexpected_error_is_logged_and_answered_without_its_text(tmp_path: Path) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("the password is hunter2")

    async with running_api(tmp_path) as api:
        object.__setattr__(api.services, "jobs", Broken())
        with structlog.testing.capture_logs() as logs:
            crashed = await api.admin.get("/v1/jobs")
        assert (crashed.status_code, crashed.json()["code"]) == (500, "internal")
        assert "hunter2" not in crashed.text
        assert [(entry["event"], str(entry["exc_info"])) for entry in logs] == [
            ("request.failed", "the password is hunter2")
        ]
        assert (await api.admin.get("/v1/whoami")).status_code == 200


def time_of(kind: type, text: Any) -> Any:
    assert kind is Time
    return Time(round(datetime.fromisoformat(text).timestamp() * 1000))


def references(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(document, list):
        for value in document:
            yield from references(value)


async def test_the_openapi_document_resolves_and_every_operation_lists_problems(api: Api) -> None:
    document = (await api.admin.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    for reference in references(document):
        place: Any = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(operations) >= 25
    ids = [operation["operationId"] for _, _, operation in operations]
    assert len(ids) == len(set(ids))
    for path, method, operation in operations:
        for code in ("4XX", "5XX"):
            content = operation["responses"][code]["content"]
            assert content == {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
        assert "422" not in operation["responses"]
        named = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)", path)), path
        public = (path, method) in {("/v1/version", "get"), ("/v1/session", "post")}
        assert operation.get("security", "inherited") == ([] if public else "inherited"), path
        if method == "patch" or (path in {"/v1/jobs", "/v1/keys"} and method == "post"):
            assert operation["requestBody"]["required"]
    assert "HTTPValidationError" not in json.dumps(document)


async def test_answers_match_their_schemas(api: Api) -> None:
    job = await api.submit({**SPEC, "framework": "jax", "tags": ["x"]})
    url = f"/v1/jobs/{job['id']}"
    for kind, answer in (
        (Job, job),
        (Job, (await api.admin.get(url)).json()),
        (jobs.ListJobsReply, (await api.admin.get("/v1/jobs")).json()),
        (submission.JobPlan, (await api.admin.post("/v1/jobs?dry_run=true", json=SPEC)).json()),
        (jobs.GetHistoryReply, (await api.admin.get(f"{url}/history")).json()),
        (JobExplanation, (await api.admin.get(f"{url}/explain")).json()),
        (artifacts.ListArtifactsReply, (await api.admin.get(f"{url}/artifacts")).json()),
        (platform.GetQueueReply, (await api.admin.get("/v1/queue")).json()),
        (platform.ClusterState, (await api.admin.get("/v1/cluster")).json()),
        (platform.GetFrameworksReply, (await api.admin.get("/v1/frameworks")).json()),
        (platform.GetSizesReply, (await api.admin.get("/v1/sizes")).json()),
        (platform.PlatformVersion, (await api.admin.get("/v1/version")).json()),
        (keys.KeyHolder, (await api.admin.get("/v1/whoami")).json()),
        (keys.ListKeysReply, (await api.admin.get("/v1/keys")).json()),
        (keys.ApiKey, (await api.admin.post("/v1/keys", json={"name": "x"})).json()),
    ):
        parsed = msgspec.convert(answer, kind, dec_hook=time_of)
        assert msgspec.json.decode(to_json(parsed)) == answer  # nothing that the type does not have
