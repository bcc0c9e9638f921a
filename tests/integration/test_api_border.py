"""The border: whatever comes in, nothing but a clear refusal goes out; and the OpenAPI document tells the truth."""

# ruff: noqa: E501 - a corpus reads better in long lines

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog.testing
from pydantic import ConfigDict, TypeAdapter, with_config

from services.api import schemas
from tests.testbed.api import SPEC, Api, running_api
from tests.waiting import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Api]:
    async with running_api(tmp_path_factory.mktemp("api")) as one:
        yield one


async def raw(api: Api, request: bytes, *, within_s: float = 1) -> bytes:
    """What comes back for these bytes within so many seconds; nothing where the api waits for more of them."""
    host, _, port = api.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**22)
    try:
        writer.write(request)
        async with asyncio.timeout(within_s):
            return await reader.read()
    except TimeoutError:
        return b""
    finally:
        writer.close()
        await writer.wait_closed()


def request(api: Api, method: bytes, target: bytes, headers: bytes = b"", body: bytes = b"") -> bytes:
    head = b"%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n"
    return head % (method, target, api.admin_key.encode(), len(body), headers) + body


JSON = b"Content-Type: application/json\r\n"
YAML = b"Content-Type: application/yaml\r\n"
FORM = b"Content-Type: multipart/form-data; boundary=b\r\n"
JOB = b"j" + b"0" * 22
BODIES = [
    b"", b"\x00", b"\xff\xfe\x00", b"{", b"}", b"[]", b"null", b"true", b"0", b'""', b"NaN", b"-Infinity", b'{"name": NaN}',
    b'{"name": "\\ud800", "command": "x"}', b'{"name": "x", "command": "\\udfff"}', b'{"name": "x", "command": "\\u0000"}',
    b'{"\\ud800": 1}', b'{"name": "\xc3\x28"}', b"\xef\xbb\xbf{}", b'{"a":' * 5000, b"[" * 100_000, b'{"name": 1e999}',
    b'{"name": ' + b"9" * 5000 + b"}", b'{"name": "x", "command": "x", "resources": {"memory": ' + b"9" * 4000 + b"}}",
    b'{"name": "x", "command": "x", "resources": {"memory": "' + b"9" * 4000 + b'GB"}}',
    b'{"name": "x", "command": "x", "max_runtime": "' + b"9" * 4000 + b'h"}',
    b'{"name": "x", "command": "x", "max_runtime": 1e308}', b'{"name": "x", "command": "x", "learners": 1e308}',
    b'{"name": "x", "command": "x", "learners": true}', b'{"name": "x", "command": "x", "roles": {"": {"count": 1}}}',
    b'{"name": "x", "command": "x", "env": {"A": {"b": 1}}}', b'{"name": "x", "command": "x", "env": [["A", "b"]]}',
    b'{"name": "x", "command": "x", "framework": {"name": {}}}', b'{"name": "x", "command": "x", "framework": ["jax"]}',
    b'{"name": "x", "command": "x", "data_stores": [{"id": "d", "type": "http", "url": "http://[::1"}]}',
    b'{"name": "x", "command": "x", "data_stores": [{"id": "d", "type": "s3", "x": "\\ud800"}]}',
    b'{"desired": "\\ud800"}', b'{"desired": ["kill"]}', b'{"name": "\\u0000"}', b"a: &a [*a]", b"? [x]\n: y", b"!!python/none",
    b"--b\r\n\r\n", b"--b--", b'--b\r\nContent-Disposition: form-data; name="spec"\r\n\r\n\xff\r\n--b--\r\n',
]  # fmt: skip
TARGETS = [
    (b"POST", b"/v1/jobs"), (b"POST", b"/v1/jobs?dry_run=true"), (b"PATCH", b"/v1/jobs/" + JOB), (b"POST", b"/v1/keys"),
    (b"POST", b"/v1/jobs/" + JOB + b"/halt"), (b"DELETE", b"/v1/jobs/" + JOB), (b"GET", b"/v1/jobs"),
]  # fmt: skip


async def test_no_body_makes_it_stumble(api: Api) -> None:
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
        b"/v1/jobs/%00", b"/v1/jobs/%ff", b"/v1/jobs/\xff", b"/v1/jobs/" + b"a" * 20_000, b"/v1/jobs/..%2f..%2fkeys",
        b"/v1/jobs/" + JOB + b"%00", b"/v1/jobs//logs", b"/v1/jobs/%ED%A0%80/logs", b"/v1/jobs?after=%00",
        b"/v1/jobs?name=%ED%A0%80", b"/v1/jobs?name=%00", b"/v1/jobs?tag=%ff", b"/v1/jobs?limit=1e9", b"/v1/jobs?limit=%D9%A3",
        b"/v1/jobs?limit=" + b"9" * 5000, b"/v1/jobs?status=", b"/v1/jobs?status=%00", b"/v1/jobs?fields=,,,",
        b"/v1/jobs?user=" + b"x" * 30_000, b"/v1/jobs?tenant=../..", b"/v1/jobs?tenant=%00", b"/v1/jobs?%ff=%ff",
        b"/v1/jobs?limit=1&limit=2", b"/v1/queue?tenant=a/b", b"/v1/cluster?tenant=%ED%A0%80", b"/v1/keys/%00",
        b"/v1/jobs/" + JOB + b"/artifacts/%00", b"/v1/jobs/" + JOB + b"/artifacts/%ED%A0%80", b"/%", b"/v1/%zz", b"//", b"/?",
        b"*", b"http://elsewhere/v1/jobs", b"/v1/jobs#x", b"/v1/jobs/" + JOB + b"/logs?since=" + b"9" * 400,
        b"/v1/jobs/" + JOB + b"/logs?search=" + b"(" * 2000, b"/v1/jobs?dry_run=maybe&after=j",
    ],
)  # fmt: skip
async def test_no_target_makes_it_stumble(api: Api, target: bytes) -> None:
    for method in (b"GET", b"POST", b"DELETE", b"PATCH", b"PUT", b"OPTIONS", b"TRACE", b"BREW", b"HEAD"):
        answer = await raw(api, request(api, method, target))
        assert answer == b"" or int(answer[9:12]) < 500, (method, target, answer[:300])
    assert 'status="5' not in api.measured()


@pytest.mark.parametrize(
    "headers",
    [
        b"X: " + b"y" * 60_000 + b"\r\n", b"X: y\r\n" * 5000, b"Idempotency-Key: \xff\r\n", b"Idempotency-Key:\r\n",
        b"Idempotency-Key: " + b"k" * 256 + b"\r\n", b"Idempotency-Key: a b\r\n", b"If-Match: \xff\r\n",
        b'If-Match: "' + b"9" * 400 + b'"\r\n', b"If-Match: 1, 2\r\n", b"traceparent: \xff\r\n", b"traceparent: 00--\r\n",
        b"Accept: \xff\r\n", b"Range: bytes=" + b"9" * 400 + b"-\r\n", b"Range: \xff\r\n", b"Last-Event-ID: \xff\r\n",
        b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: x\r\n",
        b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Host: y\r\n", b": x\r\n", b"\x00: x\r\n",
        b"Content-Encoding: gzip\r\n", b"Content-Type: application/json; charset=utf-16\r\n", b"X-HTTP-Method-Override: DELETE\r\n",
    ],
    ids=lambda headers: str(headers[:30]),
)  # fmt: skip
async def test_no_header_makes_it_stumble(api: Api, headers: bytes) -> None:
    for method, target in [*TARGETS, (b"GET", b"/v1/jobs/" + JOB + b"/artifacts/code.zip")]:
        answer = await raw(api, request(api, method, target, headers, b'{"name": "x", "command": "true"}'))
        assert answer == b"" or int(answer[9:12]) < 500, (method, target, answer[:300])
    assert 'status="5' not in api.measured()


async def test_errors_repeat_nothing_that_was_sent(api: Api) -> None:
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


async def test_what_is_nowhere_and_what_a_path_cannot_do_are_problems_too(api: Api) -> None:
    nowhere = await api.admin.get("/v1/nothing")
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "not-found")
    cannot = await api.admin.put("/v1/jobs")
    assert (cannot.status_code, cannot.json()["code"]) == (405, "method-not-allowed")
    assert cannot.headers["content-type"] == "application/problem+json"
    assert {method.strip() for method in cannot.headers["allow"].split(",")} == {"GET", "POST"}


async def test_a_crash_is_a_problem_without_its_text(tmp_path: Path) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("the password is hunter2")

    async with running_api(tmp_path) as api:
        object.__setattr__(api.gateway, "jobs", Broken())
        with structlog.testing.capture_logs() as logs:
            crashed = await api.admin.get("/v1/jobs")
        assert (crashed.status_code, crashed.json()["code"]) == (500, "internal")
        assert "hunter2" not in crashed.text
        assert [(entry["event"], str(entry["exc_info"])) for entry in logs] == [
            ("api.failed", "the password is hunter2")
        ]
        assert (await api.admin.get("/v1/whoami")).status_code == 200


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


async def test_the_openapi_document_is_whole_and_every_operation_tells_its_problems(api: Api) -> None:
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
        named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)", path)), path
        assert operation.get("security", "inherited") == ([] if path == "/v1/version" else "inherited"), path
        if method == "patch" or (path in {"/v1/jobs", "/v1/keys"} and method == "post"):
            assert operation["requestBody"]["required"]
    assert "HTTPValidationError" not in json.dumps(document)


async def test_answers_are_what_the_document_says(api: Api) -> None:
    job = await api.submit({**SPEC, "framework": "jax", "tags": ["x"]})
    url = f"/v1/jobs/{job['id']}"
    for kind, answer in (
        (schemas.JobJson, job),
        (schemas.JobJson, (await api.admin.get(url)).json()),
        (schemas.JobsJson, (await api.admin.get("/v1/jobs")).json()),
        (schemas.PlanJson, (await api.admin.post("/v1/jobs?dry_run=true", json=SPEC)).json()),
        (schemas.HistoryJson, (await api.admin.get(f"{url}/history")).json()),
        (schemas.ExplainJson, (await api.admin.get(f"{url}/explain")).json()),
        (schemas.ArtifactsJson, (await api.admin.get(f"{url}/artifacts")).json()),
        (schemas.QueueJson, (await api.admin.get("/v1/queue")).json()),
        (schemas.ClusterJson, (await api.admin.get("/v1/cluster")).json()),
        (schemas.FrameworksJson, (await api.admin.get("/v1/frameworks")).json()),
        (schemas.SizesJson, (await api.admin.get("/v1/sizes")).json()),
        (schemas.VersionJson, (await api.admin.get("/v1/version")).json()),
        (schemas.WhoJson, (await api.admin.get("/v1/whoami")).json()),
        (schemas.KeysJson, (await api.admin.get("/v1/keys")).json()),
        (schemas.KeyJson, (await api.admin.post("/v1/keys", json={"name": "x"})).json()),
    ):
        strict: Any = with_config(ConfigDict(extra="forbid"))(kind)
        TypeAdapter(strict).validate_python(answer)
