"""Data behind a URL: fetched from a real HTTP server that breaks off, changes its mind and redirects."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from services.core.domain.plan import AttemptPlan, Input, LearnerPlan
from services.helper.fetch.http_data import fetch_http
from services.helper.fetch.watched import Cancelled, Cannot, Watched
from services.helper.folder import Assignment
from services.helper.settings import FetchSettings


class Site(ThreadingHTTPServer):
    """One file at /data.bin, and what was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = bytes(range(256)) * 4096
        self.etag = '"one"'
        self.break_after: int | None = None
        self.redirect = ""
        self.status = 200
        self.asked: list[dict[str, str]] = []
        self.sent = 0

    def url(self, path: str = "/data.bin") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site = self.server
        assert isinstance(site, Site)
        site.asked.append(dict(self.headers))
        if site.status != 200:
            self.send_response(site.status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if site.redirect:
            self.send_response(302)
            self.send_header("Location", site.redirect)
            self.end_headers()
            return
        if self.headers.get("If-None-Match") == site.etag:
            self.send_response(304)
            self.end_headers()
            return
        start = 0
        if self.headers.get("If-Range") == site.etag:
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        self.send_header("ETag", site.etag)
        self.send_header("Content-Length", str(len(site.content) - start))
        self.end_headers()
        body = site.content[start : site.break_after]
        site.break_after = None
        site.sent += len(body)
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Says nothing."""


@pytest.fixture
def site() -> Generator[Site]:
    server = Site()
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


LOCAL = FetchSettings(http_allow=("127.0.0.0/8",))


class Fetching:
    def __init__(self, root: Path, url: str) -> None:
        self.one = Input(mount="d", type="http", location=url)
        plan = AttemptPlan(
            job="j", tenant="t", attempt=1, term=1, learners=(), distribution="none", framework="", code_digest="",
            inputs=(), grace=0, store_timeout=0, checkpoint_keep=1,
        )  # fmt: skip
        learner = LearnerPlan(
            name="w", role="w", rank=0, command="", cpus=1, memory=1, gpus=0, node="local", token=""
        )  # fmt: skip
        self.assignment = Assignment(
            plan=plan, learner=learner, uid=70_001, gid=70_001, addresses_file="", objects="", cache=str(root / "cache")
        )
        self.root = root
        self.times = 0
        self.watched = Watched()

    def __call__(self, settings: FetchSettings = LOCAL) -> tuple[Path, str]:
        self.times += 1
        target = self.root / str(self.times)
        digest = fetch_http(self.one, target, self.assignment, settings, self.watched)
        return target / "data.bin", digest


def test_a_file_is_downloaded_once_and_then_only_asked_for(site: Site, tmp_path: Path) -> None:
    fetch = Fetching(tmp_path, site.url())
    first, digest = fetch()
    second, again = fetch()
    assert first.read_bytes() == second.read_bytes() == site.content
    assert (digest, site.sent) == (again, len(site.content))
    assert site.asked[1]["If-None-Match"] == '"one"'
    site.content, site.etag = b"changed", '"two"'
    third, other = fetch()
    assert third.read_bytes() == b"changed"
    assert other != digest
    assert first.read_bytes() != b"changed", "a running learner's data does not change under it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's learners have users of their own")
def test_the_learner_can_read_the_file_and_not_write_it(site: Site, tmp_path: Path) -> None:
    found, _ = Fetching(tmp_path, site.url())()
    assert found.stat().st_mode & 0o777 == 0o444
    assert found.stat().st_uid == 0


def test_a_broken_download_goes_on_where_it_broke(site: Site, tmp_path: Path) -> None:
    site.break_after = 300_000
    found, _ = Fetching(tmp_path, site.url())()
    assert found.read_bytes() == site.content
    assert site.asked[1]["Range"] == "bytes=300000-"
    assert site.sent == len(site.content)


def test_a_broken_download_of_a_file_that_changed_begins_anew(site: Site, tmp_path: Path) -> None:
    fetch = Fetching(tmp_path, site.url())
    site.break_after = 300_000
    say = fetch.watched.say

    def change(message: str) -> None:
        if "trying again" in message:
            site.content, site.etag = b"other" * 1000, '"two"'
        say(message)

    fetch.watched.say = change  # type: ignore[method-assign]
    found, _ = fetch()
    assert found.read_bytes() == site.content


def test_what_is_cached_serves_while_the_server_does_not(site: Site, tmp_path: Path) -> None:
    fetch = Fetching(tmp_path, site.url())
    fetch()
    site.status = 503
    found, _ = fetch()
    assert found.read_bytes() == site.content


def test_loopback_is_refused_unless_the_operator_allows_it(site: Site, tmp_path: Path) -> None:
    with pytest.raises(Cannot) as refused:
        Fetching(tmp_path, site.url())(FetchSettings())
    assert refused.value.reason == "DataStoreDenied"
    assert site.asked == []


def test_a_redirect_leads_no_further_than_the_address_itself_may(site: Site, tmp_path: Path) -> None:
    site.redirect = "http://169.254.169.254/latest/meta-data/"
    with pytest.raises(Cannot, match=r"169\.254\.169\.254"):
        Fetching(tmp_path, site.url())()
    site.redirect = "file:///etc/passwd"
    with pytest.raises(Cannot, match="no http or https"):
        Fetching(tmp_path, site.url())()
    site.redirect = "/data.bin"
    with pytest.raises(Cannot, match="too many redirects"):
        Fetching(tmp_path, site.url())()


@pytest.mark.parametrize(("status", "reason"), [(404, "DataStoreUnavailable"), (403, "DataStoreDenied")])
def test_an_answer_that_will_not_get_better_is_not_tried_again(
    site: Site, tmp_path: Path, status: int, reason: str
) -> None:
    site.status = status
    with pytest.raises(Cannot) as refused:
        Fetching(tmp_path, site.url())()
    assert (refused.value.reason, len(site.asked)) == (reason, 1)


def test_a_file_larger_than_allowed_is_not_kept(site: Site, tmp_path: Path) -> None:
    with pytest.raises(Cannot) as refused:
        Fetching(tmp_path, site.url())(FetchSettings(http_allow=("127.0.0.1",), http_max_bytes=1000))
    assert refused.value.reason == "DataTooLarge"


def test_a_stop_ends_a_download(site: Site, tmp_path: Path) -> None:
    fetch = Fetching(tmp_path, site.url())
    fetch.watched.cancel()
    with pytest.raises(Cancelled):
        fetch()


def test_an_address_without_a_file_name_is_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(Cannot, match="names no file"):
        Fetching(tmp_path, site.url("/"))()
