"""Which files differ between two code archives, by the checksums in their directories.

Only the end of an archive is read, where its directory is: no file is unpacked, and an archive is never in memory as a
whole. A tenant compares one pair of jobs at a time, and all together a few.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from services.api.artifacts import CODE, Artifact, Artifacts
from services.core.domain.errors import InvalidArchive, NotFound, ResourceExhausted
from services.core.domain.job import Job
from services.core.formats.archive import listing

MOST_BYTES: Final = 64 * 2**20
"""A larger archive is not compared."""
_END_BYTES: Final = 128 * 2**10
"""Read first of each archive: it has the directory of a thousand files."""
_MOST_END_BYTES: Final = 16 * 2**20
"""A directory of 10,000 files, the most that an archive may have, with the longest names takes 11 MB."""
_AT_A_TIME: Final = 4
"""Comparisons of all tenants: each takes twice ``_MOST_END_BYTES`` at most."""
_MOST_OF_TENANT: Final = 16
"""Comparisons of one tenant that run or wait."""
_BUSY_S: Final = 1.0


class CodeDifferences:
    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts
        self._of_tenant: Counter[str] = Counter()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By tenant: one that compares many jobs keeps no other tenant waiting."""
        self._places = asyncio.Semaphore(_AT_A_TIME)

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncGenerator[None]:
        """Waits until the tenant may compare two jobs, which are to be read inside: who waits holds no memory.

        Raises ResourceExhausted for a tenant that has many comparisons waiting.
        """
        running = self._of_tenant[tenant]
        if running >= _MOST_OF_TENANT:
            raise ResourceExhausted(
                f"tenant {tenant} compares {running} pairs of jobs now, which is the most; try again",
                retry_after_s=_BUSY_S,
            )
        self._of_tenant[tenant] += 1
        lock = self._turns.setdefault(tenant, asyncio.Lock())
        try:
            async with lock, self._places:
                yield
        finally:
            self._of_tenant[tenant] -= 1
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]

    async def changed_files(self, a: Job, b: Job) -> dict[str, str] | None:
        """Path -> added, removed or changed, from the code of ``a`` to that of ``b``. None if one is missing or too
        large to be compared. Call it inside ``turn``.
        """
        if a.code_digest == b.code_digest and a.tenant == b.tenant:
            return {}
        files_a = await self._files(a)
        files_b = await self._files(b) if files_a is not None else None
        if files_a is None or files_b is None:
            return None
        return await asyncio.to_thread(_changes, files_a, files_b)

    async def _files(self, job: Job) -> Mapping[str, tuple[int, int]] | None:
        """Path -> (checksum, size)."""
        if not job.code_digest:
            return {}
        try:
            archive = await self._artifacts.find(job, CODE)
            size = archive.meta.size
            start = max(0, size - _END_BYTES)
            while size <= MOST_BYTES and size - start <= _MOST_END_BYTES:
                end = await self._end_of(archive, start)
                try:
                    return await asyncio.to_thread(_listed, end, start)
                except _Before as before:
                    del end
                    start = before.offset
        except (NotFound, InvalidArchive):
            return None
        return None

    async def _end_of(self, archive: Artifact, start: int) -> bytes:
        return b"".join([chunk async for chunk in self._artifacts.read(archive, start=start, end=archive.meta.size)])


class _Before(Exception):
    """The reader wants bytes from this offset on, which is before the end that was read."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class _End(io.BytesIO):
    """The end of a file from ``start`` on, with the offsets of the whole file. Raises ``_Before``."""

    def __init__(self, content: bytes, start: int) -> None:
        super().__init__(content)
        self._start = start

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence != os.SEEK_SET:
            return super().seek(offset, whence) + self._start
        if offset < self._start:
            raise _Before(offset)
        return super().seek(offset - self._start) + self._start


def _listed(content: bytes, start: int) -> Mapping[str, tuple[int, int]]:
    return {entry.name: (entry.crc, entry.size) for entry in listing(_End(content, start)) if not entry.folder}


def _changes(a: Mapping[str, tuple[int, int]], b: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    changes: dict[str, str] = {}
    for path in sorted({*a, *b}):
        if path not in a:
            changes[path] = "added"
        elif path not in b:
            changes[path] = "removed"
        elif a[path] != b[path]:
            changes[path] = "changed"
    return changes
