"""Uploads of code: written to a spool file while the digest is computed, checked, then stored under the digest.

The digest is known only at the end, and nothing unchecked is stored. So the bytes are in ``uploads/`` first, and the
object store gets them complete. The spool file is removed with the request; files of a killed process are removed when
the next one starts.
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
    """A checked archive in the spool."""

    digest: str
    """``sha256:<hex>``."""
    size: int


class Uploads:
    """The spool. ``folder`` belongs to this process alone."""

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def open(self) -> None:
        """Makes the folder, and empties it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def receive(self) -> AsyncGenerator[Upload]:
        """A new upload; its file is removed when the context ends."""
        file = await _in_thread(self._create)
        try:
            yield Upload(file, self._max_bytes)
        finally:
            with contextlib.suppress(OSError):  # a full disk may fail the last flush; the bytes are no longer needed
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
        """Appends to the file. Raises TooLarge beyond the limit, NoSpace if the disk is full."""
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
        """Checks the archive, and returns its digest and size. Raises InvalidArchive."""
        block, self._block = self._block, bytearray()
        await _in_thread(lambda: self._checked(block))  # one call: each switch to a thread and back costs time
        return Code(f"sha256:{self._hash.hexdigest()}", self._size)

    async def store(self, objects: ObjectStore, key: str) -> None:
        """Stores the archive under the key; it is durable when this returns. Existing code is not written again."""
        if await objects.head(key) is not None:
            return
        with contextlib.suppress(Duplicate):  # another request stored the same bytes first
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
    """Runs ``work`` in a thread. Raises NoSpace if the disk is full."""
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise NoSpace("there is no space left for uploads; nothing was kept", retry_after_s=60) from None
        raise
