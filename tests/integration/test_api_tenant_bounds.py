"""What one tenant may store and send at a time; the others are not affected."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

import apsw
import grpc.aio
import httpx2
import pytest

from services.api.uploads import Uploads
from services.core.domain.errors import ResourceExhausted
from services.core.formats.archive import Entry
from services.core.gen.weft.v1 import jobs_pb2 as pb
from tests.testbed.api import SPEC, Api, a_zip, running_api
from tests.testbed.user_rpc import speaking
from tests.waiting import HANG_S, until

LIMIT = 100_000


def code(size: int, seed: int = 0) -> bytes:
    """A zip of about ``size`` bytes."""
    state, data = seed + 1, bytearray()
    while len(data) < size:
        state = state * 6364136223846793005 % 2**64
        data += state.to_bytes(8)
    return a_zip({"data": bytes(data)})


async def send(client: httpx2.AsyncClient, archive: bytes, **options: Any) -> httpx2.Response:
    files: dict[str, Any] = {
        "spec": ("s", json.dumps(SPEC), "application/json"),
        "code": ("c.zip", archive, "application/zip"),
    }
    return await client.post("/v1/jobs", files=files, **options)


def store(api: Api, tenant: str, size: int, name: str = "weights") -> None:
    """Results, as helpers store them beside the api."""
    path = api.settings.home / "objects" / "tenants" / tenant / "jobs" / "j1" / "attempts" / "1" / "results" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))


@asynccontextmanager
async def counting_api(home: Path) -> AsyncGenerator[Api]:
    """An api that has counted what the tenant stores: a first count may miss what is uploaded meanwhile."""
    async with running_api(home, tenant_bytes=LIMIT) as api:
        await api.submit()  # it starts the count
        await api.services.storage_bound.counted()
        yield api


async def test_submission_beyond_what_a_tenant_may_store_is_refused_and_others_are_not(tmp_path: Path) -> None:
    async with running_api(tmp_path, tenant_bytes=LIMIT) as api:
        full, other = [api.client(await api.key(name, name)) for name in ("full", "other")]
        async with full, other:
            store(api, "full", LIMIT + 1)
            await api.submit(params={"tenant": "full"})  # it starts the count
            await api.services.storage_bound.counted()
            for refused in (await send(full, code(10)), await full.post("/v1/jobs", json=SPEC)):
                assert refused.status_code == 507
                problem = refused.json()
                assert problem["type"] == "urn:weft:error:no-space"
                assert "tenant full stores 100001 bytes of at most 100000 (WEFT_TENANT_BYTES)" in problem["detail"]
            assert (await send(other, code(10))).status_code == 201
            assert (await full.get("/v1/jobs")).status_code == 200


async def test_uploads_are_counted_at_once_and_stored_code_is_counted_once(tmp_path: Path) -> None:
    async with counting_api(tmp_path) as api:
        archive = code(60_000)
        assert (await send(api.admin, archive)).status_code == 201
        assert (await send(api.admin, code(60_000, seed=7))).status_code == 507
        assert (await send(api.admin, code(20_000, seed=8))).status_code == 201


async def test_a_submit_repeated_after_a_lost_answer_finds_its_job_although_its_code_would_not_fit_twice(
    tmp_path: Path,
) -> None:
    async with counting_api(tmp_path) as api:
        key, archive = {"Idempotency-Key": "k"}, code(60_000)
        made = await send(api.admin, archive, headers=key)
        again = await send(api.admin, archive, headers=key)
        assert (again.status_code, again.json()["id"]) == (201, made.json()["id"]), again.text
        assert again.headers["idempotency-replayed"] == "true"


async def test_equal_submits_at_the_same_time_make_one_job_although_their_code_would_not_fit_twice(
    tmp_path: Path,
) -> None:
    async with counting_api(tmp_path) as api:
        archive = code(60_000)
        answers = await asyncio.gather(*(send(api.admin, archive, headers={"Idempotency-Key": "k"}) for _ in range(8)))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["id"] for answer in answers}) == 1


async def test_code_that_is_stored_may_be_sent_again_although_it_would_not_fit_twice(tmp_path: Path) -> None:
    async with counting_api(tmp_path) as api:
        archive = code(60_000)
        assert (await send(api.admin, archive)).status_code == 201
        assert (await send(api.admin, archive)).status_code == 201
        assert (await send(api.admin, code(30_000, seed=7))).status_code == 201, "it was counted once"
        store(api, "default", LIMIT)
    async with running_api(tmp_path, tenant_bytes=LIMIT, tenant_count_s=0.001) as api:
        await send(api.admin, archive)  # it starts a count
        await api.services.storage_bound.counted()
        assert (await send(api.admin, archive)).status_code == 507, "the tenant is beyond its bound"


async def test_other_code_under_a_used_key_is_refused_and_not_stored(tmp_path: Path) -> None:
    async with running_api(tmp_path, tenant_bytes=LIMIT) as api:
        key = {"Idempotency-Key": "k"}
        assert (await send(api.admin, code(10), headers=key)).status_code == 201
        stored = [*(api.settings.home / "objects" / "tenants" / "default" / "code").iterdir()]
        other = await send(api.admin, code(20_000, seed=7), headers=key)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency-mismatch")
        assert [*(api.settings.home / "objects" / "tenants" / "default" / "code").iterdir()] == stored


async def test_usage_survives_a_restart_and_is_counted_again_when_it_is_old(tmp_path: Path) -> None:
    async with running_api(tmp_path, tenant_bytes=LIMIT) as api:
        client = api.client(await api.key("ada", "acme"))
        async with client:
            store(api, "acme", LIMIT + 1)
            assert (await client.post("/v1/jobs", json=SPEC)).status_code == 201
            await api.services.storage_bound.counted()
    async with running_api(tmp_path, tenant_bytes=LIMIT, tenant_count_s=3600) as api:
        client = api.client(await api.key("bob", "acme"))
        async with client:
            store(api, "acme", 0)
            assert (await client.post("/v1/jobs", json=SPEC)).status_code == 507
    async with running_api(tmp_path, tenant_bytes=LIMIT, tenant_count_s=0.001) as api:
        client = api.client(await api.key("eve", "acme"))
        async with client:
            await client.post("/v1/jobs", json=SPEC)
            await api.services.storage_bound.counted()
            assert (await client.post("/v1/jobs", json=SPEC)).status_code == 201


async def test_a_damaged_count_stops_no_submission_and_is_counted_anew(tmp_path: Path) -> None:
    async with running_api(tmp_path, tenant_bytes=LIMIT) as api:
        assert (await send(api.admin, code(60_000))).status_code == 201
        await api.services.storage_bound.counted()
        connection = apsw.Connection(str(api.settings.home / "records.sqlite"))
        connection.execute("UPDATE records SET body = '{' WHERE kind = 'storage'")
        assert connection.changes() == 1
        connection.close()
        await api.submit()  # it starts a count, which may miss what is uploaded meanwhile
        await api.services.storage_bound.counted()
        assert (await send(api.admin, code(60_000, seed=7))).status_code == 507


async def test_many_objects_are_counted_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.api.storage._PAGE", 100)
    async with running_api(tmp_path, tenant_bytes=LIMIT) as api:
        client = api.client(await api.key("ada", "acme"))
        async with client:
            for number in range(1_050):
                store(api, "acme", 100, name=f"file-{number}")
            assert (await client.post("/v1/jobs", json=SPEC)).status_code == 201
            await api.services.storage_bound.counted()
            assert "stores 105000 bytes" in (await client.post("/v1/jobs", json=SPEC)).json()["detail"]


async def test_uploads_of_one_tenant_and_of_all_are_bounded_and_one_that_ends_makes_room(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "uploads", max_bytes=100, most=3, most_of_tenant=2)
    uploads.open()

    async def refused(tenant: str) -> str:
        try:
            async with uploads.receive(tenant):
                return ""
        except ResourceExhausted as error:
            return error.message

    async with uploads.receive("a"), uploads.receive("a"):
        assert "WEFT_MAX_TENANT_UPLOADS" in await refused("a")
        assert await refused("b") == ""
        async with uploads.receive("b"):
            assert "WEFT_MAX_UPLOADS" in await refused("c")
    assert [await refused(tenant) for tenant in ("a", "b", "c")] == ["", "", ""]


async def test_upload_beyond_the_number_at_a_time_is_answered_429_and_may_be_repeated(tmp_path: Path) -> None:
    async with running_api(tmp_path, max_tenant_uploads=1) as api:
        begun, go_on = asyncio.Event(), asyncio.Event()
        boundary = "b"
        spec = f'--{boundary}\r\nContent-Disposition: form-data; name="spec"\r\n\r\n{json.dumps(SPEC)}\r\n'.encode()
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="code"\r\n\r\n'.encode()

        async def slow() -> AsyncIterator[bytes]:
            yield spec + head
            begun.set()
            await go_on.wait()
            yield code(10) + f"\r\n--{boundary}--\r\n".encode()

        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        first = asyncio.create_task(api.admin.post("/v1/jobs", content=slow(), headers=headers))
        await begun.wait()
        while not api.services.uploads.running:  # noqa: ASYNC110 - the api reads the head of the request
            await asyncio.sleep(0.01)
        refused = await send(api.admin, code(10))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        go_on.set()
        assert (await first).status_code == 201
        assert (await send(api.admin, code(10))).status_code == 201


async def until_its_place_and_file_are_free(api: Api) -> None:
    await until(lambda: api.services.uploads.running == 0)
    assert list((api.settings.home / "uploads").iterdir()) == []
    assert (await send(api.admin, code(10))).status_code == 201


async def test_upload_of_a_client_that_vanished_in_the_middle_gives_its_place_back(tmp_path: Path) -> None:
    async with running_api(tmp_path, max_tenant_uploads=1, body_idle_s=0.5) as api:
        body = (
            f'--b\r\nContent-Disposition: form-data; name="spec"\r\n\r\n{json.dumps(SPEC)}\r\n'
            '--b\r\nContent-Disposition: form-data; name="code"\r\n\r\nPK'
        )
        host, _, port = api.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.admin_key}\r\nContent-Length: 100000\r\n"
            f"Content-Type: multipart/form-data; boundary=b\r\n\r\n{body}".encode()
        )
        await until(lambda: api.services.uploads.running == 1)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG_S)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in head.lower()
        await until_its_place_and_file_are_free(api)
        writer.close()


async def test_upload_over_grpc_that_stops_in_the_middle_gives_its_place_back(tmp_path: Path) -> None:
    async with (
        running_api(tmp_path, max_tenant_uploads=1, body_idle_s=0.5) as api,
        speaking(api.grpc, api.admin_key) as rpc,
    ):

        async def half() -> AsyncIterator[pb.SubmitJobRequest]:
            yield pb.SubmitJobRequest(head=pb.Submission(json=json.dumps(SPEC)))
            yield pb.SubmitJobRequest(code=b"PK")
            await asyncio.Event().wait()

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.jobs.SubmitJob(half(), metadata=rpc.metadata)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "nothing arrived" in (caught.value.details() or "")
        await until_its_place_and_file_are_free(api)


async def test_upload_that_is_slow_but_never_pauses_for_long_is_received(tmp_path: Path) -> None:
    async with running_api(tmp_path, body_idle_s=1.0) as api:
        archive = code(30)

        async def slow() -> AsyncIterator[bytes]:
            yield f'--b\r\nContent-Disposition: form-data; name="spec"\r\n\r\n{json.dumps(SPEC)}\r\n'.encode()
            yield b'--b\r\nContent-Disposition: form-data; name="code"\r\n\r\n'
            for start in range(0, len(archive), 16):
                await asyncio.sleep(0.1)
                yield archive[start : start + 16]
            yield b"\r\n--b--\r\n"

        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        sent = await api.admin.post("/v1/jobs", content=slow(), headers=headers)
        assert sent.status_code == 201, sent.text


async def test_body_that_stays_half_sent_is_answered_503(tmp_path: Path) -> None:
    async with running_api(tmp_path, body_idle_s=0.2) as api:
        line = await api.first_line(
            b"POST /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b'Content-Length: 100\r\n\r\n{"key"'
        )
        assert line.startswith(b"HTTP/1.1 503 ")


async def test_archives_of_one_tenant_are_checked_one_at_a_time_so_that_another_tenant_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, checking = threading.Event(), Counter[bytes]()

    def inspect(file: BinaryIO) -> tuple[Entry, ...]:
        tenant = os.pread(file.fileno(), 5, 0)
        checking[tenant] += 1
        if tenant == b"hoard":
            go_on.wait(HANG_S)
        return ()

    monkeypatch.setattr("services.api.uploads.archive.inspect", inspect)
    uploads = Uploads(tmp_path / "uploads", max_bytes=100, most=20, most_of_tenant=10)
    uploads.open()

    async def upload(tenant: str) -> None:
        async with uploads.receive(tenant) as upload:
            await upload.write(tenant.encode())
            await upload.finish()

    hoarding = [asyncio.create_task(upload("hoard")) for _ in range(10)]
    try:
        await asyncio.wait_for(upload("other"), HANG_S)
        await until(lambda: checking[b"hoard"] == 1)
    finally:
        go_on.set()
        await asyncio.gather(*hoarding)
        uploads.close()
    assert checking == {b"hoard": 10, b"other": 1}


async def test_keys_of_a_user_are_bounded_and_a_loop_of_new_and_revoked_ones_is_too(tmp_path: Path) -> None:
    async with running_api(tmp_path, max_user_keys=3) as api, api.client(await api.key("ada", "acme")) as ada:
        made = [(await ada.post("/v1/keys", json={"name": str(number)})) for number in range(3)]
        assert [answer.status_code for answer in made] == [201, 201, 409]
        assert "acme/ada has 3 API keys" in made[2].json()["detail"]
        assert "WEFT_MAX_USER_KEYS" in made[2].json()["detail"]
        assert (await ada.delete(f"/v1/keys/{made[0].json()['id']}")).status_code == 204
        assert (await ada.post("/v1/keys", json={"name": "after a revocation"})).status_code == 409
        assert await api.key("bob", "acme")
