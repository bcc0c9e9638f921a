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
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar
from weakref import WeakValueDictionary

from services.core.domain.errors import Duplicate, NoSpace, ResourceExhausted, TooLarge
from services.core.formats import archive
from services.core.ports.object_store import ObjectStore
from services.core.runtime.threads import in_thread, wait_to_end

REQUIREMENTS: Final = "requirements.txt"
_BLOCK: Final = 2**20
_BUSY_S: Final = 1.0
_INSPECTORS: Final = 4
"""Archives that are checked at a time, one of each tenant at most."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Code:
    """A checked archive in the spool."""

    digest: str
    """``sha256:<hex>``."""
    size: int
    has_requirements: bool
    """It has a ``requirements.txt`` in its uppermost folder."""


class Uploads:
    """The spool. ``folder`` belongs to this process alone."""

    def __init__(self, folder: Path, *, max_bytes: int, most: int, most_of_tenant: int) -> None:
        """``most``: uploads at a time; ``most_of_tenant``: those of one tenant."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._most, self._most_of_tenant = most, most_of_tenant
        self._running: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(_INSPECTORS, "inspect-code")
        """Archives are checked here: a large one takes seconds, and other threads serve all requests."""
        self._inspecting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By tenant: one that sends many large archives keeps no other tenant waiting."""

    @property
    def running(self) -> int:
        """Uploads now, of all tenants."""
        return self._running.total()

    def open(self) -> None:
        """Makes the folder, and empties it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @contextlib.asynccontextmanager
    async def receive(self, tenant: str) -> AsyncGenerator[Upload]:
        """A new upload; its file is removed when the context ends.

        Raises ResourceExhausted while the tenant, or all together, have as many uploads as they may have.
        """
        with self._counted(tenant):
            async with self._file() as file:
                yield Upload(file, self._max_bytes, partial(self._inspect, tenant))

    async def _inspect(self, tenant: str, work: Callable[[], None]) -> None:
        lock = self._inspecting.setdefault(tenant, asyncio.Lock())
        async with lock:
            await wait_to_end(asyncio.get_running_loop().run_in_executor(self._threads, work))

    @contextlib.contextmanager
    def _counted(self, tenant: str) -> Generator[None]:
        if self._running[tenant] >= self._most_of_tenant:
            raise ResourceExhausted(
                f"tenant {tenant} sends code {self._running[tenant]} times now, which is the most "
                "(WEFT_MAX_TENANT_UPLOADS); try again",
                retry_after_s=_BUSY_S,
            )
        if self.running >= self._most:
            raise ResourceExhausted(
                f"code is sent {self.running} times now, which is the most (WEFT_MAX_UPLOADS); try again",
                retry_after_s=_BUSY_S,
            )
        self._running[tenant] += 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]

    @contextlib.asynccontextmanager
    async def _file(self) -> AsyncGenerator[BinaryIO]:
        made: list[BinaryIO] = []
        try:
            await _in_thread(lambda: made.append(self._create()))
            yield made[0]
        finally:
            for file in made:
                with contextlib.suppress(OSError):  # a full disk may fail the last flush; the bytes are not needed
                    file.close()
                Path(file.name).unlink(missing_ok=True)

    def _create(self) -> BinaryIO:
        descriptor, path = tempfile.mkstemp(dir=self._folder)
        return open(path, "w+b", buffering=0, closefd=True, opener=lambda *_: descriptor)


class Upload:
    def __init__(
        self, file: BinaryIO, max_bytes: int, inspect: Callable[[Callable[[], None]], Awaitable[None]]
    ) -> None:
        """``inspect`` runs a check of an archive in a thread, at the turn of its tenant."""
        self._inspect = inspect
        self._file = file
        self._max_bytes = max_bytes
        self._hash = hashlib.sha256()
        self._size = 0
        self._block = bytearray()
        self._has_requirements = False

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
        with _no_space_errors():
            await self._inspect(lambda: self._checked(block))  # one call: each switch to a thread and back costs time
        return Code(f"sha256:{self._hash.hexdigest()}", self._size, self._has_requirements)

    async def store(self, objects: ObjectStore, key: str) -> bool:
        """Stores the archive under the key; it is durable when this returns. Existing code is not written again.

        Returns whether it was written.
        """
        if await objects.head(key) is not None:
            return False
        try:
            await objects.put(key, self._chunks(), create_only=True)
        except Duplicate:  # another request stored the same bytes first
            return False
        return True

    async def _chunks(self) -> AsyncIterator[bytes]:
        for start in range(0, self._size, _BLOCK):
            yield await _in_thread(partial(os.pread, self._file.fileno(), _BLOCK, start))

    def _checked(self, rest: bytearray) -> None:
        self._append(rest)
        entries = archive.inspect(self._file)
        self._has_requirements = any(entry.name == REQUIREMENTS for entry in entries)

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
    with _no_space_errors():
        return await in_thread(work)


@contextlib.contextmanager
def _no_space_errors() -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise NoSpace("there is no space left for uploads; nothing was kept", retry_after_s=60) from None
        raise
