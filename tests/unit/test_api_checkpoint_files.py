"""Checkpoints in the list of a job's files: under their own names, of the newest snapshot, in pages."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.api import artifacts, checkpoint_files
from services.api.artifacts import Artifacts
from services.api.instrumentation import Instrumentation
from services.core.adapters.folder.objects import FolderObjectStore
from services.core.domain.checkpoint import (
    SavedFile,
    SnapshotRecord,
    dump_index,
    dump_manifest,
    index_key,
    manifest_key,
)
from services.core.domain.errors import NotFound
from services.core.domain.job import Job, new_job
from services.core.ports.object_store import ObjectMeta

JOB = "tenants/acme/jobs/j1/"


def a_job() -> Job:
    return new_job(
        job_id="j1", tenant="acme", user="ada", spec={}, code_digest="", idem="j1", idem_digest="", trace="", now=1
    )


class Stored:
    """Files of a job in a store."""

    def __init__(self, folder: Path) -> None:
        self.objects = FolderObjectStore.make(folder)
        self.artifacts = Artifacts(self.objects, Instrumentation(CollectorRegistry()))

    async def put(self, key: str, content: bytes) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield content

        await self.objects.put(JOB + key, chunks())

    async def snapshots(self, learner: str, *snapshots: dict[str, str], attempt: int = 1) -> None:
        """Path -> content, of each snapshot; the last one is incomplete if it has the path ``incomplete``."""
        base = f"attempts/{attempt}/checkpoints/{learner}"
        records = []
        for seq, content in enumerate(snapshots, 1):
            files = []
            for path, text in content.items():
                digest = hashlib.sha256(text.encode()).hexdigest()
                files.append(SavedFile(path, len(text), digest))
                await self.put(f"{base}/{digest}", text.encode())
            record = SnapshotRecord(
                seq=seq,
                time=seq,
                until=seq,
                final=False,
                complete="incomplete" not in content,
                files=len(files),
                size=0,
            )
            records.append(record)
            await self.put(manifest_key(base, seq), dump_manifest(record, files))
        await self.put(index_key(base), dump_index(records))

    async def paths(self, *, prefix: str = "", limit: int = 1000) -> list[str]:
        """All pages."""
        paths: list[str] = []
        after: str | None = None
        while True:
            page, after = await self.artifacts.list(a_job(), prefix=prefix, after=after, limit=limit)
            assert len(page) <= limit
            paths += [artifact.path for artifact in page]
            if after is None:
                return paths

    async def content(self, path: str) -> bytes:
        artifact = await self.artifacts.find(a_job(), path)
        chunks = self.artifacts.read(artifact, start=0, end=artifact.meta.size)
        return b"".join([chunk async for chunk in chunks])


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
async def test_files_are_listed_by_their_own_names_in_pages(stored: Stored, limit: int) -> None:
    await stored.snapshots("worker-0", {"old": "o", "s/1": "x"}, {"s/1": "x", "s/2": "y", "~": "z"})
    await stored.snapshots("worker-1", {"s/1": "x"}, attempt=2)
    await stored.put("attempts/1/checkpoints/worker-1.manifest.json", json.dumps({"files": [], "time": 1}).encode())
    await stored.put("attempts/1/checkpoints/worker-1/w", b"1")
    await stored.put("attempts/1/checkpoints/worker-2/" + "0" * 64, b"being stored")
    await stored.put("attempts/1/logs/learner-1/training-log.txt", b"")
    await stored.put("attempts/2/results/worker-0/m", b"")
    assert await stored.paths(limit=limit) == [
        "attempts/1/checkpoints/worker-0/s/1",
        "attempts/1/checkpoints/worker-0/s/2",
        "attempts/1/checkpoints/worker-0/~",
        "attempts/1/checkpoints/worker-1.manifest.json",
        "attempts/1/checkpoints/worker-1/w",
        "attempts/1/logs/learner-1/training-log.txt",
        "attempts/2/checkpoints/worker-1/s/1",
        "attempts/2/results/worker-0/m",
    ]


async def test_prefix_may_be_a_folder_of_a_checkpoint(stored: Stored) -> None:
    await stored.snapshots("worker-0", {"s/1": "x", "t/1": "y"})
    base = "attempts/1/checkpoints/worker-0/"
    assert await stored.paths(prefix=base) == [f"{base}s/1", f"{base}t/1"]
    assert await stored.paths(prefix=f"{base}t/") == [f"{base}t/1"]
    assert await stored.paths(prefix=f"{base}u/") == []


async def test_file_of_an_older_kept_snapshot_can_still_be_fetched(stored: Stored) -> None:
    await stored.snapshots("worker-0", {"step": "1", "old": "o"}, {"step": "2"}, {"step": "3", "incomplete": ""})
    base = "attempts/1/checkpoints/worker-0/"
    assert await stored.paths() == [f"{base}step"]
    assert await stored.content(f"{base}step") == b"2"
    assert await stored.content(f"{base}old") == b"o"
    with pytest.raises(NotFound):
        await stored.content(f"{base}none")


async def test_small_page_behind_many_objects_that_are_not_shown_needs_one_listing(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        await stored.put(f"attempts/1/checkpoints/worker-0/{number:064x}", b"being stored")
    for name in ("a", "b"):
        await stored.put(f"attempts/1/results/worker-0/{name}", b"")
    listings, listed = 0, stored.objects.list

    async def counted(prefix: str, *, after: str | None = None, limit: int = 1000) -> Sequence[ObjectMeta]:
        nonlocal listings
        listings += 1
        return await listed(prefix, after=after, limit=limit)

    monkeypatch.setattr(stored.objects, "list", counted)
    page, after = await stored.artifacts.list(a_job(), prefix="", after=None, limit=1)
    assert [artifact.path for artifact in page] == ["attempts/1/results/worker-0/a"]
    assert (after, listings) == ("attempts/1/results/worker-0/a", 1)


@pytest.mark.parametrize("listed", [1, 2, 3, 4])
@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_pages_miss_and_repeat_no_file_wherever_a_listing_ends(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, limit: int, listed: int
) -> None:
    monkeypatch.setattr(artifacts, "_LISTED", listed)
    await stored.snapshots("worker-0", {"s/1": "x", "s/2": "y"})
    for number in range(5):
        await stored.put(f"attempts/1/checkpoints/worker-1/{number:064x}", b"being stored")
    names = [f"attempts/1/results/worker-0/{name}" for name in "abcdefg"]
    for name in names:
        await stored.put(name, b"")
    checkpoints = [f"attempts/1/checkpoints/worker-0/s/{number}" for number in (1, 2)]
    assert await stored.paths(limit=limit) == [*checkpoints, *names]


@pytest.mark.slow
async def test_lists_of_checkpoints_with_many_files_do_not_fill_the_memory(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files_in_memory() -> int:
        gc.collect()
        return sum(type(thing) is SavedFile for thing in gc.get_objects())

    monkeypatch.setattr(checkpoint_files, "_CACHED_BYTES", 100_000)
    for rank in range(8):
        await stored.snapshots(f"worker-{rank}", {f"{number:03}.pt": "x" for number in range(200)})
    before = files_in_memory()
    assert len(await stored.paths()) == 8 * 200
    assert files_in_memory() - before <= 100_000 / 100
    monkeypatch.setattr(checkpoint_files, "_CACHED_BYTES", 10_000)
    assert len(await stored.paths(limit=100)) == 8 * 200


@pytest.mark.slow
async def test_a_hundred_lists_at_once_read_a_manifest_once(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    await stored.snapshots("worker-0", {f"{number:03}.pt": "x" for number in range(200)})
    read: list[str] = []
    get = stored.objects.get

    def counted(key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        read.append(key)
        return get(key, start=start, end=end)

    monkeypatch.setattr(stored.objects, "get", counted)
    pages = await asyncio.gather(*(stored.paths() for _ in range(100)))
    assert {len(paths) for paths in pages} == {200}
    assert sum(key.endswith("/1.json") for key in read) == 1
