"""Comparing the code of two jobs: what is read of the archives, and how many comparisons run at a time."""

from __future__ import annotations

import asyncio
import io
import tracemalloc
import zipfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.api import code_difference
from services.api.artifacts import Artifacts
from services.api.code_difference import CodeDifferences
from services.api.instrumentation import Instrumentation
from services.core.adapters.folder.objects import FolderObjectStore
from services.core.domain.errors import ResourceExhausted
from services.core.domain.job import Job
from services.core.use_cases.code_removal import code_key
from tests.documents import a_job
from tests.waiting import HANG_S

MIB = 2**20


class Reads(FolderObjectStore):
    """Counts the bytes that are read."""

    count = 0

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        async for chunk in super().get(key, start=start, end=end):
            self.count += len(chunk)
            yield chunk


@pytest.fixture
def objects(tmp_path: Path) -> Reads:
    return Reads.make(tmp_path)


@pytest.fixture
def differences(objects: Reads) -> CodeDifferences:
    return CodeDifferences(Artifacts(objects, Instrumentation(CollectorRegistry())))


def packed(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


async def with_code(objects: Reads, digest: str, content: bytes) -> Job:
    async def chunks() -> AsyncIterator[bytes]:
        yield content

    job = a_job(code_digest=f"sha256:{digest * 64}")
    await objects.put(code_key(job.tenant, job.code_digest), chunks())
    return job


async def test_a_hundred_comparisons_of_large_code_at_once_do_not_fill_the_memory(
    objects: Reads, differences: CodeDifferences
) -> None:
    weights = bytes(8 * MIB)
    a = await with_code(objects, "a", packed({"weights": weights, "train.py": b"1"}))
    b = await with_code(objects, "b", packed({"weights": weights, "train.py": b"2"}))
    del weights

    async def compare() -> dict[str, str] | None:
        async with differences.turn("acme"):
            return await differences.changed_files(a, b)

    tracemalloc.start()
    try:
        results = await asyncio.gather(*(compare() for _ in range(100)), return_exceptions=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    busy = [result for result in results if isinstance(result, ResourceExhausted)]
    assert len(busy) == 84
    assert "tenant acme compares 16 pairs of jobs now" in busy[0].message
    assert [result for result in results if result not in busy] == [{"train.py": "changed"}] * 16
    assert peak < 4 * MIB
    assert await compare() == {"train.py": "changed"}  # there is room again


async def test_one_tenant_that_compares_many_jobs_keeps_no_other_waiting(differences: CodeDifferences) -> None:
    async with asyncio.timeout(HANG_S):
        async with differences.turn("acme"):
            second = asyncio.create_task(enter(differences, "acme"))
            await asyncio.sleep(0)
            await enter(differences, "other")
            assert not second.done()
        await second


async def test_comparisons_of_all_tenants_at_a_time_are_bounded(differences: CodeDifferences) -> None:
    async with differences.turn("a"), differences.turn("b"), differences.turn("c"):
        async with differences.turn("d"):
            waiting = asyncio.create_task(enter(differences, "e"))
            await asyncio.sleep(0.01)
            assert not waiting.done()
        await asyncio.wait_for(waiting, HANG_S)


async def enter(differences: CodeDifferences, tenant: str) -> None:
    async with differences.turn(tenant):
        pass


async def test_only_the_ends_of_archives_are_read_however_many_files_they_have(
    objects: Reads, differences: CodeDifferences
) -> None:
    files = {f"{'folder' * 10}/{number:04}.py": b"x" * 500 for number in range(5_000)}
    a = await with_code(objects, "a", packed({"weights": bytes(8 * MIB), **files}))
    b = await with_code(objects, "b", packed({"weights": bytes(8 * MIB), **files, "new.py": b""}))
    assert await differences.changed_files(a, b) == {"new.py": "added"}
    assert objects.count < 2 * MIB


async def test_archives_that_cannot_be_compared_are_none(
    objects: Reads, differences: CodeDifferences, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = await with_code(objects, "a", packed({"a.py": b"x" * 1000}))
    assert await differences.changed_files(good, await with_code(objects, "b", b"PK no zip")) is None
    assert await differences.changed_files(good, await with_code(objects, "c", b"")) is None
    missing = a_job(code_digest="sha256:" + "d" * 64)
    assert await differences.changed_files(good, missing) is None
    assert await differences.changed_files(missing, good) is None
    monkeypatch.setattr(code_difference, "MOST_BYTES", 1000)
    assert await differences.changed_files(good, a_job()) is None
    monkeypatch.undo()
    monkeypatch.setattr(code_difference, "_END_BYTES", 30)
    monkeypatch.setattr(code_difference, "_MOST_END_BYTES", 50)
    assert await differences.changed_files(good, a_job()) is None
    monkeypatch.setattr(code_difference, "_MOST_END_BYTES", 500_000)
    assert await differences.changed_files(good, a_job()) == {"a.py": "removed"}
