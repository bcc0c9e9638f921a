"""Objects on S3 beyond the port: uploads, lost replies, and servers that die, are away, full or unsuitable."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.adapters.s3.bucket import Bucket, Credentials, bucket, read_credentials
from services.core.adapters.s3.objects import S3ObjectStore
from services.core.adapters.s3.signing import Signer
from services.core.adapters.s3.transfer import PART_BYTES, part_bytes
from services.core.adapters.s3.unfinished import sweep
from services.core.adapters.s3.wire import Wire
from services.core.domain.errors import Duplicate, InvalidRequest, NoSpace, NotFound, Unavailable
from services.core.ports.object_urls import ObjectRequest
from tests.testbed.proxy import Proxy, proxied
from tests.testbed.s3 import REGION, S3
from tests.waiting import HANG_S, tries_within, until

ROOT = Path(__file__).parents[2]
MIB = 2**20
LARGE = 2 * PART_BYTES + 5


async def some(size: int, *, at: int = 0, do: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    """``size`` bytes, each mebibyte different; sets the event after ``at`` bytes."""
    for place in range(0, size, MIB):
        if do is not None and place >= at:
            do.set()
        yield bytes([place // MIB % 251]) * min(MIB, size - place)


async def read(store: S3ObjectStore, key: str) -> bytes:
    return b"".join([chunk async for chunk in store.get(key)])


def whole(size: int) -> bytes:
    return b"".join(bytes([place // MIB % 251]) * min(MIB, size - place) for place in range(0, size, MIB))


async def unfinished(place: Bucket) -> list[str]:
    """Keys of unfinished uploads."""
    wire = Wire()
    answer = await wire.send("GET", Signer(place).sign("GET", "", {"uploads": ""}))
    wire.close()
    return re.findall(r"<Key>([^<]*)</Key>", answer.body.decode())


@pytest.fixture
def store(s3_bucket: Bucket) -> S3ObjectStore:
    return S3ObjectStore(s3_bucket)


@pytest.fixture
def full_s3(s3_binary: Path, tmp_path: Path) -> Iterator[S3]:
    """A server with little space."""
    server = S3(s3_binary, tmp_path / "s3", volume_mib=40)
    server.start()
    yield server
    server.kill()


# --- objects --------------------------------------------------------------------------------------------------------


async def test_two_installations_share_a_bucket_by_their_prefixes(s3: S3) -> None:
    ours, theirs = (S3ObjectStore(s3.bucket("shared", prefix)) for prefix in ("one/a b", "two"))
    for store in (ours, theirs):
        await store.put("t/100% +~ü", some(3))
        await store.ping()
    assert [meta.key for meta in await ours.list("t/", after="t/0")] == ["t/100% +~ü"]
    assert await ours.delete_prefix("t/") == 1
    assert await ours.head("t/100% +~ü") is None
    assert [meta.key for meta in await theirs.list("t/")] == ["t/100% +~ü"]
    assert [meta.key for meta in await S3ObjectStore(s3.bucket("shared")).list("two/t/")] == ["two/t/100% +~ü"]


async def test_a_large_object_is_written_in_parts_with_and_without_its_size(store: S3ObjectStore) -> None:
    for key, size in (("told", LARGE), ("untold", None)):
        await store.put(key, some(LARGE), size=size)
        meta = await store.head(key)
        assert meta is not None
        assert meta.etag.endswith("-3")
        assert await read(store, key) == whole(LARGE)


def test_parts_are_never_too_many_and_never_too_small() -> None:
    for size in (0, PART_BYTES, 2**30, 5 * 2**40):
        size_of_part = part_bytes(1, size)
        assert size_of_part >= PART_BYTES
        assert -(-size // size_of_part) <= 10_000
    assert sum(part_bytes(number, None) for number in range(1, 10_001)) > 5 * 2**40


async def test_a_large_object_is_created_once(store: S3ObjectStore, s3_bucket: Bucket) -> None:
    outcomes = await asyncio.gather(
        *(store.put("t/k", some(LARGE + n), create_only=True) for n in range(4)), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Duplicate"] * 3 + ["NoneType"]
    assert await unfinished(s3_bucket) == []


async def test_stored_objects_survive_a_kill_of_the_server(own_s3: S3) -> None:
    store = S3ObjectStore(own_s3.bucket())
    for number in range(5):
        await store.put(f"t/{number}", some(LARGE if number == 4 else number))
        own_s3.kill()
        own_s3.start()
    assert [meta.size for meta in await store.list("t/")] == [0, 1, 2, 3, LARGE]
    assert await read(store, "t/4") == whole(LARGE)


MOVES = """
import asyncio, resource, sys
from services.core.adapters.s3.bucket import Credentials, bucket
from services.core.adapters.s3.objects import S3ObjectStore

async def chunks():
    for _ in range(200):
        yield bytes(2**20)

async def main():
    uri, endpoint, region, *credentials = sys.argv[1:]
    store = S3ObjectStore(bucket(uri, endpoint=endpoint, region=region, credentials=Credentials(*credentials)))
    await store.put("small", chunks_of_one())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await store.put("large", chunks())
    size = 0
    async for chunk in store.get("large"):
        size += len(chunk)
    print(size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

async def chunks_of_one():
    yield b"x"

asyncio.run(main())
"""


async def test_moving_a_large_object_takes_little_memory(s3: S3, s3_bucket: Bucket) -> None:
    credentials = s3_bucket.credentials
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        MOVES,
        f"s3://{s3_bucket.name}",
        s3.endpoint,
        REGION,
        credentials.access_key,
        credentials.secret_key,
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    out, _ = await process.communicate()
    size, grown_kib = map(int, out.split())
    assert size == 200 * MIB
    assert grown_kib < 100 * 1024


# --- uploads that fail -----------------------------------------------------------------------------------------------


async def test_a_source_that_fails_in_the_middle_of_an_upload_leaves_nothing(
    store: S3ObjectStore, s3_bucket: Bucket
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        async for chunk in some(LARGE):
            yield chunk
        assert await unfinished(s3_bucket) == ["t/k"]
        raise ConnectionResetError("the uploader went away")

    with pytest.raises(ConnectionResetError):
        await store.put("t/k", broken())
    assert await unfinished(s3_bucket) == []
    assert await store.list("t/") == []


async def test_a_cancelled_upload_is_aborted(store: S3ObjectStore, s3_bucket: Bucket) -> None:
    begun = asyncio.Event()
    writing = asyncio.create_task(store.put("t/k", some(100 * PART_BYTES, at=LARGE, do=begun)))
    await begun.wait()
    assert await unfinished(s3_bucket) == ["t/k"]
    writing.cancel()
    await asyncio.wait([writing])
    assert writing.cancelled()
    assert await unfinished(s3_bucket) == []


async def test_old_unfinished_uploads_are_swept_and_others_are_not(s3: S3) -> None:
    ours, theirs = s3.bucket("swept", "ours"), s3.bucket("swept", "theirs")
    wire = Wire()
    for place in (ours, theirs):
        await wire.send("POST", Signer(place).url(ObjectRequest("begin", "t/ü k")))
    wire.close()
    assert await sweep(ours) == 0
    assert len(await unfinished(ours)) == 2
    assert await sweep(ours, older_than_s=-5) == 1  # ages are by the server's clock, in whole seconds
    assert await unfinished(ours) == ["theirs/t/ü k"]


# --- lost replies ----------------------------------------------------------------------------------------------------


def through(proxy: Proxy, place: Bucket) -> S3ObjectStore:
    return S3ObjectStore(replace(place, endpoint=f"http://{proxy.address}"))


@pytest.mark.parametrize("create_only", [False, True])
@pytest.mark.parametrize(
    ("size", "marker"),
    [(5, b"PUT /"), (LARGE, b"uploads="), (LARGE, b"partNumber=2"), (LARGE, b"<CompleteMultipartUpload>")],
)
async def test_a_request_with_a_lost_reply_is_repeated_and_recognised_as_ours(
    s3: S3, s3_bucket: Bucket, size: int, marker: bytes, monkeypatch: pytest.MonkeyPatch, *, create_only: bool
) -> None:
    # It is not repeated if it took longer than two seconds, as a part of eight mebibytes may on a busy machine.
    monkeypatch.setattr("services.core.adapters.s3.transfer._RETRY_FOR_S", HANG_S)
    async with proxied(f"127.0.0.1:{s3.port}") as proxy:
        store = through(proxy, s3_bucket)
        proxy.lose_answer_to(marker)
        await store.put("t/k", some(size), create_only=create_only)
        assert proxy.connections > 1
        assert await read(store, "t/k") == whole(size)
        with pytest.raises(Duplicate):
            await store.put("t/k", some(size), create_only=True)
    # The reply with the id of the first upload is lost: the sweep removes that upload.
    assert len(await unfinished(s3_bucket)) == (marker == b"uploads=")


async def test_an_interrupted_reader_gets_an_error(s3: S3, s3_bucket: Bucket) -> None:
    async with proxied(f"127.0.0.1:{s3.port}") as proxy:
        store = through(proxy, s3_bucket)
        await store.put("t/k", some(30 * MIB))
        reader = store.get("t/k")
        await anext(reader)
        proxy.cut()
        with pytest.raises(Unavailable):
            async for _ in reader:
                pass


# --- a server that is away, full, or refuses -------------------------------------------------------------------------


async def test_an_unreachable_server_is_unavailable_soon_and_used_at_once_when_it_returns(own_s3: S3) -> None:
    store = S3ObjectStore(own_s3.bucket())
    await store.put("t/k", some(5))
    own_s3.kill()
    outcomes: Sequence[object] = ()
    for stopwatch in tries_within(15):
        calls = (
            store.put("t/l", some(5)),
            store.head("t/k"),
            read(store, "t/k"),
            store.list("t/"),
            store.delete("t/k"),
            store.ping(),
        )
        with stopwatch:
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, Unavailable)
        assert "does not answer" in outcome.message
        assert outcome.retry_after_s
        assert own_s3.credentials.secret_key not in outcome.message
        assert "Signature" not in outcome.message
    own_s3.start()
    assert await read(store, "t/k") == whole(5)


async def test_a_server_killed_during_an_upload_leaves_no_partial_object(own_s3: S3) -> None:
    place = own_s3.bucket()
    store, sent = S3ObjectStore(place), asyncio.Event()

    async def killing() -> AsyncIterator[bytes]:
        async for chunk in some(LARGE, at=LARGE - MIB, do=sent):
            if sent.is_set():
                own_s3.kill()
            yield chunk

    await store.put("t/k", some(5))
    with pytest.raises(Unavailable):
        await store.put("t/k", killing())
    own_s3.start()
    assert await read(store, "t/k") == whole(5)
    await store.put("t/k", some(LARGE))
    assert await read(store, "t/k") == whole(LARGE)


async def test_a_paused_server_is_unavailable_within_the_timeout(own_s3: S3) -> None:
    store = S3ObjectStore(own_s3.bucket(), silence_s=1)
    own_s3.pause()
    asking = [asyncio.create_task(ask) for ask in (store.head("t/k"), store.put("t/k", some(5)))]
    done, late = await asyncio.wait(asking, timeout=HANG_S)
    own_s3.resume()
    assert not late
    for task in done:
        assert isinstance(task.exception(), Unavailable)


async def test_a_full_store_is_reported_and_leaves_nothing(full_s3: S3) -> None:
    place = full_s3.bucket()
    store = S3ObjectStore(place)
    await store.put("t/k", some(PART_BYTES))
    for create_only in (False, True):
        with pytest.raises(NoSpace, match="make room"):
            await store.put("t/new", some(50 * MIB), create_only=create_only)
    for number in range(100):
        try:
            await store.put(f"f/{number}", some(MIB))
        except NoSpace:
            break
    with pytest.raises(NoSpace):
        await store.put("t/k", some(PART_BYTES))
    assert await unfinished(place) == []
    assert [meta.key for meta in await store.list("t/")] == ["t/k"]
    assert await read(store, "t/k") == whole(PART_BYTES)
    assert await store.delete_prefix("f/") > 0
    await store.put("t/k", some(PART_BYTES))


async def test_a_wrong_bucket_or_wrong_credentials_are_reported_at_start_up(s3: S3) -> None:
    right = s3.bucket()
    await S3ObjectStore(right).ping()
    assert await S3ObjectStore(right).list("weft-check/") == []
    credentials = right.credentials
    for wrong, message in (
        (replace(right, name="not-there"), "bucket does not exist"),
        (replace(right, credentials=replace(credentials, secret_key="wrong")), "refuses the platform's credentials"),
        (replace(right, credentials=replace(credentials, access_key="wrong")), "refuses the platform's credentials"),
        (replace(right, region="us-gov-west-1"), "WEFT_S3_REGION"),
    ):
        with pytest.raises(InvalidRequest, match=message) as caught:
            await S3ObjectStore(wrong).ping()
        assert "WEFT_" in str(caught.value)
        assert credentials.secret_key not in str(caught.value)


async def test_a_store_that_overwrites_objects_is_refused(s3: S3, s3_bucket: Bucket) -> None:
    async with proxied(f"127.0.0.1:{s3.port}", instead=(b"If-None-Match", b"If-None-Macht")) as forgetful:
        with pytest.raises(InvalidRequest, match="If-None-Match"):
            await through(forgetful, s3_bucket).ping()


# --- URLs ------------------------------------------------------------------------------------------------------------


async def test_a_signed_url_is_valid_for_one_method_and_one_object(store: S3ObjectStore, s3_bucket: Bucket) -> None:
    await store.put("t/a b", some(3))
    await store.put("t/c", some(3))
    url = Signer(s3_bucket).url(ObjectRequest("get", "t/a b"))
    wire = Wire()
    assert (await wire.send("GET", url)).body == whole(3)
    for method, changed in (
        ("PUT", url),
        ("DELETE", url),
        ("GET", url.replace("a%20b", "c")),
        ("GET", url.replace("Expires=300", "Expires=900")),
        ("GET", url.partition("&X-Amz-Signature")[0]),
    ):
        assert (await wire.send(method, changed)).status in {400, 403}
    wire.close()


async def test_a_signed_url_expires(store: S3ObjectStore, s3_bucket: Bucket) -> None:
    await store.put("t/k", some(3))
    wire = Wire()
    past = Signer(s3_bucket).sign("GET", "t/k", {}, now=time.time() - 301)
    assert (await wire.send("GET", past)).status == 403
    wire.close()


def test_the_default_endpoint_is_amazon_s_in_the_region() -> None:
    place = bucket("s3://examples", endpoint="", region="eu-north-1", credentials=Credentials("AKEY", "secret"))
    url = Signer(place).sign("GET", "a/b c", {}, now=1369353600)
    assert url.startswith("https://s3.eu-north-1.amazonaws.com/examples/a/b%20c?X-Amz-Algorithm=AWS4-HMAC-SHA256")
    assert "X-Amz-Credential=AKEY%2F20130524%2Feu-north-1%2Fs3%2Faws4_request" in url
    assert "X-Amz-Date=20130524T000000Z&X-Amz-Expires=300&X-Amz-SignedHeaders=host&X-Amz-Signature=" in url
    assert "secret" not in url


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "endpoint", "message"),
    [
        ("s3:/bucket", "", "s3://bucket"),
        ("s3://", "", "no bucket"),
        ("s3://B", "", "no bucket"),
        ("s3://bucket/../x", "", "prefix"),
        ("s3://bucket/a//b", "", "prefix"),
        ("gs://bucket", "", "s3://bucket"),
        ("s3://bucket", "localhost:9000", "WEFT_S3_ENDPOINT"),
        ("s3://bucket", "http://u:p@host", "WEFT_S3_ENDPOINT"),
    ],
)
def test_an_invalid_bucket_or_endpoint_is_refused(uri: str, endpoint: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        bucket(uri, endpoint=endpoint, region="r", credentials=Credentials("a", "s"))


def test_credentials_come_from_a_file_and_are_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id = AKEY\naws_secret_access_key = a%secret\n")
    credentials = read_credentials(path)
    assert (credentials.access_key, credentials.secret_key, credentials.session_token) == ("AKEY", "a%secret", "")
    shown = repr(bucket("s3://bucket/p", endpoint="", region="r", credentials=credentials))
    assert "AKEY" not in shown
    assert "a%secret" not in shown
    path.write_text("[default]\naws_access_key_id AKEY a%secret\n")
    for wrong in (path, tmp_path / "none"):
        with pytest.raises(InvalidRequest, match="WEFT_S3_CREDENTIALS_FILE") as caught:
            read_credentials(wrong)
        assert "a%secret" not in str(caught.value)


def test_missing_credentials_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="WEFT_S3_SECRET_KEY"):
        bucket("s3://bucket", endpoint="", region="r", credentials=Credentials("", ""))


async def test_a_missing_object_differs_from_a_missing_bucket(s3: S3) -> None:
    store = S3ObjectStore(s3.bucket("comes-and-goes"))
    with pytest.raises(NotFound):
        await read(store, "t/k")
    (s3.data / "comes-and-goes").rename(s3.data / "gone-for-now")
    with pytest.raises(Unavailable, match="WEFT_OBJECT_STORE"):
        await read(store, "t/k")


async def test_a_put_waits_only_for_its_source(store: S3ObjectStore) -> None:
    go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"a"
        await go_on.wait()
        yield b"b"

    writing = asyncio.create_task(store.put("t/k", slowly()))
    assert [meta async for meta in _heads(store, 20)] == [None] * 20
    go_on.set()
    await writing
    await until(lambda: store.head("t/k"))


async def _heads(store: S3ObjectStore, count: int) -> AsyncIterator[object]:
    for _ in range(count):
        yield await store.head("t/k")


# --- proxies ---------------------------------------------------------------------------------------------------------


class ForwardProxy:
    """Forwards plain HTTP to one server, for any host in the request."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.requests: list[bytes] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        line, _, rest = head.partition(b"\r\n")
        method, url, version = line.split(b" ")
        target = b"/" + url.split(b"/", 3)[3]
        back.write(b" ".join((method, target, version)) + b"\r\nConnection: close\r\n" + rest)
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    writer.close()


async def test_the_environment_s_proxy_is_used_except_for_loopback(
    s3: S3, s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    passing = ForwardProxy(s3.port)
    server = await asyncio.start_server(passing.accept, "127.0.0.1", 0)
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://user:p%40ss@127.0.0.1:{server.sockets[0].getsockname()[1]}")
    far = replace(s3_bucket, endpoint=f"http://s3.invalid:{s3.port}")
    try:
        store = S3ObjectStore(far)
        await store.put("t/k", some(3))
        assert await read(store, "t/k") == whole(3)
        assert {head.split(b" ")[0] for head in passing.requests} >= {b"PUT", b"GET"}
        assert all(
            b"\r\nproxy-authorization: Basic dXNlcjpwQHNz\r\n".lower() in head.lower() for head in passing.requests
        )
        passing.requests.clear()
        assert await read(S3ObjectStore(s3_bucket), "t/k") == whole(3)
        await S3ObjectStore(s3_bucket).put("t/l", some(3))
        assert passing.requests == []
        monkeypatch.setenv("no_proxy", "s3.invalid")
        with pytest.raises(Unavailable):
            await S3ObjectStore(far).put("t/k", some(3))
        assert passing.requests == []
    finally:
        server.close()
