"""The api over S3: a store that is away, full, or configured wrongly."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Final

import apsw
import httpx2
import pytest

from services.core.domain.errors import InvalidRequest
from services.core.runtime.home import Home
from services.local.doctor import examine
from tests.testbed.api import SPEC, Api, a_zip, running_api
from tests.testbed.proxy import proxied
from tests.testbed.s3 import S3
from tests.waiting import until

_REQUEST: Final = re.compile(rb"^([A-Z]+) \S+ HTTP/1\.1\r$", re.MULTILINE)


def options(s3: S3, **changes: str) -> dict[str, Any]:
    """As keyword arguments of the settings."""
    settings = {name.removeprefix("WEFT_").lower(): value for name, value in s3.settings("weft").items()}
    return {**settings, **changes}


@pytest.fixture
async def api(own_s3: S3, tmp_path: Path) -> AsyncGenerator[Api]:
    async with running_api(tmp_path / "home", **options(own_s3)) as made:
        yield made


async def submit(
    api: Api,
    files: Mapping[str, bytes | str] | None = None,
    archive: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> httpx2.Response:
    spec = ("spec.json", json.dumps({**SPEC, "code": "."}), "application/json")
    return await api.admin.post("/v1/jobs", files={"spec": spec, "code": archive or a_zip(files)}, headers=headers)


async def test_code_is_uploaded_once_and_read_back(api: Api, own_s3: S3) -> None:
    archive = a_zip()  # once: it holds the time
    first, made = await submit(api, archive=archive), await submit(api, archive=archive)
    assert (first.status_code, made.status_code) == (201, 201), made.text
    stored = list((own_s3.data / "weft" / "tenants" / "default" / "code").iterdir())
    assert [path.name for path in stored] == [made.json()["code_digest"].removeprefix("sha256:")]
    back = await api.admin.get(f"/v1/jobs/{made.json()['id']}/artifacts/code.zip")
    assert back.content == stored[0].read_bytes()


async def test_a_submit_with_code_and_a_key_costs_one_look_up_one_insert_one_head_and_one_put(
    s3: S3, tmp_path: Path
) -> None:
    requests: list[bytes] = []
    statements: list[str] = []

    def record(request: bytes) -> bool:
        requests.extend(match[1] for match in _REQUEST.finditer(request))
        return False

    def trace(connection: apsw.Connection) -> None:
        def add(_: object, statement: str, __: object) -> bool:
            statements.append(statement)
            return True

        connection.exec_trace = add

    with_key = {"Idempotency-Key": "k"}
    apsw.connection_hooks.append(trace)
    try:
        async with proxied(f"127.0.0.1:{s3.port}") as proxy:
            through_proxy = options(s3, s3_endpoint=f"http://{proxy.address}")
            async with running_api(tmp_path / "home", **through_proxy) as api:
                assert (await submit(api)).status_code == 201  # the api has checked the bucket
                await api.services.storage_bound.counted()  # once: it lists the tenant's objects in the background
                proxy.loses_answer_to = record
                statements.clear()
                assert (await submit(api, {"train.py": "print(2)"}, headers=with_key)).status_code == 201
    finally:
        apsw.connection_hooks.remove(trace)
    assert requests == [b"HEAD", b"PUT"]
    of_jobs = [text.split()[0] for text in statements if "jobs" in text and "change >" not in text]
    assert of_jobs == ["SELECT", "INSERT"], statements


async def test_submits_with_code_get_retry_after_while_the_object_store_is_away(api: Api, own_s3: S3) -> None:
    there = (await submit(api)).json()["id"]
    own_s3.kill()
    for refused in (
        await submit(api, {"train.py": "print(2)"}),
        await api.admin.get(f"/v1/jobs/{there}/artifacts"),
        await api.admin.get(f"/v1/jobs/{there}/artifacts/code.zip"),
    ):
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable"), refused.text
        assert int(refused.headers["Retry-After"]) >= 1
        assert "object store" in refused.json()["detail"]
        assert own_s3.credentials.secret_key not in refused.text
    assert (await api.admin.post("/v1/jobs", json=SPEC)).status_code == 201, "without code nothing is stored"
    assert (await api.admin.get("/v1/jobs")).status_code == 200
    own_s3.start()
    assert (await submit(api, {"train.py": "print(2)"})).status_code == 201


async def test_the_api_starts_and_serves_jobs_while_the_object_store_is_away(own_s3: S3, tmp_path: Path) -> None:
    own_s3.kill()
    async with running_api(tmp_path / "home", **options(own_s3)) as api:
        assert (await api.admin.post("/v1/jobs", json=SPEC)).status_code == 201
        assert (await submit(api)).status_code == 503
        own_s3.start()

        async def taken() -> bool:
            return (await submit(api)).status_code == 201

        await until(taken)


async def test_a_full_store_refuses_new_code_and_keeps_what_it_has(s3_binary: Path, tmp_path: Path) -> None:
    s3 = S3(s3_binary, tmp_path / "s3", volume_mib=4)
    s3.start()
    try:
        async with running_api(tmp_path / "home", **options(s3)) as api:
            small = (await submit(api)).json()["id"]
            refused = await submit(api, {"data.bin": random.Random(1).randbytes(6 * 2**20)})  # cannot be compressed
            assert (refused.status_code, refused.json()["code"]) == (507, "no-space"), refused.text
            assert "make room" in refused.json()["detail"]
            assert len((await api.admin.get("/v1/jobs")).json()["jobs"]) == 1
            assert (await api.admin.get(f"/v1/jobs/{small}/artifacts/code.zip")).status_code == 200
    finally:
        s3.kill()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"object_store": "s3://not-there"}, "bucket does not exist"),
        ({"s3_secret_key": "wrong"}, "refuses the platform's credentials"),
        ({"s3_secret_key": ""}, "WEFT_S3_SECRET_KEY"),
        ({"object_store": "somewhere"}, "s3://bucket"),
    ],
)
async def test_wrong_object_store_settings_are_reported_at_start_up_and_by_doctor(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, str], message: str
) -> None:
    given = options(s3, **changes)
    with pytest.raises(InvalidRequest, match=message) as caught:
        async with running_api(tmp_path / "home", **given):
            pass
    assert s3.credentials.secret_key not in str(caught.value)
    for name, value in given.items():
        monkeypatch.setenv(f"WEFT_{name.upper()}", value)
    check = await _examined(tmp_path / "home")
    assert not check["ok"]
    assert message in check["detail"]
    assert "operator-guide" in check["fix"]


async def _examined(home: Path) -> dict[str, Any]:
    """In a thread: the doctor has no event loop around it."""
    (check,) = [check for check in await asyncio.to_thread(examine, Home(home)) if check["check"] == "object store"]
    return check


async def test_doctor_accepts_a_working_bucket(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.settings("weft").items():
        monkeypatch.setenv(name, value)
    check = await _examined(tmp_path)
    assert (check["ok"], check["detail"]) == (True, "s3://weft")
