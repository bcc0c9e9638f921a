"""The dashboard's files: pages and assets, headers that protect browsers, prefixes of proxies."""

from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.testbed.api import Api, running_api

PAGE = '<!doctype html><html><head><script type="module" src="./assets/app-1.js"></script></head><body></body></html>'
SCRIPT = "export const text = 'dashboard';" * 100


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A built application, and a file beside it that is none of its own."""
    folder = tmp_path / "dist"
    (folder / "assets" / "fonts").mkdir(parents=True)
    (folder / "index.html").write_text(PAGE)
    (folder / "assets" / "app-1.js").write_text(SCRIPT)
    (folder / "assets" / "fonts" / "a.woff2").write_bytes(b"font")
    (folder / "secret.txt").write_text("not an asset")
    (folder / "assets" / "link").symlink_to(folder / "secret.txt")
    return folder


@pytest.fixture
async def api(tmp_path: Path, built: Path) -> AsyncIterator[Api]:
    async with running_api(tmp_path / "home", dashboard_files=built) as api:
        yield api


async def test_every_address_of_the_dashboard_answers_its_one_page(api: Api) -> None:
    async with api.client(None) as browser:
        for path in ("/", "/ui", "/ui/", "/ui/jobs/j0", "/ui/a/../b"):
            page = await browser.get(path)
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert page.headers["cache-control"] == "no-cache"
            assert '<base href="/">' in page.text
        assert (await browser.head("/ui/jobs")).status_code == 200


async def test_pages_run_only_the_dashboards_own_scripts_and_are_shown_in_no_frame(api: Api) -> None:
    async with api.client(None) as browser:
        first, second = await browser.get("/"), await browser.get("/")
        policy = first.headers["content-security-policy"]
        directives = dict(part.split(" ", 1) for part in policy.split("; "))
        assert (directives["default-src"], directives["script-src"]) == ("'none'", "'self'")
        assert directives["frame-ancestors"] == "'none'"
        assert "unsafe" not in policy
        [nonce] = re.findall(r'<meta property="csp-nonce" nonce="([\w-]{16,})">', first.text)
        assert f"'nonce-{nonce}'" in directives["style-src"]
        assert nonce not in second.text
        assert first.headers["x-frame-options"] == "DENY"


async def test_every_answer_forbids_sniffing_framing_and_scripts(api: Api) -> None:
    job = (await api.submit())["id"]
    async with api.client(None) as browser:
        answers = [
            await api.admin.get("/v1/jobs"),
            await api.admin.get(f"/v1/jobs/{job}/artifacts/nothing"),
            await browser.get("/v1/jobs"),
            await browser.get("/v1/version"),
            await browser.get("/assets/app-1.js"),
        ]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'; sandbox"
        assert answer.headers["content-type"].partition(";")[0] in {
            "application/json",
            "application/problem+json",
            "application/javascript",
        }


async def test_assets_are_cached_for_ever_and_compressed_if_the_browser_can(api: Api) -> None:
    async with api.client(None) as browser:
        plain = await browser.get("/assets/app-1.js", headers={"Accept-Encoding": "identity"})
        assert (plain.text, plain.headers["cache-control"]) == (SCRIPT, "public, max-age=31536000, immutable")
        assert plain.headers["content-type"].startswith("application/javascript")
        packed = await browser.get("/assets/app-1.js", headers={"Accept-Encoding": "gzip"})
        assert (packed.headers["content-encoding"], packed.text) == ("gzip", SCRIPT)
        assert int(packed.headers["content-length"]) < len(gzip.compress(SCRIPT.encode())) + 50
        assert (await browser.get("/assets/fonts/a.woff2")).content == b"font"


@pytest.mark.parametrize(
    "path",
    [
        "../index.html",
        "..%2findex.html",
        "%2e%2e/secret.txt",
        "link",
        "",
        "/etc/passwd",
        "%00",
        "fonts",
        "app-1.js/",
    ],
)
async def test_no_path_leads_to_a_file_that_is_no_asset(api: Api, path: str) -> None:
    answer = await api.first_line(f"GET /assets/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert answer in {b"HTTP/1.1 404 Not Found", b"HTTP/1.1 400 Bad Request"}


async def test_the_page_names_the_prefix_of_the_proxy(tmp_path: Path, built: Path, api: Api) -> None:
    async with api.client(None) as browser:
        page = await browser.get("/ui/jobs", headers={"X-Forwarded-Prefix": "/weft"})
        assert '<base href="/weft/">' in page.text
        for wrong in ('/"><script>', "weft", "//evil.example", "/a b", "/a//b"):
            assert '<base href="/">' in (await browser.get("/", headers={"X-Forwarded-Prefix": wrong})).text
    home = tmp_path / "other"
    async with (
        running_api(home, dashboard_files=built, dashboard_prefix="/weft/") as other,
        other.client(None) as browser,
    ):
        for path in ("/weft", "/weft/", "/weft/ui/jobs", "/ui/jobs"):
            assert '<base href="/weft/">' in (await browser.get(path)).text
        assert (await browser.get("/weft/v1/version")).json()["api"] == "v1"
        assert (await browser.get("/weft/v1/jobs")).status_code == 401
        assert (await browser.get("/weftx/v1/version")).status_code == 401


async def test_without_a_build_the_page_says_how_to_make_one_and_serves_it_without_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "dist"
    async with running_api(tmp_path / "home", dashboard_files=folder) as api, api.client(None) as browser:
        page = await browser.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert "make dashboard" in page.text
        (folder / "assets").mkdir(parents=True)
        (folder / "assets" / "new.js").write_text("1")
        (folder / "index.html").write_text(PAGE)
        assert "<base" in (await browser.get("/")).text
        assert (await browser.get("/assets/new.js")).text == "1"
