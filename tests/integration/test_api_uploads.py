"""Uploads of code, and downloads of files."""

import asyncio
import json
import os
import stat
import zipfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import structlog.testing

from tests.testbed.api import SPEC, Api, a_zip, running_api
from tests.testbed.mounts import small_disk
from tests.waiting import until


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path, max_code_bytes=2**20, max_spec_bytes=4096) as api:
        yield api


def link() -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        entry = zipfile.ZipInfo("passwd")
        entry.create_system = 3
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    return out.getvalue()


async def send(api: Api, code: bytes, spec: Any = SPEC, **options: Any) -> Any:
    files: dict[str, Any] = {
        "spec": ("s", json.dumps(spec), "application/json"),
        "code": ("c.zip", code, "application/zip"),
    }
    return await api.admin.post("/v1/jobs", files=files, **options)


async def nothing_was_kept(api: Api) -> bool:
    jobs = (await api.admin.get("/v1/jobs")).json()["jobs"]
    objects = [path for path in (api.settings.home / "objects").rglob("*") if path.is_file()]
    return (jobs, objects, list((api.settings.home / "uploads").iterdir())) == ([], [], [])


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (b"", "not a zip"),
        (b"hello", "not a zip"),
        (a_zip()[:-30], "not a zip"),
        (a_zip({"../evil": "x"}), "leads out of the folder"),
        (a_zip({"/etc/passwd": "x"}), "absolute"),
        (a_zip({"a\\b": "x"}), "backslash"),
        (a_zip({"zeros": b"\0" * 300_000_000}), "zip bombs"),
        (link(), "symbolic link"),
        (b"#!/bin/sh\n" + a_zip(), "other data before"),
    ],
    ids=["empty", "text", "cut", "traversal", "absolute", "backslash", "bomb", "symlink", "prefixed"],
)
async def test_an_invalid_archive_is_refused_and_leaves_nothing(api: Api, code: bytes, says: str) -> None:
    for dry_run in ("true", "false"):
        refused = await send(api, code, params={"dry_run": dry_run})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid-archive"), refused.text
        assert says in refused.json()["detail"]
    assert await nothing_was_kept(api)
    await until(lambda: 'trainer_uploadmodel_failed_total{kind="user"} 2.0' in api.measured())


async def test_oversized_code_and_specs_are_refused(api: Api) -> None:
    code = await send(api, os.urandom(3 * 2**20))
    assert (code.status_code, code.json()["code"]) == (413, "too-large")

    async def endless() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="code"\r\n\r\n'
        for _ in range(40):
            yield os.urandom(2**16)
        yield b"\r\n--b--\r\n"

    chunked = await api.admin.post(
        "/v1/jobs", content=endless(), headers={"Content-Type": "multipart/form-data; boundary=b"}
    )
    assert (chunked.status_code, chunked.json()["code"]) == (413, "too-large")
    spec = await api.admin.post("/v1/jobs", json={**SPEC, "description": "x" * 5000})
    assert (spec.status_code, spec.json()["code"]) == (413, "too-large")
    part = await send(api, a_zip(), {**SPEC, "description": "x" * 5000})
    assert (part.status_code, part.json()["code"]) == (413, "too-large")
    assert await nothing_was_kept(api)


async def test_an_invalid_spec_is_refused_before_the_code_is_sent(api: Api) -> None:
    answer = await api.first_line(begun(api) + PART % (b"spec", b"nme: x") + PART[:20])
    assert answer == b"HTTP/1.1 400 Bad Request"
    assert await nothing_was_kept(api)


def begun(api: Api) -> bytes:
    """The headers of a submission of a million bytes."""
    return (
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.admin_key}\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000000\r\n\r\n"
    ).encode()


PART = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
GOOD = PART % (b"spec", b'{"name": "x", "command": "true"}')


BROKEN = [
    ("multipart/form-data; boundary=b", b""),
    ("multipart/form-data; boundary=b", b"--b--\r\n"),
    ("multipart/form-data; boundary=b", b"nonsense"),
    ("multipart/form-data; boundary=b", GOOD),
    ("multipart/form-data; boundary=b", GOOD[:-20]),
    ("multipart/form-data; boundary=b", GOOD + GOOD + b"--b--\r\n"),
    ("multipart/form-data; boundary=b", GOOD + PART % (b"other", b"x") + b"--b--\r\n"),
    ("multipart/form-data; boundary=b", PART % (b"code", a_zip()) + b"--b--\r\n"),
    ("multipart/form-data; boundary=b", PART % (b"\xff\xfe", b"x") + b"--b--\r\n"),
    ("multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n--b--\r\n"),
    ("multipart/form-data; boundary=b", b"--b\r\n" + b"X: y\r\n" * 1000 + b"\r\nx\r\n--b--\r\n"),
    ("multipart/form-data; boundary=b", b"--b\r\nX: " + b"y" * 100_000 + b"\r\n\r\nx\r\n--b--\r\n"),
    ("multipart/form-data; boundary=" + "b" * 3000, GOOD),
    ("multipart/form-data", GOOD),
    ("multipart/form-data; boundary=", GOOD),
    ("multipart/mixed; boundary=b", GOOD),
    ("application/x-www-form-urlencoded", b"name=x&command=true"),
    ("application/xml", b"<a/>"),
    (";;;", b"{}"),
]


async def test_a_malformed_submission_body_is_refused(api: Api) -> None:
    for content_type, body in BROKEN:
        refused = await api.admin.post("/v1/jobs", content=body, headers={"Content-Type": content_type})
        assert (refused.status_code, refused.headers["content-type"]) == (400, "application/problem+json"), refused.text
        assert await nothing_was_kept(api)


async def test_an_interrupted_upload_leaves_nothing(api: Api) -> None:
    host, _, port = api.url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(begun(api) + GOOD + PART % (b"code", b"\0" * 200_000))
    await writer.drain()
    uploads = api.settings.home / "uploads"
    await until(lambda: any(uploads.iterdir()))
    writer.close()
    await writer.wait_closed()
    await until(lambda: not any(uploads.iterdir()))
    assert await nothing_was_kept(api)
    assert 'status="5' not in api.measured()


async def test_files_of_a_killed_process_are_removed_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "uploads").mkdir()
    (tmp_path / "uploads" / "half").write_bytes(b"x")
    async with running_api(tmp_path) as api:
        assert await nothing_was_kept(api)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")
@pytest.mark.parametrize("full", ["uploads", "objects"])
async def test_a_full_disk_answers_507_and_leaves_nothing(tmp_path: Path, full: str) -> None:
    with small_disk(tmp_path / full, "size=256k"):
        async with running_api(tmp_path) as api:
            refused = await send(api, a_zip({"weights": os.urandom(2**20)}))
            assert (refused.status_code, refused.json()["code"]) == (507, "no-space"), refused.text
            assert refused.headers["retry-after"]
            assert await nothing_was_kept(api)
            assert (await send(api, a_zip())).status_code == 201
            await until(lambda: 'trainer_uploadmodel_failed_total{kind="weft"} 1.0' in api.measured())


async def put(api: Api, job: str, path: str, content: bytes) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield content

    await api.services.artifacts._objects.put(f"tenants/default/jobs/{job}/{path}", chunks())


async def test_artifacts_are_listed_by_path_in_pages(api: Api) -> None:
    job = (await send(api, a_zip())).json()["id"]
    paths = [f"attempts/{attempt}/results/worker-0/{name}" for attempt in (1, 2) for name in ("a.npz", "b c.npz")]
    for path in paths:
        await put(api, job, path, b"x" * 10)
    url = f"/v1/jobs/{job}/artifacts"
    whole = (await api.admin.get(url)).json()
    assert [artifact["path"] for artifact in whole["artifacts"]] == [*paths, "code.zip"]
    assert whole["next"] is None
    assert whole["artifacts"][0]["size"] == 10
    assert [
        artifact["path"] for artifact in (await api.admin.get(url, params={"attempt": 2})).json()["artifacts"]
    ] == paths[2:]
    listed: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = (await api.admin.get(url, params={"limit": 2, **after})).json()
        listed += [artifact["path"] for artifact in page["artifacts"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert listed == [*paths, "code.zip"]
    for params in ({"prefix": "../"}, {"prefix": "tenants/"}, {"attempt": "0"}, {"prefix": "attempts/../../"}):
        assert (await api.admin.get(url, params=params)).status_code == 400, params


RANGES: list[tuple[str | None, int, tuple[int, int] | None]] = [
    (None, 200, (0, 1000)),
    ("bytes=0-99", 206, (0, 100)),
    ("bytes=900-", 206, (900, 1000)),
    ("bytes=-10", 206, (990, 1000)),
    ("bytes=-5000", 206, (0, 1000)),
    ("bytes=0-", 206, (0, 1000)),
    ("bytes=500-5000", 206, (500, 1000)),
    ("bytes=999-999", 206, (999, 1000)),
    ("bytes=1000-", 416, None),
    ("bytes=-0", 416, None),
    ("bytes=5-2", 200, (0, 1000)),
    ("bytes=0-1,5-6", 200, (0, 1000)),
    ("lines=0-1", 200, (0, 1000)),
    ("bytes=-", 200, (0, 1000)),
    ("bytes=" + "9" * 30 + "-", 200, (0, 1000)),
]


async def test_downloads_support_ranges(api: Api) -> None:
    job = (await api.submit())["id"]
    content = os.urandom(1000)
    await put(api, job, "attempts/1/results/worker-0/w", content)
    url = f"/v1/jobs/{job}/artifacts/attempts/1/results/worker-0/w"
    for wanted, status, span in RANGES:
        headers = {"Range": wanted} if wanted else {}
        answer = await api.admin.get(url, headers=headers)
        assert answer.status_code == status, wanted
        if span is None:
            assert answer.headers["content-range"] == "bytes */1000"
            continue
        assert answer.content == content[slice(*span)]
        assert answer.headers["accept-ranges"] == "bytes"
        length = str(span[1] - span[0])
        assert answer.headers["content-length"] == length
        if status == 206:
            assert answer.headers["content-range"] == f"bytes {span[0]}-{span[1] - 1}/1000"
        head = await api.admin.head(url, headers=headers)
        assert (head.status_code, head.headers["content-length"], head.content) == (status, length, b"")


async def test_a_changed_file_is_downloaded_from_its_start(api: Api) -> None:
    job = (await api.submit())["id"]
    await put(api, job, "attempts/1/results/worker-0/w", b"old" * 10)
    url = f"/v1/jobs/{job}/artifacts/attempts/1/results/worker-0/w"
    etag = (await api.admin.get(url)).headers["etag"]
    assert (await api.admin.get(url, headers={"If-None-Match": etag})).status_code == 304
    same = await api.admin.get(url, headers={"Range": "bytes=3-", "If-Range": etag})
    assert same.status_code == 206
    await put(api, job, "attempts/1/results/worker-0/w", b"newer" * 10)
    other = await api.admin.get(url, headers={"Range": "bytes=3-", "If-Range": etag})
    assert (other.status_code, other.content) == (200, b"newer" * 10)


async def test_a_range_is_sent_if_the_etag_comes_as_the_list_gives_it(api: Api) -> None:
    job = (await api.submit())["id"]
    await put(api, job, "attempts/1/results/worker-0/w", b"old" * 10)
    [listed] = (await api.admin.get(f"/v1/jobs/{job}/artifacts")).json()["artifacts"]
    url = f"/v1/jobs/{job}/artifacts/{listed['path']}"
    part = await api.admin.get(url, headers={"Range": "bytes=28-", "If-Range": listed["etag"]})
    assert (part.status_code, part.content) == (206, b"ld")
    other = await api.admin.get(url, headers={"Range": "bytes=28-", "If-Range": f"{listed['etag']}x"})
    assert (other.status_code, other.content) == (200, b"old" * 10)


async def test_an_interrupted_download_leaves_no_open_file(api: Api) -> None:
    job = (await api.submit())["id"]
    await put(api, job, "attempts/1/results/worker-0/w", bytes(20 * 2**20))
    before = len([*Path("/proc/self/fd").iterdir()])
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            async with (
                api.client(api.admin_key) as client,
                client.stream("GET", f"/v1/jobs/{job}/artifacts/attempts/1/results/worker-0/w") as answer,
            ):
                await anext(answer.aiter_raw())
        await until(lambda: "weft_http_requests_in_flight 0.0" in api.measured())
        await until(lambda: len([*Path("/proc/self/fd").iterdir()]) <= before)
    assert [entry for entry in logs if entry["log_level"] in {"warning", "error"}] == []


async def test_empty_files_and_files_with_special_names_can_be_downloaded(api: Api) -> None:
    job = (await api.submit())["id"]
    for name in ("empty", "größe %2e #?&.txt", 'quote".txt'):
        await put(api, job, f"attempts/1/results/worker-0/{name}", b"" if name == "empty" else b"x")
    listed = (await api.admin.get(f"/v1/jobs/{job}/artifacts")).json()["artifacts"]
    assert len(listed) == 3
    for artifact in listed:
        got = await api.admin.get(f"/v1/jobs/{job}/artifacts/{quote(artifact['path'])}")
        assert (got.status_code, len(got.content)) == (200, artifact["size"]), artifact
        assert got.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")


PATHS = [
    "attempts/../../../code/x",
    "attempts/%2e%2e/x",
    "attempts/1/%2e%2e/%2e%2e/x",
    "..%2f..%2fsecrets",
    "code.zip",
    "attempts//x",
    "attempts/%00",
    "attempts/1/results/worker-0/nothing",
    "%ff",
    "attempts/%ff",
    "attempts/" + "a" * 5000,
]


async def test_no_path_leads_out_of_the_job(api: Api) -> None:
    job = (await api.submit())["id"]
    for path in PATHS:
        answer = await api.admin.get(f"/v1/jobs/{job}/artifacts/{path}")
        assert answer.status_code in {400, 404}, path
        assert answer.headers["content-type"] == "application/problem+json"
