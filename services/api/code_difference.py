"""Which files differ between two code archives, by the checksums in their directories: no file is unpacked."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import Mapping
from typing import Final

from services.api.artifacts import CODE, Artifacts
from services.core.domain.errors import NotFound
from services.core.domain.job import Job

MOST_BYTES: Final = 64 * 2**20
"""A larger archive is not read for a comparison."""


async def changed_files(artifacts: Artifacts, a: Job, b: Job) -> dict[str, str] | None:
    """Path -> added, removed or changed, from the code of ``a`` to that of ``b``. None if one is missing or too large
    to be compared.
    """
    if a.code_digest == b.code_digest and a.tenant == b.tenant:
        return {}
    files_a, files_b = await _files(artifacts, a), await _files(artifacts, b)
    if files_a is None or files_b is None:
        return None
    changes: dict[str, str] = {}
    for path in sorted({*files_a, *files_b}):
        if path not in files_a:
            changes[path] = "added"
        elif path not in files_b:
            changes[path] = "removed"
        elif files_a[path] != files_b[path]:
            changes[path] = "changed"
    return changes


async def _files(artifacts: Artifacts, job: Job) -> Mapping[str, tuple[int, int]] | None:
    """Path -> (checksum, size)."""
    if not job.code_digest:
        return {}
    try:
        archive = await artifacts.find(job, CODE)
    except NotFound:
        return None
    if archive.meta.size > MOST_BYTES:
        return None
    content = bytearray()
    async for chunk in artifacts.read(archive, start=0, end=archive.meta.size):
        content += chunk
    return await asyncio.to_thread(_directory, bytes(content))


def _directory(content: bytes) -> Mapping[str, tuple[int, int]] | None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {entry.filename: (entry.CRC, entry.file_size) for entry in archive.infolist() if not entry.is_dir()}
    except zipfile.BadZipFile:
        return None
