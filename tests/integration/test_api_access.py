"""Authentication and permissions over REST; API keys."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter

from services.api.rest.app import create_routes
from services.api.rest.permissions import permission_of, public_routes, routes_of
from services.core.adapters.folder.secrets import FolderSecretStore
from tests.testbed.api import SPEC, Api, running_api
from tests.waiting import until

BAD = "weft_k" + "0" * 22 + "_" + "0" * 64


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path) as api:
        yield api


def requests_of(api: Api) -> list[tuple[str, str]]:
    """Every (method, path) that the app answers."""
    job = "j" + "0" * 22
    app = create_routes()
    return [
        (method, re.sub(r"\{[^}]*\}", "x", route.path.replace("{job_id}", job)))
        for route in routes_of(app)
        for method in sorted(route.methods or ())
    ]


async def test_every_route_declares_its_permission_and_reads_no_body_by_itself(api: Api) -> None:
    routes = [*routes_of(create_routes())]
    assert len(routes) > 20
    assert [route.path for route in routes if permission_of(route) is None] == []
    assert [route.path for route in routes if route.body_field is not None] == []


async def test_a_route_without_a_declared_permission_is_found_and_is_not_public(api: Api) -> None:
    app = create_routes()
    careless = APIRouter()

    @careless.get("/v1/careless")
    async def get_careless() -> None: ...

    app.include_router(careless)
    assert [route.path for route in routes_of(app) if permission_of(route) is None] == ["/v1/careless"]
    assert "/v1/careless" not in {route.path for route in public_routes(app)}


PUBLIC = {
    *((method, path) for method in ("GET", "HEAD") for path in ("/", "/ui", "/ui/{path:path}", "/assets/{path:path}")),
    ("GET", "/v1/version"),
    ("GET", "/openapi.json"),
    ("POST", "/v1/session"),
}
"""Every request that needs no credential: the dashboard's files, the version, the OpenAPI document, and signing in."""


async def test_only_files_version_document_and_sign_in_need_no_credential(api: Api) -> None:
    public = public_routes(create_routes())
    assert {(method, route.path) for route in public for method in route.methods or ()} == PUBLIC
    async with api.client(None) as nobody:
        assert (await nobody.get("/v1/version")).json()["api"] == "v1"
        assert (await nobody.get("/openapi.json")).status_code == 200


async def test_no_route_answers_a_bad_credential(api: Api) -> None:
    credentials: list[dict[str, Any]] = [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {BAD}"},
        {"Authorization": f"Basic {api.admin_key}"},
        {"Authorization": f"Learner {api.admin_key}"},
        {"Authorization": api.admin_key},
        {"Authorization": f"Bearer {api.admin_key[:-1]}"},
        {"Authorization": f"Bearer {api.admin_key}0"},
        {"Authorization": f"Bearer {api.admin_key} {BAD}"},
        {"Authorization": "Bearer " + "x" * 5000},
        {"Authorization": b"Bearer \xff\xfe"},
        {"X-Api-Key": api.admin_key, "Cookie": f"key={api.admin_key}"},
        {"Cookie": f"weft_session={api.admin_key}"},
        {"Cookie": "weft_session=weft_s" + "0" * 22 + "_" + "0" * 64, "X-Weft-CSRF": "0" * 64},
        {"Cookie": "weft_session=", "X-Weft-CSRF": ""},
    ]
    paths = ("/v1", "/v1/nothing", "/docs", "/redoc", "/v1/version/", "//v1/version", "/assets", "/uix")
    others = [("GET", path) for path in paths] + [("POST", "/"), ("POST", "/ui/x"), ("PUT", "/v1/session")]
    public = {(method, path.replace("{path:path}", "x")) for method, path in PUBLIC}
    async with api.client(None) as nobody:
        for headers in credentials:
            for method, path in [*requests_of(api), *others]:
                if (method, path) in public:
                    continue
                refused = await nobody.request(method, path, headers=headers)
                assert refused.status_code == 401, (method, path, headers)
                assert refused.headers["www-authenticate"] == 'Bearer realm="weft"'
                if method != "HEAD":
                    assert refused.json()["code"] == "unauthenticated"


async def test_an_unauthenticated_request_is_refused_before_its_body_is_read(api: Api) -> None:
    head = "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000000\r\n\r\n"
    answer = await api.first_line(f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\n{head}".encode())
    assert answer == b"HTTP/1.1 401 Unauthorized"


async def test_a_key_works_until_it_is_revoked(tmp_path: Path) -> None:
    async with running_api(tmp_path, key_cache_s=0) as api:
        key = await api.key("ada", "acme")
        async with api.client(key) as ada:
            holder = (await ada.get("/v1/whoami")).json()
            assert (holder["user"], holder["tenant"], holder["scope"]) == ("ada", "acme", "user")
            assert holder["key_id"] == key.split("_")[1]
            assert "jobs:write" in holder["permissions"]
            [listed] = (await ada.get("/v1/keys")).json()["keys"]
            assert (listed["id"], listed["revoked"]) == (holder["key_id"], None)
            assert (await api.admin.delete(f"/v1/keys/{holder['key_id']}")).status_code == 204
            assert (await api.admin.delete(f"/v1/keys/{holder['key_id']}")).status_code == 204
            assert (await ada.get("/v1/whoami")).status_code == 401
        everything = (await api.admin.get("/v1/keys")).json()["keys"]
        assert [bool(key["revoked"]) for key in everything if key["user"] == "ada"] == [True]


async def test_a_revocation_by_another_process_takes_effect_within_key_cache_s(tmp_path: Path) -> None:
    async with running_api(tmp_path, key_cache_s=0.1) as api, running_api(tmp_path, key_cache_s=0.1) as other:
        key = await api.key("ada", "acme")
        async with other.client(key) as ada:
            assert (await ada.get("/v1/whoami")).status_code == 200
            await api.admin.delete(f"/v1/keys/{key.split('_')[1]}")

            async def refused() -> bool:
                return (await ada.get("/v1/whoami")).status_code == 401

            await until(refused)


async def test_the_history_names_the_admin_of_another_tenant_who_killed_the_job(api: Api) -> None:
    admin = (await api.admin.get("/v1/whoami")).json()
    async with api.client(await api.key("ada", "acme")) as ada:
        job = (await ada.post("/v1/jobs", json=SPEC)).json()["id"]
        assert (await api.admin.patch(f"/v1/jobs/{job}", json={"desired": "kill"})).status_code == 202
        [_, killed] = (await ada.get(f"/v1/jobs/{job}/history")).json()["events"]
        assert (killed["to"], killed["actor"]) == ("KILLED", f"user:{admin['tenant']}/{admin['user']}")
        assert f"killed by {admin['tenant']}/{admin['user']}" in (await ada.get(f"/v1/jobs/{job}/explain")).text


async def test_secrets_of_keys_are_in_no_answer_and_no_file(api: Api) -> None:
    key = await api.key("ada", "acme")
    secret = key.rpartition("_")[2]
    async with api.client(key) as ada:
        assert secret not in (await ada.get("/v1/keys")).text
        assert secret not in (await ada.get("/v1/whoami")).text
    assert "mac" not in (await api.admin.get("/v1/keys")).text

    def files_with(text: str) -> list[Path]:
        files = [path for path in api.settings.home.rglob("*") if path.is_file()]
        return [path for path in files if text.encode() in path.read_bytes()]

    assert files_with(secret) == []
    [admin] = files_with(api.admin_key.rpartition("_")[2])
    assert admin.stat().st_mode & 0o777 == 0o600


async def test_users_can_create_keys_only_for_themselves(api: Api) -> None:
    async with api.client(await api.key("ada", "acme")) as ada:
        own = await ada.post("/v1/keys", json={"name": "laptop"})
        assert own.status_code == 201
        assert (own.json()["user"], own.json()["tenant"], own.json()["scope"]) == ("ada", "acme", "user")
        assert own.headers["cache-control"] == "no-store"
        for body in ({"user": "bob"}, {"tenant": "other"}, {"scope": "admin"}):
            refused = await ada.post("/v1/keys", json=body)
            assert (refused.status_code, refused.json()["code"]) == (403, "permission-denied")
        admin_id = api.admin_key.split("_")[1]
        assert (await ada.delete(f"/v1/keys/{admin_id}")).status_code == 404
        assert (await ada.delete("/v1/keys/nonsense")).status_code == 404
        assert (await ada.delete(f"/v1/keys/{own.json()['id']}")).status_code == 204


@pytest.mark.parametrize(
    "body",
    [
        {"scope": "root"},
        {"user": "../x"},
        {"tenant": "a/b"},
        {"tenant": ""},
        {"user": "A"},
        {"name": "\x00"},
        {"nme": "x"},
        {"name": 3},
    ],
)
async def test_an_invalid_key_request_is_refused_and_creates_no_key(api: Api, body: Any) -> None:
    before = len((await api.admin.get("/v1/keys")).json()["keys"])
    refused = await api.admin.post("/v1/keys", json=body)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid-request")
    assert len((await api.admin.get("/v1/keys")).json()["keys"]) == before


async def test_creating_a_key_is_idempotent_and_revives_no_revoked_key(tmp_path: Path) -> None:
    once = {"Idempotency-Key": "k-1"}
    async with running_api(tmp_path) as api:
        first = await api.admin.post("/v1/keys", json={"name": "ci", "user": "ci"}, headers=once)
        again = await api.admin.post("/v1/keys", json={"name": "ci", "user": "ci"}, headers=once)
        assert first.json() == again.json()
        other = await api.admin.post("/v1/keys", json={"name": "ci", "user": "ci2"}, headers=once)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency-mismatch")
        await api.admin.delete(f"/v1/keys/{first.json()['id']}")
        replayed = await api.admin.post("/v1/keys", json={"name": "ci", "user": "ci"}, headers=once)
        assert replayed.json()["revoked"]
        async with api.client(replayed.json()["key"]) as revoked:
            assert (await revoked.get("/v1/whoami")).status_code == 401


async def test_a_restart_keeps_the_first_admin_key(tmp_path: Path) -> None:
    async with running_api(tmp_path) as first:
        key = first.admin_key
    async with running_api(tmp_path) as second:
        assert second.admin_key == key
        assert len((await second.admin.get("/v1/keys")).json()["keys"]) == 1
        holder = (await second.admin.get("/v1/whoami")).json()
        assert (holder["user"], holder["tenant"], holder["scope"]) == ("admin", "default", "admin")


async def test_a_lost_record_of_the_admin_key_is_restored_and_a_lost_secret_makes_a_new_key(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api:
        key = api.admin_key
    for path in tmp_path.glob("records.sqlite*"):
        path.unlink()
    async with running_api(tmp_path) as api:
        assert api.admin_key == key
        assert (await api.admin.get("/v1/whoami")).status_code == 200
    await FolderSecretStore(tmp_path / "secrets").delete("admin-key")
    async with running_api(tmp_path) as api:
        assert api.admin_key != key
        assert (await api.admin.get("/v1/whoami")).status_code == 200


async def test_request_headers_cannot_change_user_or_tenant(api: Api) -> None:
    job = await api.submit({**SPEC}, headers={"X-User": "eve", "X-Forwarded-User": "eve", "X-Tenant": "evil"})
    assert (job["user"], job["tenant"]) == ("admin", "default")


async def test_secrets_and_uploads_are_not_readable_for_other_users_of_the_machine(api: Api) -> None:
    assert (api.settings.home / "secrets").stat().st_mode & 0o077 == 0
    assert (api.settings.home / "uploads").stat().st_mode & 0o077 == 0


async def test_a_traceparent_is_stored_with_the_job_and_returned_in_errors(api: Api) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    header = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    job = await api.submit(headers=header)
    stored = await api.store.get(job["id"])
    assert stored is not None
    assert stored.trace.startswith(f"00-{trace}-")
    assert (await api.admin.get("/v1/jobs/x", headers=header)).json()["trace_id"] == trace
    wrong = await api.admin.get("/v1/jobs/x", headers={"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"})
    assert wrong.json()["trace_id"] != "0" * 32
