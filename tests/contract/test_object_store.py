"""Contract of every ObjectStore."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.core.adapters.folder.objects import STAGING, FolderObjectStore
from services.core.adapters.s3.objects import S3ObjectStore
from services.core.domain.errors import Conflict, Duplicate, InvalidRequest, NoSpace, NotFound, Unavailable
from services.core.ports.object_store import ObjectMeta, ObjectStore
from tests.contract.hostile import TEXTS, Refusal, attempt
from tests.testbed.s3 import S3
from tests.waiting import until

ROOT = Path(__file__).parents[2]
MIB = 2**20
_numbers = itertools.count(1)


class World(Protocol):
    """One set of objects and its users."""

    def another(self) -> ObjectStore:
        """The store as another process uses it."""
        ...


class InFolder:
    def __init__(self, root: Path) -> None:
        self.root = root
        FolderObjectStore.make(root)

    def another(self) -> ObjectStore:
        return FolderObjectStore(self.root)

    def everything(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")} - {STAGING}


class InBucket:
    def __init__(self, s3: S3, name: str) -> None:
        self._bucket = s3.bucket(name)

    def another(self) -> ObjectStore:
        return S3ObjectStore(self._bucket)


NewWorld = Callable[[], World]


@pytest.fixture(params=["folder", "s3"])
def new_world(request: pytest.FixtureRequest, tmp_path: Path) -> NewWorld:
    """Creates worlds without objects."""
    if request.param == "folder":
        return lambda: InFolder(tmp_path / f"objects-{next(_numbers)}")
    s3: S3 = request.getfixturevalue("s3")
    return lambda: InBucket(s3, f"contract-{next(_numbers)}")


@pytest.fixture
def world(new_world: NewWorld) -> World:
    return new_world()


@pytest.fixture
def store(world: World) -> ObjectStore:
    return world.another()


@pytest.fixture
def in_folder(tmp_path: Path) -> InFolder:
    return InFolder(tmp_path / "objects")


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def put(store: ObjectStore, key: str, *chunks: bytes, create_only: bool = False) -> ObjectMeta:
    await store.put(key, stream(*chunks), create_only=create_only)
    meta = await store.head(key)
    assert meta is not None
    return meta


async def read(store: ObjectStore, key: str, *, start: int = 0, end: int | None = None) -> bytes:
    return b"".join([chunk async for chunk in store.get(key, start=start, end=end)])


def keys(entries: Sequence[ObjectMeta]) -> list[str]:
    return [meta.key for meta in entries]


# --- writing and reading -------------------------------------------------------


@pytest.mark.parametrize("chunks", [[], [b""], [b"a", b"", b"bc"], [b"x" * 700_001] * 5], ids=len)
async def test_a_stored_object_is_read_by_all_processes(world: World, chunks: list[bytes]) -> None:
    ours, theirs = world.another(), world.another()
    meta = await put(ours, "tenants/t/a b/ü.bin", *chunks)
    whole = b"".join(chunks)
    assert await read(theirs, meta.key) == whole
    assert (meta.key, meta.size) == ("tenants/t/a b/ü.bin", len(whole))
    assert await theirs.head(meta.key) == meta


async def test_an_object_is_read_in_chunks_of_at_most_a_mebibyte(store: ObjectStore) -> None:
    await put(store, "k", b"x" * (2 * MIB + 5))
    sizes = [len(chunk) async for chunk in store.get("k")]
    assert sum(sizes) == 2 * MIB + 5
    assert max(sizes) <= MIB


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, b"0123456789"),
        (3, None, b"3456789"),
        (3, 5, b"34"),
        (0, 0, b""),
        (5, 3, b""),
        (8, 99, b"89"),
        (10, None, b""),
        (99, None, b""),
    ],
)
async def test_a_range_is_read(store: ObjectStore, start: int, end: int | None, expected: bytes) -> None:
    await put(store, "k", b"0123456789")
    assert await read(store, "k", start=start, end=end) == expected


async def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    await put(store, "a/b", b"1")
    for key in ("a", "a/c", "a/b/c", "b/c/d"):
        assert await store.head(key) is None
        with pytest.raises(NotFound):
            await read(store, key)


async def test_a_put_replaces_an_object(store: ObjectStore) -> None:
    first = await put(store, "k", b"one")
    second = await put(store, "k", b"second")
    assert second.etag != first.etag
    assert await read(store, "k") == b"second"


async def test_create_only_never_replaces_an_object(store: ObjectStore) -> None:
    await put(store, "a/k", b"one", create_only=True)
    with pytest.raises(Duplicate):
        await put(store, "a/k", b"two", create_only=True)
    assert await read(store, "a/k") == b"one"


async def test_one_of_sixteen_racing_creators_of_an_object_wins(world: World) -> None:
    stores = [world.another() for _ in range(4)]
    outcomes = await asyncio.gather(
        *[put(stores[n % 4], "a/b/k", str(n).encode(), create_only=True) for n in range(16)], return_exceptions=True
    )
    assert Counter(type(outcome) for outcome in outcomes) == {ObjectMeta: 1, Duplicate: 15}
    winner = next(n for n, outcome in enumerate(outcomes) if isinstance(outcome, ObjectMeta))
    assert await read(stores[0], "a/b/k") == str(winner).encode()


async def test_an_object_is_visible_only_when_complete(store: ObjectStore) -> None:
    go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"x" * (2 * MIB)
        go_on.set()
        await more.wait()
        yield b"y"

    more = asyncio.Event()
    writing = asyncio.create_task(store.put("t/k", slowly()))
    await go_on.wait()
    assert await store.head("t/k") is None
    assert await store.list("t/") == []
    more.set()
    await writing
    assert keys(await store.list("t/")) == ["t/k"]


async def test_a_reader_gets_the_old_object_while_it_is_replaced(store: ObjectStore) -> None:
    await put(store, "k", b"a" * (3 * MIB))
    reader = store.get("k")
    received = await anext(reader)
    await put(store, "k", b"b")
    await store.delete("k")
    async for chunk in reader:
        received += chunk
    assert received == b"a" * (3 * MIB)


async def test_a_failed_source_leaves_nothing(store: ObjectStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * (2 * MIB)
        raise ConnectionResetError("the uploader went away")

    with pytest.raises(ConnectionResetError):
        await store.put("t/k", broken())
    assert await store.head("t/k") is None


# --- listing and deleting ------------------------------------------------------


async def test_objects_are_listed_by_key_below_their_prefix(store: ObjectStore) -> None:
    # '-' and '.' sort before '/', digits after it: a simple walk by folders gets this wrong.
    names = ["a-b", "a.b", "a/c", "a/d/e", "a0", "b", "ü"]
    for name in reversed(names):
        await put(store, f"t/{name}", b"x")
    await put(store, "tt/x", b"x")
    await put(store, "u", b"x")
    assert keys(await store.list("t/")) == [f"t/{name}" for name in names]
    assert keys(await store.list("t/a/")) == ["t/a/c", "t/a/d/e"]
    assert await store.list("t/b/") == []
    assert await store.list("nothing/at/all/") == []


NAMES = st.lists(st.sampled_from(["a", "b", "a-", "a.b", "0", "é"]), min_size=1, max_size=3).map("/".join)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.sets(NAMES, max_size=12), limit=st.integers(1, 4))
def test_pages_form_the_sorted_list(names: set[str], limit: int, new_world: NewWorld) -> None:
    async def check() -> None:
        store = new_world().another()
        stored: set[str] = set()
        for name in names:
            try:
                stored.add((await put(store, f"t/{name}", b"x")).key)
            except Conflict:
                continue  # a folder cannot hold both t/a and t/a/b
        collected: list[str] = []
        while page := await store.list("t/", after=collected[-1] if collected else None, limit=limit):
            assert len(page) <= limit
            collected += keys(page)
        assert collected == sorted(stored)

    asyncio.run(check())


async def test_a_deleted_object_is_gone(store: ObjectStore) -> None:
    await put(store, "a/b/c", b"x")
    await put(store, "a/d", b"x")
    await store.delete("a/b/c")
    await store.delete("a/b/c")
    await store.delete("a")
    assert await store.head("a/b/c") is None
    assert keys(await store.list("a/")) == ["a/d"]
    await put(store, "a/b", b"now an object where a folder was")


async def test_delete_prefix_deletes_exactly_the_objects_below_it(store: ObjectStore) -> None:
    for key in ("t/a/1", "t/a/b/2", "t/a/b/c/3", "t/ab", "t/b/4"):
        await put(store, key, b"x")
    assert await store.delete_prefix("t/a/") == 3
    assert await store.delete_prefix("t/a/") == 0
    assert keys(await store.list("t/")) == ["t/ab", "t/b/4"]


async def test_concurrent_puts_and_deletes_in_one_folder_succeed(world: World) -> None:
    stores = [world.another() for _ in range(2)]

    async def come_and_go(number: int) -> None:
        for _ in range(20):
            await put(stores[number % 2], f"t/deep/er/{number}", b"x")
            await stores[number % 2].delete(f"t/deep/er/{number}")
        await put(stores[0], f"t/deep/er/{number}", b"x")

    await asyncio.gather(*[come_and_go(number) for number in range(6)])
    assert len(await stores[0].list("t/")) == 6


BAD_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "a/./b",
    "a\x00b",
    "a\nb",
    "a\x7f",
    "\ud800",
    "a\uffff",
    "é" * 513,
]


@pytest.mark.parametrize("key", BAD_KEYS)
async def test_an_invalid_key_is_refused_by_every_method(store: ObjectStore, key: str) -> None:
    with pytest.raises(InvalidRequest):
        await put(store, key, b"x")
    with pytest.raises(InvalidRequest):
        await store.head(key)
    with pytest.raises(InvalidRequest):
        await read(store, key)
    with pytest.raises(InvalidRequest):
        await store.delete(key)


@pytest.mark.parametrize("prefix", ["", "/", "a", "../", "a/../", "a//"])
async def test_an_invalid_prefix_is_refused(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(InvalidRequest):
        await store.list(prefix)
    with pytest.raises(InvalidRequest):
        await store.delete_prefix(prefix)


@pytest.mark.parametrize(
    "key", ["a/" * 511 + "a", "ä" * 127, "Screen Shot 9\u202fAM", "👩\u200d🔬.png", "-rf", "~", "a\\b"]
)
async def test_an_unusual_key_is_valid(store: ObjectStore, key: str) -> None:
    await put(store, "t/" + key if len(key) < 1000 else key, b"x")
    top = "t/" if len(key) < 1000 else "a/"
    assert [len(meta.key) for meta in await store.list(top)] == [len(key) + 2 * (len(key) < 1000)]
    assert await store.delete_prefix(top) == 1


async def test_a_healthy_store_answers_a_ping(store: ObjectStore) -> None:
    await store.ping()


# --- in a folder ---------------------------------------------------------------


async def test_a_failed_or_refused_put_leaves_no_file(in_folder: InFolder) -> None:
    store = in_folder.another()
    await put(store, "t/k", b"x")

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * (2 * MIB)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await store.put("t/l/m", broken())
    with pytest.raises(Duplicate):
        await put(store, "t/k", b"x", create_only=True)
    with pytest.raises(Conflict):
        await put(store, "t/k/l", b"x")
    with pytest.raises(Conflict):
        await put(store, "t", b"x")
    with pytest.raises(InvalidRequest, match="255"):
        await put(store, "t/" + "x" * 256, b"x")
    assert in_folder.everything() == {"t", "t/k"}


async def test_a_cancelled_put_leaves_no_file(in_folder: InFolder) -> None:
    store = in_folder.another()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * MIB

    writing = asyncio.create_task(store.put("t/k", endless()))
    await until(lambda: [path for path in (in_folder.root / STAGING).iterdir() if path.stat().st_size])
    writing.cancel()
    await asyncio.wait([writing])
    assert writing.cancelled()
    assert in_folder.everything() == set()


async def test_a_full_disk_is_reported_and_leaves_no_file(in_folder: InFolder) -> None:
    store = in_folder.another()
    await put(store, "t/k", b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MIB, hard))
        for create_only in (False, True):
            with pytest.raises(NoSpace):
                await put(store, "t/new/k", *[b"x" * MIB] * 5, create_only=create_only)
        with pytest.raises(NoSpace):
            await put(store, "t/k", b"x" * (4 * MIB))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert in_folder.everything() == {"t", "t/k"}
    assert await read(store, "t/k") == b"before"


WRITER = """
import asyncio, sys
from pathlib import Path
from services.core.adapters.folder.objects import FolderObjectStore

async def chunks():
    yield b"x" * 2**21
    print("written", flush=True)
    await asyncio.Event().wait()

asyncio.run(FolderObjectStore(Path(sys.argv[1])).put("t/k", chunks()))
"""


async def test_files_of_dead_writers_are_swept_and_others_are_not(in_folder: InFolder) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * (2 * MIB)
        killed.send_signal(signal.SIGKILL)
        await killed.wait()
        assert len(list(staging.iterdir())) == 2
        await in_folder.another().ping()
        assert len(list(staging.iterdir())) == 1
        yield b"y"

    staging = in_folder.root / STAGING
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(in_folder.root), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert killed.stdout is not None
    assert await killed.stdout.readline() == b"written\n"
    await in_folder.another().put("t/living", chunks())
    assert list(staging.iterdir()) == []
    assert [(meta.key, meta.size) for meta in await in_folder.another().list("t/")] == [("t/living", 2 * MIB + 1)]


async def test_no_link_is_followed(in_folder: InFolder, tmp_path: Path) -> None:
    store = in_folder.another()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    await put(store, "t/k", b"x")
    (in_folder.root / "t" / "folder").symlink_to(outside)
    (in_folder.root / "t" / "file").symlink_to(outside / "secret")
    os.mkfifo(in_folder.root / "t" / "pipe")

    for key in ("t/folder/secret", "t/file", "t/pipe", "t/folder"):
        assert await store.head(key) is None
        with pytest.raises(NotFound):
            await read(store, key)
    assert keys(await store.list("t/")) == ["t/k"]
    assert await store.list("t/folder/") == []
    with pytest.raises(Conflict):
        await put(store, "t/folder/new", b"x")
    await store.delete("t/folder/secret")
    assert await store.delete_prefix("t/folder/") == 0
    await put(store, "t/file", b"mine")
    assert await store.delete_prefix("t/") == 2
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"secret": "s"}


async def test_files_whose_names_are_no_keys_are_not_listed(in_folder: InFolder) -> None:
    store = in_folder.another()
    await put(store, "t/k", b"x")
    for name in (b"\xff\xfe", b"new\nline"):
        (in_folder.root / "t" / os.fsdecode(name)).touch()
    assert keys(await store.list("t/")) == ["t/k"]


async def test_the_staging_folder_is_no_key(in_folder: InFolder) -> None:
    store = in_folder.another()
    with pytest.raises(InvalidRequest, match="reserved"):
        await put(store, f"{STAGING}/x", b"x")
    with pytest.raises(InvalidRequest, match="reserved"):
        await store.delete_prefix(f"{STAGING}/")


async def test_only_the_owner_can_read_objects(in_folder: InFolder) -> None:
    await put(in_folder.another(), "t/k", b"x")
    assert (in_folder.root / "t").stat().st_mode & 0o777 == 0o700
    assert (in_folder.root / "t" / "k").stat().st_mode & 0o777 == 0o600


async def test_a_missing_root_is_unavailable_not_empty(in_folder: InFolder) -> None:
    store = in_folder.another()
    await put(store, "t/k", b"x")
    in_folder.root.rename(in_folder.root.with_name("away"))
    for coroutine in (store.ping(), store.head("t/k"), store.list("t/"), put(store, "t/l", b""), read(store, "t/k")):
        with pytest.raises(Unavailable):
            await coroutine


@pytest.mark.parametrize("mount_point", ["missing", "empty"])
async def test_store_that_is_not_mounted_after_a_reboot_is_unavailable_and_never_made_again(
    in_folder: InFolder, mount_point: str
) -> None:
    await put(in_folder.another(), "t/k", b"x")
    root, volume = in_folder.root, in_folder.root.with_name("volume")
    root.rename(volume)
    if mount_point == "empty":
        root.mkdir()
    store = FolderObjectStore(root)
    for coroutine in (
        store.ping(),
        store.head("t/k"),
        store.list("t/"),
        put(store, "t/l", b""),
        read(store, "t/k"),
        store.delete("t/k"),
        store.delete_prefix("t/"),
    ):
        with pytest.raises(Unavailable, match="mount its volume"):
            await coroutine
    assert not root.exists() or list(root.iterdir()) == []
    if mount_point == "empty":
        root.rmdir()
    volume.rename(root)
    assert await read(store, "t/k") == b"x"


async def test_an_unusable_root_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Unavailable):
            FolderObjectStore.make(root)
        with pytest.raises(Unavailable):
            await FolderObjectStore(root).ping()


PLAIN_KEYS = {"override", "emoji", "dollar", "number", "quotes"}


async def test_a_hostile_key_is_stored_exactly_or_refused(store: ObjectStore) -> None:
    await put(store, "tenants/t/other", b"o")
    for text, hostile in TEXTS.items():
        for key in (f"tenants/t/{hostile}", f"tenants/{hostile}/x", f"tenants/t/a{hostile}b"):
            meta = await attempt(put(store, key, b"x"))
            if isinstance(meta, Refusal):
                assert text not in PLAIN_KEYS
                for call in (store.head(key), store.delete(key), read(store, key), put(store, key, create_only=True)):
                    assert isinstance(await attempt(call), Refusal)
            else:
                assert meta.key == key
                assert await store.head(key) == meta
                assert await read(store, key) == b"x"
                assert key in keys(await store.list("tenants/"))
                assert key in keys(await store.list(key.rpartition("/")[0] + "/"))
                with pytest.raises(Duplicate):
                    await put(store, key, b"y", create_only=True)
                await store.delete(key)
            assert keys(await store.list("tenants/")) == ["tenants/t/other"]


async def test_a_hostile_prefix_or_cursor_lists_nothing_else_or_is_refused(store: ObjectStore) -> None:
    await put(store, "tenants/t/other", b"o")
    for text, hostile in TEXTS.items():
        for prefix in (f"{hostile}/", f"tenants/{hostile}/"):
            for call in (store.list(prefix), store.delete_prefix(prefix)):
                result = await attempt(call)
                if isinstance(result, Refusal):
                    assert text not in PLAIN_KEYS
                else:
                    assert not result
        page = await attempt(store.list("tenants/t/", after=hostile))
        if isinstance(page, Refusal):
            assert text not in PLAIN_KEYS
        else:
            assert keys(page) == (["tenants/t/other"] if hostile < "tenants/t/other" else []), text
        assert keys(await store.list("tenants/t/")) == ["tenants/t/other"]


async def test_space_that_is_kept_for_the_platform_is_not_used_by_objects(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    FolderObjectStore.make(tmp_path)
    with pytest.raises(NoSpace, match="kept for the platform"):
        await put(FolderObjectStore(tmp_path, keep_free=2 * free), "t/k", b"x")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".weft-staging"]
    await put(FolderObjectStore(tmp_path, keep_free=1), "t/k", b"x")
