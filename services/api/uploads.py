"""Code on its way in: spooled to a file while its digest is counted, checked, then put where its digest says.

The digest is known only at the end, and nothing is kept that was not checked; so bytes lie in ``uploads/`` first, and
the object store gets them whole. Nothing half-made stays: the file goes with the request, and what a killed process
left is swept when the next one starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from services.core.domain.errors import Duplicate, NoSpace, TooLarge
from services.core.formats import archive
from services.core.ports.object_store import ObjectStore

_BLOCK: Final = 2**20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Code:
    """A checked archive that still lies in the spool."""

    digest: str
    """``sha256:<hex>``."""
    size: int


def code_key(tenant: str, digest: str) -> str:
    """Where the object store keeps a tenant's code."""
    return f"tenants/{tenant}/code/{digest.removeprefix('sha256:')}"


class Uploads:
    """All that come in now. ``folder`` is this process's own."""

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def open(self) -> None:
        """Makes the folder, empty."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._folder.iterdir():
            left.unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def receive(self) -> AsyncGenerator[Upload]:
        file = await _in_thread(self._create)
        try:
            yield Upload(file, self._max_bytes)
        finally:
            with contextlib.suppress(OSError):  # a full disk may fail the last flush: the bytes are worthless by now
                file.close()
            Path(file.name).unlink(missing_ok=True)

    def _create(self) -> BinaryIO:
        descriptor, path = tempfile.mkstemp(dir=self._folder)
        return open(path, "w+b", buffering=0, closefd=True, opener=lambda *_: descriptor)


class Upload:
    def __init__(self, file: BinaryIO, max_bytes: int) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._hash = hashlib.sha256()
        self._size = 0
        self._block = bytearray()

    @property
    def size(self) -> int:
        return self._size

    async def write(self, data: bytes) -> None:
        """TooLarge beyond the limit, NoSpace where the disk is full."""
        self._size += len(data)
        if self._size > self._max_bytes:
            raise TooLarge(
                f"the code archive is larger than {self._max_bytes} bytes; leave data out of it (.weftignore), "
                "and bring it in as data_stores"
            )
        self._block += data
        if len(self._block) >= _BLOCK:
            await self._flush()

    async def finish(self) -> Code:
        """Checks the archive. InvalidArchive where it is not a sound zip."""
        block, self._block = self._block, bytearray()
        await _in_thread(lambda: self._checked(block))  # in one go: each way to a thread and back costs
        return Code(f"sha256:{self._hash.hexdigest()}", self._size)

    async def store(self, objects: ObjectStore, key: str) -> None:
        """Durable when this returns. The same code again is not written again."""
        if await objects.head(key) is not None:
            return
        with contextlib.suppress(Duplicate):  # somebody else was first with the same bytes
            await objects.put(key, self._chunks(), create_only=True)

    async def _chunks(self) -> AsyncIterator[bytes]:
        for start in range(0, self._size, _BLOCK):
            yield await _in_thread(partial(os.pread, self._file.fileno(), _BLOCK, start))

    def _checked(self, rest: bytearray) -> None:
        self._append(rest)
        archive.inspect(self._file)

    async def _flush(self) -> None:
        if self._block:
            block, self._block = self._block, bytearray()
            await _in_thread(lambda: self._append(block))

    def _append(self, block: bytearray) -> None:
        self._hash.update(block)
        rest = memoryview(block)
        while rest:
            rest = rest[os.write(self._file.fileno(), rest) :]


async def _in_thread(work: Callable[[], _T]) -> _T:
    try:
        return await asyncio.to_thread(work)
    except OSError as failed:
        if failed.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise NoSpace("there is no space left for uploads; nothing was kept", retry_after_s=60) from None
        raise
