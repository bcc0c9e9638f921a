"""Data of type s3 from a server that lies in its list, redirects, or is not allowed: nothing is written elsewhere."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from services.core.domain.plan import Input
from services.core.domain.tokens import LearnerIdentity
from services.helper.fetch import s3_data
from services.helper.fetch.progress import FetchFailed, FetchProgress
from services.helper.fetch.s3_data import fetch_s3
from services.helper.fetch.versions import DataVersions
from services.helper.metrics_client import IntakeClient
from services.helper.objects import UrlSigner
from services.helper.settings import HelperSettings
from services.node.caches import Caches
from tests.documents import an_assignment
from tests.testbed.identities import SIGNER
from tests.testbed.intake import Intake
from tests.testbed.server import free_address, own_uid

LOCAL = HelperSettings(http_allow=("127.0.0.0/8",))
SIGNATURE = "X-Amz-Signature=canary"


class Site(ThreadingHTTPServer):
    """A bucket ``bucket`` of objects, in pages of two, and what a hostile server does instead."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.status, self.error = 200, ""
        self.list: bytes | None = None
        self.gets: list[str] = []
        """Keys of objects that were requested; empty for a list."""
        self.hosts: set[str] = set()
        """That requests named."""
        self.cuts = 0
        """So many bodies end half-way."""
        self.first_line = b""
        """Sent in the place of an answer."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def page(self, after: str) -> bytes:
        keys = sorted(self.objects)
        start = int(after or 0)
        listed = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size>"
            f"<ETag>&quot;{hash(self.objects[key])}&quot;</ETag></Contents>"
            for key in keys[start : start + 2]
        )
        more = start + 2 < len(keys)
        token = f"<NextContinuationToken>{start + 2}</NextContinuationToken>" if more else ""
        flag = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        return f'<ListBucketResult xmlns="http://s3/">{listed}{flag}{token}</ListBucketResult>'.encode()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site = self.server
        assert isinstance(site, Site)
        url = urlsplit(self.path)
        key = unquote(url.path).removeprefix("/bucket").removeprefix("/")
        site.gets.append(key)
        site.hosts.add(self.headers["Host"])
        if site.first_line:
            self.wfile.write(site.first_line)
            return
        status, body = site.status, site.error.encode()
        if status == 200 and not key:
            body = site.list if site.list is not None else site.page(parse_qs(url.query).get("after", [""])[0])
        elif status == 200:
            body = site.objects[key]
        self.send_response(status)
        if status == 307:
            self.send_header("Location", "http://127.0.0.1:1/")
        if key and status == 200:
            self.send_header("ETag", f'"{hash(body)}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if site.cuts:
            site.cuts -= 1
            body = body[: len(body) // 2]
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


class Fetching:
    """Fetches for learners, each of another attempt, over a connection to a server for helpers."""

    def __init__(self, root: Path, site: Site, signer: UrlSigner) -> None:
        self.entry = Input(mount="d", type="s3", location=f"{site.endpoint}/bucket/", secret="photos")
        self.root, self.signer, self.calls = root, signer, 0
        self.endpoint = site.endpoint
        self.assignment = an_assignment(uid=own_uid(), gid=own_uid(), cache=str(root / "cache"))
        self.progress = FetchProgress()

    def sign(self, endpoint: str) -> None:
        """The store has this endpoint."""
        self.endpoint = endpoint
        self.entry = Input(mount="d", type="s3", location=f"{endpoint}/bucket/", secret="photos")

    async def __call__(self, settings: HelperSettings = LOCAL) -> dict[str, bytes]:
        """The files that the learner gets."""
        self.calls += 1
        target = self.root / "outer" / str(self.calls)
        target.parent.mkdir(exist_ok=True)
        versions = DataVersions(self.root / f"attempt-{self.calls}")

        def fetch() -> str:
            return fetch_s3(
                self.entry,
                target,
                self.assignment,
                settings=settings,
                versions=versions,
                progress=self.progress,
                signer=self.signer,
            )

        await asyncio.to_thread(fetch)
        return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}

    async def refused(self, settings: HelperSettings = LOCAL) -> FetchFailed:
        """Why nothing is fetched. Nothing was written, and the message has nothing of a signed URL."""
        with pytest.raises(FetchFailed) as failed:
            await self(settings)
        assert not [path for path in self.root.rglob("*") if path.is_file() and "body" in path.name]
        assert "canary" not in failed.value.message
        return failed.value


@pytest.fixture
async def fetch(tmp_path: Path, site: Site) -> AsyncGenerator[Fetching]:
    intake = Intake(free_address())
    await intake.start()
    addresses = tmp_path / "addresses.json"
    addresses.write_text(f'{{"metrics": "{intake.address}"}}')
    identity = LearnerIdentity(job="j0", tenant="acme", attempt=1, role="worker", rank=0, name="worker-0")
    client = IntakeClient(addresses, SIGNER.mint(identity))
    signer = UrlSigner()
    signer.use(client)
    fetching = Fetching(tmp_path, site, signer)
    intake.sign_data = lambda _, key, after: f"{fetching.endpoint}/bucket/{quote(key)}?after={after}&{SIGNATURE}"
    yield fetching
    await client.close()
    await intake.stop()


async def test_all_pages_are_fetched_and_unchanged_objects_once(site: Site, fetch: Fetching) -> None:
    site.objects = {f"{number}/x y&<ü": b"a" * number for number in range(1, 6)} | {"folder/": b""}
    expected = {key: content for key, content in site.objects.items() if key != "folder/"}
    assert await fetch() == expected
    site.gets.clear()
    assert await fetch() == expected
    assert site.gets == ["", "", ""], "only the list is read again"
    site.objects["1/x y&<ü"] = b"changed"
    assert (await fetch())["1/x y&<ü"] == b"changed"


@pytest.mark.parametrize(
    "keys",
    [
        ["../x"],
        ["a/../../x"],
        ["/x"],
        ["a//x"],
        ["./x"],
        ["a\nb"],
        ["n" * 256],
        ["a", "a/b"],
        ["full/"],
    ],
    ids=str,
)
async def test_names_that_are_no_files_below_the_folder_are_refused(
    site: Site, fetch: Fetching, keys: list[str]
) -> None:
    site.objects = dict.fromkeys(keys, b"x")
    failure = await fetch.refused()
    assert failure.reason == "DataStoreDenied"
    assert "has a name that no file can have" in failure.message


async def test_object_that_the_list_should_not_have_is_refused(site: Site, fetch: Fetching) -> None:
    fetch.entry = Input(mount="d", type="s3", location=f"{site.endpoint}/bucket/mine/", secret="photos")
    site.objects = {"foreign/x": b"x"}
    assert "a list that cannot be read" in (await fetch.refused()).message


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<a",
        b"<a><Contents><Key>k</Key><Size>-1</Size></Contents></a>",
        b"<a><Contents><Key>k</Key></Contents></a>",
        b'<!DOCTYPE a [<!ENTITY b "c">]><a><Contents><Key>&b;</Key><Size>1</Size></Contents></a>',
        b"<a><IsTruncated>true</IsTruncated></a>",
        b"<a>" + b" " * (16 * 2**20) + b"</a>",
        b"<a>" + b"<b/>" * 200_000 + b"</a>",
    ],
    ids=["empty", "broken", "negative", "no-size", "entities", "no-token", "large", "many-elements"],
)
async def test_a_list_that_is_none_is_refused(site: Site, fetch: Fetching, text: bytes) -> None:
    site.list = text
    assert "a list that cannot be read" in (await fetch.refused()).message


async def test_a_list_without_end_is_refused(site: Site, fetch: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    site.list = f"<a>{more}</a>".encode()
    assert "does not end" in (await fetch.refused()).message
    site.list = f"<a><Contents><Key>k</Key><Size>1</Size></Contents>{more}</a>".encode()
    assert "does not end" in (await fetch.refused()).message
    site.list = None
    monkeypatch.setattr(s3_data, "MOST_OBJECTS", 3)
    site.objects = {str(number): b"x" for number in range(4)}
    assert (await fetch.refused()).reason == "DataTooLarge"


async def test_keys_and_folders_beyond_what_a_helper_keeps_in_memory_are_refused(
    site: Site, fetch: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_data, "_KEYS", 300)
    site.objects = {"k" * 200: b"x", "l" * 200: b"x"}
    assert (await fetch.refused()).reason == "DataTooLarge"
    monkeypatch.setattr(s3_data, "_KEYS", 16 * 2**20)
    monkeypatch.setattr(s3_data, "MOST_OBJECTS", 10)
    site.objects = {f"{number}/" + "d/" * 6 + "f": b"x" for number in range(2)}
    failure = await fetch.refused()
    assert (failure.reason, "in too many folders" in failure.message) == ("DataTooLarge", True)


async def test_objects_that_are_too_large_together_are_refused(site: Site, fetch: Fetching) -> None:
    site.objects = {"a": b"x" * 6, "b": b"x" * 6}
    failure = await fetch.refused(HelperSettings(http_allow=LOCAL.http_allow, http_max_bytes=10))
    assert failure.reason == "DataTooLarge"
    assert "WEFT_HTTP_MAX_BYTES" in failure.message


async def test_objects_that_are_larger_than_their_list_says_are_refused(site: Site, fetch: Fetching) -> None:
    site.objects = {str(number): b"x" * 6 for number in range(3)}
    listed = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in site.objects)
    site.list = f"<a>{listed}</a>".encode()
    settings = HelperSettings(http_allow=LOCAL.http_allow, http_max_bytes=10)
    with pytest.raises(FetchFailed) as failed:
        await fetch(settings)
    assert failed.value.reason == "DataTooLarge"
    assert site.gets == ["", "0", "1"]


async def test_object_is_fetched_although_the_cache_removes_its_place_all_the_time(
    site: Site, fetch: Fetching, tmp_path: Path
) -> None:
    site.objects = {str(number): b"x" for number in range(50)}
    caches, ended = Caches(tmp_path / "cache", 0, list), threading.Event()

    def remove() -> None:
        while not ended.is_set():
            caches.bound()

    removing = asyncio.create_task(asyncio.to_thread(remove))
    try:
        for _ in range(5):
            assert await fetch() == site.objects
    finally:
        ended.set()
        await removing
    caches.bound()
    assert not list((tmp_path / "cache/data/t").iterdir()), "nothing of a removed file is left"


async def test_object_is_fetched_although_the_cache_removes_its_place_as_the_helper_makes_it(
    site: Site, fetch: Fetching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user saw: fetching failed: [Errno 17] File exists."""
    site.objects = {"a": b"one"}
    assert await fetch() == site.objects
    (place,) = (tmp_path / "cache/data/t").iterdir()
    make = os.mkdir
    removed: list[Path] = []

    def remove_existing(path: str | Path, *options: Any, **named: Any) -> None:
        try:
            make(path, *options, **named)
        except FileExistsError:
            if Path(path) == place and not removed:
                Caches(tmp_path / "cache", 0, list).bound()
                removed.append(place)
            raise

    monkeypatch.setattr("os.mkdir", remove_existing)
    assert await fetch() == site.objects
    assert removed == [place]


async def test_list_whose_connection_breaks_is_read_again(site: Site, fetch: Fetching) -> None:
    site.objects = {"a": b"one"}
    site.cuts = 1
    assert await fetch() == site.objects


@pytest.mark.parametrize("site_name", ["127.0.0.1", "LOCALHOST"])
async def test_request_names_the_host_that_was_signed(site: Site, fetch: Fetching, site_name: str) -> None:
    """Otherwise the store refuses the signature, and the message blames a correct secret."""
    place = f"{site_name}:{site.server_port}"
    site.objects = {"a": b"one"}
    fetch.sign(f"http://{place}")
    assert await fetch(HelperSettings(http_allow=("127.0.0.0/8", "::1"))) == site.objects
    assert site.hosts == {place}


async def test_words_of_the_server_enter_no_message(site: Site, fetch: Fetching) -> None:
    site.first_line = f"canary {SIGNATURE}\r\n".encode()
    assert "BadStatusLine" in (await fetch.refused()).message


async def test_address_that_the_operator_has_not_allowed_gets_no_request(site: Site, fetch: Fetching) -> None:
    site.objects = {"a": b"x"}
    failure = await fetch.refused(HelperSettings())
    assert failure.reason == "DataStoreDenied"
    assert "WEFT_HTTP_ALLOW" in failure.message
    assert site.gets == []


@pytest.mark.parametrize(
    ("status", "code", "reason", "says"),
    [
        (307, "", "DataNotFound", "correct `endpoint` and `region`"),
        (400, "AuthorizationHeaderMalformed", "DataNotFound", "correct `endpoint` and `region`"),
        (403, "SignatureDoesNotMatch", "SecretInvalid", "refuses the secret key"),
        (403, "canary", "SecretInvalid", "answers 403; correct the secret 'photos'"),
        (404, "NoSuchBucket", "DataNotFound", "no such bucket or object"),
    ],
)
async def test_each_refusal_of_the_server_says_what_to_correct(
    site: Site, fetch: Fetching, status: int, code: str, reason: str, says: str
) -> None:
    site.status, site.error = status, f"<Error><Code>{code}</Code><Key>canary</Key></Error>"
    failure = await fetch.refused()
    assert failure.reason == reason
    assert says in failure.message


async def test_no_object_below_the_path_is_an_error(fetch: Fetching) -> None:
    assert (await fetch.refused()).reason == "DataNotFound"
