"""Data behind a URL, from a real HTTP server that breaks connections, changes the file and redirects."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from services.core.domain.outages import Outage, is_outage
from services.core.domain.plan import Input
from services.helper.fetch.http_data import fetch_http
from services.helper.fetch.progress import FetchCancelled, FetchFailed, FetchProgress
from services.helper.fetch.versions import DataVersions
from services.helper.settings import HelperSettings
from tests.documents import an_assignment
from tests.testbed.server import own_uid


class Site(ThreadingHTTPServer):
    """Serves one file at /data.bin and records the requests' headers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = bytes(range(256)) * 4096
        self.etag = '"one"'
        self.break_after: int | None = None
        self.redirect = ""
        self.status = 200
        self.requests: list[dict[str, str]] = []
        self.sent = 0
        self.says_length = True
        self.ignores_if_range = False
        self.range_start: int | None = None
        """The first byte of a range, as the server says; None: as it is."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing if the helper has left, as it does when a file does not fit."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def url(self, path: str = "/data.bin") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site = self.server
        assert isinstance(site, Site)
        site.requests.append(dict(self.headers))
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
        if self.headers.get("If-Range") == site.etag or (site.ignores_if_range and "Range" in self.headers):
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        if start >= len(site.content):
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if site.etag:
            self.send_header("ETag", site.etag)
        if start:
            first = site.range_start if site.range_start is not None else start
            self.send_header("Content-Range", f"bytes {first}-{len(site.content) - 1}/{len(site.content)}")
        if site.says_length:
            self.send_header("Content-Length", str(len(site.content) - start))
        self.end_headers()
        body = site.content[start : site.break_after]
        site.break_after = None
        site.sent += len(body)
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Writes no log."""


@pytest.fixture
def site() -> Generator[Site]:
    server = Site()
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


LOCAL = HelperSettings(http_allow=("127.0.0.0/8",))


class Fetching:
    """Fetches for a learner; each call is for a learner of another attempt, or of the same with ``attempt``."""

    def __init__(self, root: Path, url: str) -> None:
        self.entry = Input(mount="d", type="http", location=url)
        self.assignment = an_assignment(uid=own_uid(), gid=own_uid(), cache=str(root / "cache"))
        self.root = root
        self.calls = 0
        self.progress = FetchProgress()

    def __call__(self, settings: HelperSettings = LOCAL, *, attempt: int | None = None) -> tuple[Path, str]:
        self.calls += 1
        target = self.root / str(self.calls)
        versions = DataVersions(self.root / f"attempt-{self.calls if attempt is None else attempt}")
        digest = fetch_http(
            self.entry, target, self.assignment, settings=settings, versions=versions, progress=self.progress
        )
        versions.record(self.entry, digest)
        return target / "data.bin", digest


def test_unchanged_file_is_downloaded_once(site: Site, tmp_path: Path) -> None:
    fetch = Fetching(tmp_path, site.url())
    first, digest = fetch()
    second, again = fetch()
    assert first.read_bytes() == second.read_bytes() == site.content
    assert (digest, site.sent) == (again, len(site.content))
    assert site.requests[1]["If-None-Match"] == '"one"'
    site.content, site.etag = b"changed", '"two"'
    third, other = fetch()
    assert third.read_bytes() == b"changed"
    assert other != digest
    assert first.read_bytes() != b"changed", "the data of a running learner does not change"


def test_file_without_etag_is_downloaded_once_for_all_learners_of_a_node(site: Site, tmp_path: Path) -> None:
    site.etag = ""
    fetch = Fetching(tmp_path, site.url())
    paths = [fetch(attempt=1)[0] for _ in range(3)]
    assert [path.read_bytes() for path in paths] == [site.content] * 3
    assert len(site.requests) == 1


def test_learners_of_a_gang_get_one_version_of_a_file_that_changes_meanwhile(site: Site, tmp_path: Path) -> None:
    fetch = Fetching(tmp_path, site.url())
    first, digest = fetch(attempt=1)
    site.content, site.etag = b"changed", '"two"'
    other_job, _ = fetch(attempt=2)
    second, same_digest = fetch(attempt=1)
    assert other_job.read_bytes() == b"changed"
    assert second.read_bytes() == first.read_bytes() != b"changed"
    assert digest == same_digest


def test_gang_that_fetched_two_versions_of_a_data_set_fails_with_a_reason(site: Site, tmp_path: Path) -> None:
    fetch = Fetching(tmp_path, site.url())
    fetch(attempt=1)
    (kept,) = (tmp_path / "attempt-1").glob("*.body")
    kept.unlink()  # as where the cache is on another file system than the learners' folders
    site.content, site.etag = b"changed", '"two"'
    with pytest.raises(FetchFailed, match="changed while the learners fetched it") as refused:
        fetch(attempt=1)
    assert refused.value.reason == "DataChanged"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's learners have users of their own")
def test_learner_can_read_the_file_and_not_write_it(site: Site, tmp_path: Path) -> None:
    path, _ = Fetching(tmp_path, site.url())()
    assert path.stat().st_mode & 0o777 == 0o444
    assert path.stat().st_uid == 0


def test_interrupted_download_is_resumed(site: Site, tmp_path: Path) -> None:
    site.break_after = 300_000
    path, _ = Fetching(tmp_path, site.url())()
    assert path.read_bytes() == site.content
    assert site.requests[1]["Range"] == "bytes=300000-"
    assert site.sent == len(site.content)


def test_part_that_does_not_begin_where_the_download_broke_off_is_not_added_to_it(site: Site, tmp_path: Path) -> None:
    site.break_after, site.range_start = 300_000, 299_999
    path, _ = Fetching(tmp_path, site.url())()
    assert path.read_bytes() == site.content
    assert ["Range" in request for request in site.requests] == [False, True, False]


@pytest.mark.parametrize("ignores_if_range", [False, True])
def test_interrupted_download_of_a_changed_file_starts_again(
    site: Site,
    tmp_path: Path,
    ignores_if_range: bool,  # noqa: FBT001
) -> None:
    site.ignores_if_range = ignores_if_range
    fetch = Fetching(tmp_path, site.url())
    site.break_after = 300_000
    report = fetch.progress.report

    def change(message: str) -> None:
        if "trying again" in message:
            site.content, site.etag = b"other" * 100_000, '"two"'
        report(message)

    fetch.progress.report = change  # type: ignore[method-assign]
    path, _ = fetch()
    assert path.read_bytes() == site.content


@pytest.mark.parametrize("has_older", [False, True])
def test_download_whose_helper_died_after_the_last_byte_is_made_again(
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_older: bool,  # noqa: FBT001
) -> None:
    fetch = Fetching(tmp_path, site.url())
    if has_older:
        fetch()
        site.content, site.etag = b"new" * 1000, '"two"'
    with monkeypatch.context() as patched:
        patched.setattr("hashlib.file_digest", _die)
        with pytest.raises(KeyboardInterrupt):
            fetch()
    path, _ = fetch()
    assert path.read_bytes() == site.content


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def test_file_that_changed_before_a_stop_is_never_a_mix_of_two_versions(site: Site, tmp_path: Path) -> None:
    fetch = Fetching(tmp_path, site.url())
    check = fetch.progress.report_bytes

    def stop(done: int, total: int | None) -> None:
        fetch.progress.cancel()
        check(done, total)

    fetch.progress.report_bytes = stop  # type: ignore[method-assign]
    with pytest.raises(FetchCancelled):
        fetch()
    (part,) = (tmp_path / "cache").rglob("part")
    assert part.stat().st_size > 0
    site.content, site.etag = b"other" * 300_000, '"two"'
    with pytest.raises(FetchCancelled):
        fetch()
    fetch.progress = FetchProgress()
    path, _ = fetch()
    assert path.read_bytes() == site.content


def test_cached_file_is_used_while_the_server_is_unavailable(site: Site, tmp_path: Path) -> None:
    fetch = Fetching(tmp_path, site.url())
    fetch()
    site.status = 503
    path, _ = fetch()
    assert path.read_bytes() == site.content


def test_loopback_is_refused_unless_the_operator_allows_it(site: Site, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed) as refused:
        Fetching(tmp_path, site.url())(HelperSettings())
    assert refused.value.reason == "DataStoreDenied"
    assert site.requests == []


def test_redirect_to_a_private_address_is_refused(site: Site, tmp_path: Path) -> None:
    site.redirect = "http://169.254.169.254/latest/meta-data/"
    with pytest.raises(FetchFailed, match=r"169\.254\.169\.254"):
        Fetching(tmp_path, site.url())()
    site.redirect = "file:///etc/passwd"
    with pytest.raises(FetchFailed, match="no http or https"):
        Fetching(tmp_path, site.url())()
    site.redirect = "/data.bin"
    with pytest.raises(FetchFailed, match="too many redirects"):
        Fetching(tmp_path, site.url())()


@pytest.mark.parametrize(("status", "reason"), [(404, "DataNotFound"), (403, "DataStoreDenied")])
def test_permanent_error_is_not_tried_again(site: Site, tmp_path: Path, status: int, reason: str) -> None:
    site.status = status
    with pytest.raises(FetchFailed) as refused:
        Fetching(tmp_path, site.url())()
    assert (refused.value.reason, len(site.requests)) == (reason, 1)


def test_data_store_that_stays_away_is_an_outage_and_not_the_job_s_fault(site: Site, tmp_path: Path) -> None:
    site.status = 503
    fetch = Fetching(tmp_path, site.url())
    fetch.progress.wait = lambda seconds: None  # type: ignore[method-assign]
    with pytest.raises(FetchFailed, match="503") as refused:
        fetch()
    assert is_outage(refused.value.reason)
    site.status = 200
    assert fetch()[0].read_bytes() == site.content


def test_file_larger_than_allowed_is_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed) as refused:
        Fetching(tmp_path, site.url())(HelperSettings(http_allow=("127.0.0.1",), http_max_bytes=1000))
    assert refused.value.reason == "DataTooLarge"


def _leave_no_room(fetch: Fetching) -> None:
    """Keeps more free than the disk has: other tests fill and free it at the same time."""
    disk = os.statvfs(fetch.root)
    fetch.assignment = replace(fetch.assignment, data_keep_free=2 * disk.f_blocks * disk.f_frsize)


@pytest.mark.parametrize("says_length", [True, False])
def test_file_that_would_fill_the_machines_disk_is_an_outage_and_leaves_nothing(
    site: Site,
    tmp_path: Path,
    says_length: bool,  # noqa: FBT001
) -> None:
    site.content = bytes(2**20) * 64
    site.says_length = says_length
    fetch = Fetching(tmp_path, site.url())
    _leave_no_room(fetch)
    with pytest.raises(FetchFailed, match=r"data\.bin needs .* GiB more") as refused:
        fetch()
    assert refused.value.reason == Outage.NO_SPACE
    assert list((tmp_path / "cache").rglob("part")) == []
    fetch.assignment = replace(fetch.assignment, data_keep_free=0)
    path, _ = fetch()
    assert path.stat().st_size == len(site.content)


def test_interrupted_download_for_which_the_disk_has_no_room_any_more_is_removed(site: Site, tmp_path: Path) -> None:
    fetch = Fetching(tmp_path, site.url())
    site.break_after = 300_000
    check = fetch.progress.report

    def stop(message: str) -> None:
        if "trying again" in message:
            fetch.progress.cancel()
        check(message)

    fetch.progress.report = stop  # type: ignore[method-assign]
    with pytest.raises(FetchCancelled):
        fetch()
    assert len(list((tmp_path / "cache").rglob("part"))) == 1
    fetch.progress = FetchProgress()
    _leave_no_room(fetch)
    with pytest.raises(FetchFailed):
        fetch()
    assert list((tmp_path / "cache").rglob("part")) == []


def test_stop_ends_a_download(site: Site, tmp_path: Path) -> None:
    fetch = Fetching(tmp_path, site.url())
    fetch.progress.cancel()
    with pytest.raises(FetchCancelled):
        fetch()


def test_address_without_a_file_name_is_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="names no file"):
        Fetching(tmp_path, site.url("/"))()
