"""Sessions of browsers: the cookie, CSRF, other sites' pages, DNS rebinding, one-time codes, the end of a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from services.api.rest.app import create_routes
from services.api.rest.permissions import routes_of
from tests.testbed.api import SPEC, Api, running_api

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path) as api:
        yield api


async def signed_in(browser: httpx2.AsyncClient, key: str) -> dict[str, str]:
    """Signs in, and returns the headers with which the dashboard's pages change something."""
    made = await browser.post("/v1/session", json={"key": key}, headers=SAME_ORIGIN)
    assert made.status_code == 200, made.text
    return {**SAME_ORIGIN, "X-Weft-CSRF": made.json()["csrf"]}


async def test_a_key_is_exchanged_for_a_cookie_that_scripts_cannot_read(api: Api) -> None:
    async with api.client(None) as browser:
        made = await browser.post("/v1/session", json={"key": api.admin_key})
        cookie = made.headers["set-cookie"]
        name, *attributes = cookie.split("; ")
        assert name.startswith("weft_session=weft_s")
        assert {text.lower() for text in attributes} == {"httponly", "samesite=strict", "path=/"}
        assert made.headers["cache-control"] == "no-store"
        session = made.json()
        assert (session["user"], session["tenant"], session["scope"]) == ("admin", "default", "admin")
        assert (await browser.get("/v1/session")).json() == session
        assert (await browser.get("/v1/whoami")).json()["key_id"] == api.admin_key.split("_")[1]
        assert api.admin_key not in made.text


async def test_the_cookie_is_secure_over_https_and_bound_to_the_prefix_of_a_proxy(api: Api) -> None:
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Prefix": "/weft/"}
    async with api.client(None) as browser:
        made = await browser.post("/v1/session", json={"key": api.admin_key}, headers=forwarded)
        attributes = made.headers["set-cookie"].lower().split("; ")[1:]
        assert {"secure", "path=/weft/"} <= set(attributes)


@pytest.mark.parametrize("body", [{}, {"key": "x", "code": "y"}, {"key": 3}, {"kex": "x"}, []])
async def test_a_malformed_sign_in_is_refused_and_makes_no_session(api: Api, body: Any) -> None:
    refused = await api.admin.post("/v1/session", json=body)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid-request")
    assert (await api.admin.get("/v1/keys")).json()["sessions"] == []


async def test_a_wrong_key_or_code_signs_nobody_in(api: Api) -> None:
    async with api.client(None) as browser:
        for body in ({"key": api.admin_key[:-1]}, {"key": ""}, {"code": "weft_c"}, {"code": api.admin_key}):
            refused = await browser.post("/v1/session", json=body)
            assert (refused.status_code, "set-cookie" in refused.headers) == (401, False), body


async def test_every_change_in_a_session_needs_the_csrf_token_and_the_own_origin(api: Api) -> None:
    job = (await api.submit())["id"]
    async with api.client(None) as browser:
        headers = await signed_in(browser, api.admin_key)
        token = {"X-Weft-CSRF": headers["X-Weft-CSRF"]}
        own = {"Origin": api.url}
        refused: list[dict[str, str]] = [
            {},
            SAME_ORIGIN,
            token,
            {**SAME_ORIGIN, "X-Weft-CSRF": "0" * 64},
            {**token, "Sec-Fetch-Site": "cross-site"},
            {**token, "Sec-Fetch-Site": "same-site"},
            {**token, "Sec-Fetch-Site": "none"},
            {**token, "Origin": "https://evil.example"},
            {**token, "Origin": "null"},
            {**token, "Origin": api.url + "1"},
        ]
        changes = {
            (method, route.path.replace("{job_id}", job).replace("{key_id}", "x"))
            for route in routes_of(create_routes())
            for method in (route.methods or set()) - {"GET", "HEAD"}
        } - {("POST", "/v1/session")}
        assert len(changes) >= 9
        for method, path in changes:
            for wrong in refused:
                answer = await browser.request(method, path, headers=wrong)
                assert (answer.status_code, answer.json()["code"]) == (403, "permission-denied"), (method, path, wrong)
        assert (await api.admin.get(f"/v1/jobs/{job}")).json()["desired"] == "run"
        for right in (headers, {**token, **own}):
            assert (await browser.post("/v1/jobs", json=SPEC, headers=right)).status_code == 201


async def test_a_page_of_another_site_cannot_read_with_the_session_or_sign_the_browser_in(api: Api) -> None:
    async with api.client(None) as browser:
        await signed_in(browser, api.admin_key)
        for site in ("cross-site", "same-site"):
            assert (await browser.get("/v1/jobs", headers={"Sec-Fetch-Site": site})).status_code == 403
        assert (await browser.get("/v1/jobs", headers={"Sec-Fetch-Site": "none"})).status_code == 200
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
            forced = await browser.post("/v1/session", json={"key": api.admin_key}, headers=headers)
            assert forced.status_code == 403
        form = await browser.post("/v1/session", content=b'{"key": ""}', headers={"Content-Type": "text/plain"})
        assert form.status_code == 400


async def test_a_rebound_host_name_gets_no_page_no_session_and_no_data(tmp_path: Path) -> None:
    async with running_api(tmp_path, dashboard_hosts="weft.example, other.example:8443") as api:
        async with api.client(None) as browser:
            headers = await signed_in(browser, api.admin_key)
            evil = {"Host": "evil.example"}
            for path in ("/", "/ui", "/ui/jobs", "/assets/x.js"):
                assert (await browser.get(path, headers=evil)).status_code == 403, path
            assert (await browser.get("/v1/jobs", headers=evil)).status_code == 403
            assert (await browser.post("/v1/jobs", json=SPEC, headers={**headers, **evil})).status_code == 403
            assert (await browser.post("/v1/session", json={"key": api.admin_key}, headers=evil)).status_code == 403
            for host in (
                "localhost:80",
                "a.localhost",
                "127.0.0.1:1",
                "[::1]:1",
                "10.1.2.3",
                "weft.example:443",
                "WEFT.example",
                "other.example:8443",
            ):
                assert (await browser.get("/v1/jobs", headers={"Host": host})).status_code == 200, host
            for host in ("other.example", "weft.example.evil", "127.0.0.1.evil.example", "localhost.evil", "", "a@b"):
                assert (await browser.get("/v1/jobs", headers={"Host": host})).status_code in {400, 403}, host
        # A program names the api as it likes: its key is sent by no browser.
        assert (await api.admin.get("/v1/jobs", headers=evil)).status_code == 200


async def test_a_key_in_the_header_needs_no_csrf_token_and_is_no_session(api: Api) -> None:
    assert (await api.admin.post("/v1/jobs", json=SPEC)).status_code == 201
    assert (await api.admin.get("/v1/session")).status_code == 401
    assert (await api.admin.delete("/v1/session")).status_code == 401


async def test_signing_out_ends_the_session_and_removes_the_cookie(api: Api) -> None:
    async with api.client(None) as browser:
        headers = await signed_in(browser, api.admin_key)
        cookie = browser.cookies["weft_session"]
        out = await browser.delete("/v1/session", headers=headers)
        assert out.status_code == 204
        assert "Max-Age=0" in out.headers["set-cookie"]
        assert "weft_session" not in browser.cookies
    async with api.client(None) as thief:
        assert (await thief.get("/v1/jobs", headers={"Cookie": f"weft_session={cookie}"})).status_code == 401


async def test_sessions_are_listed_beside_keys_and_end_with_them(tmp_path: Path) -> None:
    async with running_api(tmp_path, key_cache_s=0) as api:
        key = await api.key("ada", "acme")
        async with api.client(None) as first, api.client(None) as second, api.client(key) as ada:
            await signed_in(first, key)
            await signed_in(second, key)
            await signed_in(second, api.admin_key)
            listed = (await ada.get("/v1/keys")).json()["sessions"]
            assert [(entry["user"], entry["key_id"]) for entry in listed] == [("ada", key.split("_")[1])] * 2
            assert len((await api.admin.get("/v1/keys")).json()["sessions"]) == 3
            own = (await first.get("/v1/session")).json()["id"]
            assert (await ada.delete("/v1/keys/s" + "0" * 22)).status_code == 404
            assert (await ada.delete(f"/v1/keys/{(await second.get('/v1/session')).json()['id']}")).status_code == 404
            await ada.delete(f"/v1/keys/{own}")
            assert (await first.get("/v1/jobs")).status_code == 401
            await signed_in(first, key)
            await api.admin.delete(f"/v1/keys/{key.split('_')[1]}")
            assert (await first.get("/v1/jobs")).status_code == 401
            assert (await second.get("/v1/jobs")).status_code == 200


async def test_a_session_survives_a_restart_of_the_api(tmp_path: Path) -> None:
    async with running_api(tmp_path) as api, api.client(None) as browser:
        await signed_in(browser, api.admin_key)
        cookie = browser.cookies["weft_session"]
    async with running_api(tmp_path) as api, api.client(None) as browser:
        assert (await browser.get("/v1/jobs", headers={"Cookie": f"weft_session={cookie}"})).status_code == 200


async def test_a_one_time_code_signs_in_one_browser_once(api: Api) -> None:
    key = await api.key("ada", "acme")
    async with api.client(key) as ada, api.client(None) as browser:
        made = await ada.post("/v1/session/codes")
        assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
        code = made.json()["code"]
        tries = await asyncio.gather(*(browser.post("/v1/session", json={"code": code}) for _ in range(5)))
        assert sorted(answer.status_code for answer in tries) == [200, 401, 401, 401, 401]
        assert (await browser.get("/v1/session")).json()["user"] == "ada"


async def test_a_session_cannot_make_codes_and_so_cannot_prolong_itself(api: Api) -> None:
    async with api.client(None) as browser:
        headers = await signed_in(browser, api.admin_key)
        refused = await browser.post("/v1/session/codes", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "permission-denied")


async def test_secrets_of_sessions_and_codes_are_in_no_file(api: Api) -> None:
    async with api.client(None) as browser:
        code = (await api.admin.post("/v1/session/codes")).json()["code"]
        await signed_in(browser, api.admin_key)
        cookie = browser.cookies["weft_session"]
    for secret in (code.rpartition("_")[2], cookie.rpartition("_")[2]):
        files = [
            path for path in api.settings.home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()
        ]
        assert files == []
