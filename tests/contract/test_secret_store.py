"""Contract of every SecretStore."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from services.core.adapters.encrypted import EncryptedSecretStore, MasterKeyFile
from services.core.adapters.folder.secrets import FolderSecretStore
from services.core.adapters.mongo import MongoRecordStore
from services.core.adapters.sqlite import SqliteRecordStore
from services.core.domain.errors import InvalidRequest, NoSpace, PermissionDenied, Unavailable
from services.core.ports.record_store import RecordStore
from services.core.ports.secret_store import SecretStore
from tests.contract.hostile import TEXTS, Refusal, attempt


class World(Protocol):
    """One set of secrets and its users."""

    async def another(self) -> SecretStore:
        """The store as another process uses it."""
        ...

    async def close(self) -> None: ...


class InFolder:
    def __init__(self, root: Path) -> None:
        self.root = root

    async def another(self) -> SecretStore:
        return FolderSecretStore(self.root)

    async def close(self) -> None: ...

    def files(self) -> list[Path]:
        return [path for path in self.root.rglob("*") if not path.is_dir()]


class Encrypted:
    """In a record store; all users have the same master key file."""

    def __init__(self, open_records: Callable[[], Awaitable[RecordStore]], key: Path) -> None:
        self.open_records, self.key = open_records, key
        self.opened: list[RecordStore] = []

    async def another(self) -> SecretStore:
        self.opened.append(await self.open_records())
        return await EncryptedSecretStore.open(self.opened[-1], MasterKeyFile(self.key, made_here=True))

    async def close(self) -> None:
        for records in self.opened:
            await records.close()


@pytest.fixture(params=["folder", "encrypted-sqlite", "encrypted-mongo"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[World]:
    world: World
    if request.param == "folder":
        world = InFolder(tmp_path / "secrets")
    elif request.param == "encrypted-sqlite":
        world = Encrypted(lambda: SqliteRecordStore.open(tmp_path / "records.sqlite"), tmp_path / "keys" / "master-key")
    else:
        request.getfixturevalue("long_mongo_timeouts")
        uri = request.getfixturevalue("mongo_uri")
        world = Encrypted(lambda: MongoRecordStore.open(uri), tmp_path / "keys" / "master-key")
    yield world
    await world.close()


@pytest.fixture
def in_folder(tmp_path: Path) -> InFolder:
    return InFolder(tmp_path / "secrets")


@pytest.mark.parametrize("value", [b"", b"\x00\xff\n", b"x" * 200_000], ids=len)
async def test_a_stored_secret_is_read_by_all_processes(world: World, value: bytes) -> None:
    ours, theirs = await world.another(), await world.another()
    assert await theirs.get("admin-key") is None
    await ours.put("admin-key", b"the first")
    await ours.put("admin-key", value)
    assert await theirs.get("admin-key") == value
    assert await theirs.get("another") is None


async def test_get_or_create_keeps_an_existing_secret(world: World) -> None:
    store = await world.another()
    assert await store.get_or_create("k", b"first") == b"first"
    assert await store.get_or_create("k", b"second") == b"first"
    await store.put("k", b"third")
    assert await store.get_or_create("k", b"fourth") == b"third"


async def test_racing_creators_get_the_same_value(world: World) -> None:
    stores = [await world.another() for _ in range(4)]
    for name in ("a", "b", "c"):
        values = await asyncio.gather(*[stores[n % 4].get_or_create(name, str(n).encode()) for n in range(16)])
        assert len(set(values)) == 1
        assert await stores[0].get(name) == values[0]


async def test_a_deleted_secret_is_gone(world: World) -> None:
    store = await world.another()
    await store.put("k", b"x")
    await store.delete("k")
    await store.delete("k")
    assert await store.get("k") is None
    assert await store.get_or_create("k", b"y") == b"y"


async def test_different_names_never_collide(world: World) -> None:
    store = await world.another()
    names = ["a/b", "a%2Fb", "..", ".", ".new", "../x", "=", "a b", "A B", "ä", "\n", "\x00"]
    for name in names:
        await store.put(name, name.encode())
    assert [await store.get(name) for name in names] == [name.encode() for name in names]


async def test_names_are_listed_by_their_prefix(world: World) -> None:
    store = await world.another()
    assert await store.names() == []
    names = ["a", "a/", "a/b", "a/c d", "a0", "ab", "b/a/b"]
    for name in reversed(names):
        await store.put(name, b"x")
    assert sorted(await store.names()) == names
    assert await store.names("a/") == ["a/", "a/b", "a/c d"]
    assert await store.names("a/b") == ["a/b"]
    assert await store.names("c") == []
    await store.delete("a/b")
    assert await store.names("a/") == ["a/", "a/c d"]
    with pytest.raises(InvalidRequest):
        await store.names("\ud800")


async def test_many_secrets_are_all_listed(world: World) -> None:
    store = await world.another()
    names = [f"a/{number:03d}" for number in range(120)]
    for name in [*names, "a", "b"]:
        await store.put(name, b"x")
    assert await store.names("a/") == names


@pytest.mark.parametrize("name", ["", "x" * 300, "ä" * 50, "\ud800"])
async def test_an_invalid_name_is_refused(world: World, name: str) -> None:
    store = await world.another()
    with pytest.raises(InvalidRequest):
        await store.put(name, b"x")
    with pytest.raises(InvalidRequest):
        await store.get_or_create(name, b"x")
    with pytest.raises(InvalidRequest):
        await store.get(name)
    with pytest.raises(InvalidRequest):
        await store.delete(name)


async def test_a_hostile_name_is_kept_exactly_or_refused(world: World) -> None:
    store = await world.another()
    await store.put("other", b"o")
    for text, name in TEXTS.items():
        if isinstance(await attempt(store.put(name, b"x")), Refusal):
            assert not 1 <= len(name) <= 80 or "surrogate" in text or text == "emoji"
            for call in (store.get(name), store.get_or_create(name, b"y"), store.delete(name)):
                assert isinstance(await attempt(call), Refusal)
        else:
            assert await store.get(name) == b"x"
            assert await store.get_or_create(name, b"y") == b"x"
            await store.delete(name)
            assert await store.get(name) is None
        assert await store.get("other") == b"o"


async def test_a_value_of_10_mb_is_kept_exactly_or_refused(world: World) -> None:
    store = await world.another()
    await store.put("k", b"before")
    value = os.urandom(10_000_000)
    if isinstance(await attempt(store.put("k", value)), Refusal):
        value = b"before"
    assert await store.get("k") == value
    await store.put("k", b"after")
    assert await store.get("k") == b"after"


# --- in a folder ---------------------------------------------------------------


async def test_only_the_owner_can_read_files_with_any_umask(in_folder: InFolder) -> None:
    in_folder.root.mkdir(mode=0o777)
    before = os.umask(0)
    try:
        store = await in_folder.another()
        await store.put("../k", b"x")
    finally:
        os.umask(before)
    assert in_folder.root.stat().st_mode & 0o777 == 0o700
    (file,) = in_folder.files()
    assert file.parent == in_folder.root
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_full_disk_is_reported_and_changes_nothing(in_folder: InFolder) -> None:
    store = await in_folder.another()
    await store.put("k", b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
        with pytest.raises(NoSpace):
            await store.put("k", b"x" * 2**21)
        with pytest.raises(NoSpace):
            await store.get_or_create("l", b"x" * 2**21)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await store.get("k") == b"before"
    assert len(in_folder.files()) == 1


async def test_files_of_dead_writers_are_swept(in_folder: InFolder) -> None:
    await (await in_folder.another()).put("k", b"x")
    (in_folder.root / ".new" / "half").write_bytes(b"hal")
    store = await in_folder.another()
    assert [file.name for file in in_folder.files()] == ["=k"]
    assert await store.get("k") == b"x"


async def test_a_link_is_no_secret(in_folder: InFolder, tmp_path: Path) -> None:
    store = await in_folder.another()
    (tmp_path / "outside").write_bytes(b"o")
    (in_folder.root / "=k").symlink_to(tmp_path / "outside")
    with pytest.raises(Unavailable) as caught:
        await store.get("k")
    assert "=k" not in caught.value.message
    await store.put("k", b"mine")
    assert (tmp_path / "outside").read_bytes() == b"o"


def test_an_unusable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable):
        FolderSecretStore(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_user_s_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    os.chown(tmp_path / "secrets", 12345, -1)
    with pytest.raises(PermissionDenied):
        FolderSecretStore(tmp_path / "secrets")
